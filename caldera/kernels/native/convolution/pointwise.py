"""Convolutions with filters of one pixel as products of bfloat16 matrices in tile registers.

Pixels of images that lie channels last are the rows of a matrix as they are: nothing is copied.
Elsewhere such convolutions are products as well (`im2col.py`), with float32 numbers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from caldera.graph.memory_format import NHWC
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import parameter
from caldera.graph.ops.product import matmul
from caldera.kernels.common.geometry import Geometry
from caldera.kernels.native.product import amx
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import bfloat16

_TRANSPOSED = {
    "conv2d": (False, True),
    "conv2d_input": (False, False),
    "conv2d_weight": (True, False),
}
"""Whether the matrix on the left, and that on the right, is turned: images times filters, the
outputs' gradient times filters, and that gradient times images, whose inputs come the other way
round."""


def _supports(node: Node) -> bool:
    geometry = Geometry.of(node)
    is_product = geometry.taps == geometry.stride == (1, 1) and geometry.groups == 1
    is_plain = not any(each for side in node.attrs["padding"] for each in side)
    images = [node.inputs[0].outputs[0]]
    images.append(node.inputs[1].outputs[0] if node.op.name == "conv2d_weight" else node.outputs[0])
    if not (is_product and is_plain and all(each.order == NHWC for each in images)):
        return False
    halves = all(each.dtype == bfloat16 for each in (*node.inputs, node))
    return halves and amx.supports(_product(node))


def _product(node: Node) -> Node:
    """The product that this convolution, or its gradient, is."""
    ta, tb = _TRANSPOSED[node.op.name]
    matrices = [_matrix_shape(each.shape) for each in node.inputs]
    if node.op.name == "conv2d_weight":
        matrices.reverse()
    left, right = (parameter(i, Spec(each, bfloat16)) for i, each in enumerate(matrices))
    product: Node = matmul(left, right, ta=ta, tb=tb)
    return product


def _matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Pixels by channels, or filters by channels."""
    return shape[0] * shape[2] * shape[3], shape[1]


def _matrix(array: np.ndarray) -> np.ndarray:
    """The same memory as a matrix; filters of one pixel are one already."""
    return np.reshape(array.transpose(0, 2, 3, 1), _matrix_shape(array.shape), copy=False)


def _bind(call: Call) -> Runner:
    inputs = [_matrix(each) for each in call.inputs]
    if call.node.op.name == "conv2d_weight":
        inputs.reverse()
    (out,) = call.outputs
    return amx.bind(
        replace(call, node=_product(call.node), outputs=(_matrix(out),), inputs=tuple(inputs))
    )


def _workspace(node: Node) -> int:
    return amx.workspace(_product(node))


for _op in _TRANSPOSED:
    TABLE.add(Kernel(_op, "cpu", "amx 1x1 product", _bind, _supports, _workspace, priority=12))
