"""Fused bodies as native loops: one pass over the data, reductions included."""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.graph.program import Body
from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import loop_body_of, loop_shape
from caldera.kernels.common.reduction import elementwise_outputs, fused_tasks
from caldera.kernels.native.codegen import (
    NativeRunner,
    in_sequence,
    offer,
)
from caldera.kernels.native.elementwise.loop import loop_calls
from caldera.kernels.native.elementwise.operations import is_known
from caldera.kernels.native.reduction.reduce import fill_with_nothing, reduction_calls
from caldera.kernels.reference.evaluation import by_decomposition
from caldera.kernels.table import Call, Runner


def _bind(call: Call) -> Runner:
    body: Body = call.node.attrs["body"]
    shape = loop_shape(call.node)
    if not size(shape):
        return _of_nothing(call, body)
    tasks = fused_tasks(call)
    if not tasks:
        body_of_loop = loop_body_of(call.node)
        return NativeRunner(loop_calls(body_of_loop, shape, call.inputs, elementwise_outputs(call)))
    return NativeRunner([each for task in tasks for each in reduction_calls(task)])


def _of_nothing(call: Call, body: Body) -> Runner:
    """A loop over nothing still has to write what its reductions give."""
    return in_sequence(
        fill_with_nothing(part, array)
        for array, part in zip(call.outputs, body.outputs, strict=True)
        if part.op.kind == "reduction" and array.size
    )


def _in_place(node: Node) -> bool:
    return all(output.op.kind == "elementwise" for output in node.attrs["body"].outputs)


offer("fused", "native", _bind, supports=is_known, priority=10, in_place=_in_place)
# Op by op: for ops that somebody added without saying how to compile them.
by_decomposition("fused")
