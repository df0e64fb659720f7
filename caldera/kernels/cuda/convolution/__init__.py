"""Convolutions by kernels of our own: products of matrices that are never written down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from caldera.core.graph.node import Node, intern
from caldera.core.graph.ops.epilogue import conv2d_epilogue
from caldera.core.graph.ops.product import conv2d
from caldera.kernels.common.binding import Scratch
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.common.product import Epilogue
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.convolution import implicit_gemm
from caldera.kernels.cuda.elementwise.loop import loop_calls
from caldera.kernels.cuda.product.problem import described_call, epilogue_loop_body
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner
from caldera.kernels.workspace import ADDING

EPILOGUE_ATTRIBUTES = frozenset({"activation", "attributes"})
"""The attributes that say how a convolution ends."""


def without_epilogue(node: Node) -> Node:
    """Return the plain convolution of a node with a bias and an activation."""
    attrs = {key: value for key, value in node.attrs.items() if key not in EPILOGUE_ATTRIBUTES}
    return intern(conv2d, node.inputs[:2], attrs, node.outputs)


def call_without_epilogue(call: Call) -> Call:
    """Return the call without its epilogue, which has to be applied to its outputs."""
    return replace(call, node=without_epilogue(call.node), inputs=call.inputs[:2])


def epilogue_calls(call: Call) -> list[Any]:
    """The loop that adds the bias and applies the activation, once the convolution is there."""
    (out,), bias = call.outputs, call.inputs[2:]
    loop_body = epilogue_loop_body(out.dtype, Epilogue.of(call.node))
    return list(loop_calls(loop_body, out.shape, [out, *bias], [out]))


def launches(call: Call) -> list[Any]:
    """Return the launches for a convolution or one of its gradients."""
    if call.node.op is conv2d_epilogue:
        return [*launches(call_without_epilogue(call)), *epilogue_calls(call)]
    if call.node.op.name != "conv2d_weight":
        return implicit_gemm.launches(call)
    return list(implicit_gemm.FilterGradient.of(call).launches(Scratch(call.workspace).rest))


def workspace(node: Node) -> int:
    """Return the bytes of workspace that these launches can use."""
    call = described_call(node)
    if node.op.name != "conv2d_weight":
        return implicit_gemm.workspace(call)
    return implicit_gemm.FilterGradient.of(call).workspace()


def _adding(total: Array, term: Array) -> Runner:
    """total += term."""
    name = total.dtype.name
    step = ("add", name, (name, name), (("in", 0), ("in", 1)))
    loop_body = LoopBody((name, name), (step,), ((name, ("step", 0)),))
    return CudaRunner(loop_calls(loop_body, total.shape, [total, term], [total]))


ADDING["cuda"] = _adding


for _op in ("conv2d", "conv2d_input", "conv2d_weight"):
    TABLE.add(
        Kernel(_op, "cuda", "direct", lambda call: CudaRunner(launches(call)), workspace=workspace)
    )
