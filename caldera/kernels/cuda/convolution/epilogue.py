"""Convolutions with a bias and an activation: by any kernel for convolutions, then a loop over its
results."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from caldera.graph.node import Node
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.convolution import cudnn, pointwise
from caldera.kernels.cuda.convolution.small_channels import kernels
from caldera.kernels.cuda.runtime.launch import CudaRunner
from caldera.kernels.table import TABLE, Call, Kernel, Runner

# These have registered their kernels before this module looks for them.
assert all((convolution, cudnn, kernels, pointwise))


def _bind(kernel: Kernel, call: Call) -> Runner:
    first = kernel.bind(convolution.plain_call(call))
    return CudaRunner([first, *convolution.ending_calls(call)])


def _is_able(kernel: Kernel, node: Node) -> bool:
    return kernel.supports(convolution.plain(node))


def _room(kernel: Kernel, node: Node) -> int:
    return kernel.workspace(convolution.plain(node))


for _kernel in TABLE.kernels("conv2d", "cuda"):
    TABLE.add(
        replace(
            _kernel, op="conv2d_epilogue", bind=partial(_bind, _kernel),
            supports=partial(_is_able, _kernel), workspace=partial(_room, _kernel),
        )
    )  # fmt: skip
