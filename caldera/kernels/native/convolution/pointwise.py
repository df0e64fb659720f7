"""Convolutions with filters of one pixel as products of our own.

Pixels of images that lie channels last are the rows of a matrix as they are: nothing is copied
unless they are parts of something larger, or a stride leaves some of them out. bfloat16 matrices
are multiplied in tile registers, float32 ones by packed micro-kernels where filters are
differentiated: their sums are long, and cut. `im2col.py` has the same by the BLAS.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import float32
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.common.geometry import Geometry, seen_pixels
from caldera.kernels.native.codegen import (
    NativeCall,
    NativeRunner,
    offer,
)
from caldera.kernels.native.convolution import columns_seconds
from caldera.kernels.native.product import amx, packed  # noqa: F401 - register their kernels
from caldera.kernels.native.product.problem import copied, dense
from caldera.kernels.table import TABLE, Call, Kernel, Runner

_TRANSPOSED = {
    "conv2d": (False, True),
    "conv2d_input": (False, False),
    "conv2d_weight": (True, False),
}
"""Whether the matrix on the left, and that on the right, is turned: images times filters, the
outputs' gradient times filters, and that gradient times images, whose inputs come the other way
round."""

_AMX = ("amx",)
_PACKED = ("packed, sums cut in 4", "packed together", "packed")
"""Products that multiply the matrices: the first of these that can."""
_PIXELS_A_CHANNEL = 8


def is_product(node: Node) -> bool:
    """Whether each result sees one pixel, and none beside the image."""
    geometry = Geometry.of(node)
    return geometry.unstrided.is_pointwise and geometry.groups == 1


def _product_kernel(node: Node, names: tuple[str, ...]) -> Kernel | None:
    """The first of these kernels that can multiply the matrices."""
    product = _product(node)
    known = {each.name: each for each in TABLE.kernels("matmul", "cpu")}
    return next((known[each] for each in names if known[each].supports(product)), None)


def _supports(node: Node, names: tuple[str, ...]) -> bool:
    images = [node.inputs[0].outputs[0]]
    images.append(node.inputs[1].outputs[0] if node.op.name == "conv2d_weight" else node.outputs[0])
    if not is_product(node) or any(each.order != NHWC for each in images):
        return False
    is_alike = len({each.dtype for each in (*node.inputs, node)}) == 1
    return is_alike and _product_kernel(node, names) is not None


def _has_few_pixels(node: Node) -> bool:
    """Whether the sums are not much longer than the filters are wide: parts of small filters read
    too much for what they multiply. With 64 and 256 channels and 50,176 pixels sixteen threads take
    3.4 ms, 2.3 directly; with 256 and 1,024 and 3,136 pixels 1.7 ms, and 2.8 by the BLAS."""
    geometry = Geometry.of(node)
    return geometry.pixels <= _PIXELS_A_CHANNEL * max(geometry.filters[:2])


def _product(node: Node) -> Node:
    """The product that this convolution, or its gradient, is."""
    ta, tb = _TRANSPOSED[node.op.name]
    matrices = [_matrix_shape(each.shape) for each in node.inputs]
    if node.op.name != "conv2d_input":
        matrices[0] = _matrix_shape(Geometry.of(node).unstrided.image)
    if node.op.name == "conv2d_weight":
        matrices.reverse()
    left, right = (parameter(i, Spec(each, node.dtype)) for i, each in enumerate(matrices))
    return matmul(left, right, ta=ta, tb=tb)


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Pixels by channels, or filters by channels."""
    return shape[0] * shape[2] * shape[3], shape[1]


def _as_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, np.ndarray | None]:
    """Pixels by channels: the same memory, or other memory and how the array lies beside it."""
    images, shape = array.transpose(0, 2, 3, 1), _matrix_shape(array.shape)
    try:
        return np.reshape(images, shape, copy=False), None
    except ValueError:
        return dense(shape, array.dtype, scratch), images


def read_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, list[NativeCall]]:
    """An input as a matrix, and what must run before it can be read."""
    matrix, images = _as_pixels(array, scratch)
    return matrix, [] if images is None else copied(images, matrix.reshape(images.shape))


def written_pixels(array: np.ndarray, scratch: Scratch) -> tuple[np.ndarray, list[NativeCall]]:
    """A matrix for an output, and what must run when it is written."""
    matrix, images = _as_pixels(array, scratch)
    return matrix, [] if images is None else copied(matrix.reshape(images.shape), images)


def _bind(call: Call, names: tuple[str, ...]) -> Runner:
    node, scratch, geometry = call.node, Scratch(call.workspace), Geometry.of(call.node)
    first, out = call.inputs[0], call.outputs[0]
    unseen: list[NativeCall] = []
    if node.op.name != "conv2d_input":
        first = seen_pixels(geometry, first)
    elif geometry.stride != (1, 1):
        unseen = copied(np.broadcast_to(np.zeros((), out.dtype), out.shape), out)
        out = seen_pixels(geometry, out)
    first, before = read_pixels(first, scratch)
    second, more = read_pixels(call.inputs[1], scratch)
    found, after = written_pixels(out, scratch)
    matrices = (second, first) if node.op.name == "conv2d_weight" else (first, second)
    kernel = _product_kernel(node, names)
    assert kernel is not None
    multiplied = kernel.bind(Call(_product(node), (found,), matrices, scratch.rest))
    assert isinstance(multiplied, NativeRunner)
    return NativeRunner([*unseen, *before, *more, *multiplied.calls, *after])


def _workspace(node: Node, names: tuple[str, ...]) -> int:
    geometry = Geometry.of(node)
    is_strided = geometry.stride != (1, 1)
    seen = [Spec(geometry.unstrided.image, node.dtype)] if is_strided else []
    kernel = _product_kernel(node, names)
    assert kernel is not None
    return workspace_bytes(*seen) + kernel.workspace(_product(node))


offer(
    _TRANSPOSED,
    "amx 1x1 product",
    partial(_bind, names=_AMX),
    partial(_supports, names=_AMX),
    partial(_workspace, names=_AMX),
    priority=12,
)
offer(
    "conv2d_weight",
    "packed 1x1 product",
    partial(_bind, names=_PACKED),
    lambda node: node.dtype == float32 and _has_few_pixels(node) and _supports(node, _PACKED),
    partial(_workspace, names=_PACKED),
    priority=12,
    estimate=columns_seconds,
)
