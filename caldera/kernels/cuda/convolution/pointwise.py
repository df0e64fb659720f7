"""Convolutions that look at one pixel at a time: matrix products, by cuBLASLt where it is there.

Images that lie channels last are one tall matrix, those that lie row major a batch of matrices.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.cuda import convolution
from caldera.kernels.cuda.codegen.kernel import CudaRunner
from caldera.kernels.cuda.product import cublas, tiled
from caldera.kernels.cuda.product.problem import Multiplication, described_call
from caldera.kernels.cuda.runtime import device
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner


def product_of(call: Call) -> Multiplication | None:
    """The product that a call amounts to; None where the arrays cannot be seen as matrices."""
    groups = Geometry.of(call.node).groups
    compute = call.node.attrs.get("compute")
    try:
        left, right, out = _OPERANDS[call.node.op.name](call, groups)
    except ValueError:
        # Something would have to be copied.
        return None
    return Multiplication(left, right, out, compute=compute)


def _rows(images: Array, groups: int) -> Array:
    """(N, C, H, W) as (groups, pixels, C / groups)."""
    batch, channels, height, width = images.shape
    pixels = images.transpose(0, 2, 3, 1).reshape(batch * height * width, channels, copy=False)
    seen = pixels.reshape(len(pixels), groups, channels // groups, copy=False)
    return seen.transpose(1, 0, 2)


def _columns(images: Array, groups: int) -> Array:
    """(N, C, H, W) as (N, groups, C / groups, pixels)."""
    batch, channels, *area = images.shape
    return images.reshape(batch, groups, channels // groups, size(tuple(area)), copy=False)


def _matrices(filters: Array, groups: int) -> Array:
    """(K, C / groups, 1, 1) as (groups, K / groups, C / groups)."""
    results, channels = filters.shape[:2]
    return filters[:, :, 0, 0].reshape(groups, results // groups, channels, copy=False)


Operands = tuple[Array, Array, Array]


def _forward(call: Call, groups: int) -> Operands:
    images, filters, out = call.inputs[0], _matrices(call.inputs[1], groups), call.outputs[0]
    try:
        return _rows(images, groups), filters.swapaxes(1, 2), _rows(out, groups)
    except ValueError:
        return filters, _columns(images, groups), _columns(out, groups)


def _input(call: Call, groups: int) -> Operands:
    gradient, filters, out = call.inputs[0], _matrices(call.inputs[1], groups), call.outputs[0]
    try:
        return _rows(gradient, groups), filters, _rows(out, groups)
    except ValueError:
        return filters.swapaxes(1, 2), _columns(gradient, groups), _columns(out, groups)


def _weight(call: Call, groups: int) -> Operands:
    images, gradient = (_rows(each, groups) for each in call.inputs)
    return gradient.swapaxes(1, 2), images, _matrices(call.outputs[0], groups)


_OPERANDS = {"conv2d": _forward, "conv2d_input": _input, "conv2d_weight": _weight}


def _bind(call: Call) -> Runner:
    product = product_of(call)
    if product is None:
        return CudaRunner(convolution.launches(call))
    calls = None
    if device.cublas_lt() is not None:
        calls = cublas.bind_product(product, call.workspace)
    return CudaRunner(tiled.launches(product, call.workspace) if calls is None else calls)


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    if not geometry.is_pointwise or not geometry.is_usual or geometry.is_depthwise:
        return False
    return product_of(described_call(node)) is not None


def _workspace(node: Node) -> int:
    product = product_of(described_call(node))
    assert product is not None
    if device.cublas_lt() is not None and 0 not in (*product.extent, product.count):
        found, algorithms = cublas.workspace(product)
        if algorithms:
            return found
    return tiled.workspace(product)


for _op in _OPERANDS:
    TABLE.add(Kernel(_op, "cuda", "1x1 product", _bind, _supports, _workspace, priority=11))
