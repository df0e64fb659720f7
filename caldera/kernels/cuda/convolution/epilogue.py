"""Convolutions with a bias and an activation: by any kernel for convolutions, then a loop over its
results."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from caldera.core.graph.node import Node
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.convolution import cudnn, separable
from caldera.kernels.cuda.convolution.small_channels import kernels
from caldera.kernels.table import TABLE, Call, Kernel, Runner

# These have registered their kernels before this module looks for them.
assert all((convolution, cudnn, separable, kernels, separable))


def _bind(kernel: Kernel, call: Call) -> Runner:
    first = kernel.bind(convolution.call_without_epilogue(call))
    return CudaRunner([first, *convolution.epilogue_calls(call)])


def _supports(kernel: Kernel, node: Node) -> bool:
    return kernel.supports(convolution.without_epilogue(node))


def _workspace(kernel: Kernel, node: Node) -> int:
    return kernel.workspace(convolution.without_epilogue(node))


for _kernel in TABLE.kernels("conv2d", "cuda"):
    TABLE.add(
        replace(
            _kernel,
            op="conv2d_epilogue",
            bind=partial(_bind, _kernel),
            supports=partial(_supports, _kernel),
            workspace=partial(_workspace, _kernel),
        )
    )
