"""Reductions that write straight into their output.

Two ways to add up a matrix compete: NumPy's reduction, and a product with a vector of ones, which
BLAS runs at the speed of memory. BLAS adds up a row in a few lanes from left to right, where NumPy
adds pairwise; so the product is offered only for rows too short to lose accuracy by that.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.graph.node import Node
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import HALVES, float32, float64
from caldera.tensor.shape import Shape, size

LONGEST_ROW = 1024
"""Elements that are added up in a row by a product."""

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip


def _is_wide(node: Node) -> bool:
    return node.inputs[0].dtype not in HALVES


def _bind_ufunc(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    attrs = call.node.attrs
    reduce = _UFUNCS[call.node.op.name].reduce
    return partial(
        reduce, x, axis=attrs["axis"], dtype=out.dtype, out=out, keepdims=attrs["keepdims"]
    )


for _name in _UFUNCS:
    TABLE.add(Kernel(_name, "cpu", "ufunc", _bind_ufunc, supports=_is_wide))


def _as_matrix(node: Node) -> tuple[Shape, int] | None:
    """The matrix whose rows (1) or columns (0) are added up, if the sum is one of these."""
    shape, axes = node.inputs[0].shape, node.attrs["axis"]
    rank = len(shape)
    if axes == tuple(range(rank - len(axes), rank)):
        kept = rank - len(axes)
        return (size(shape[:kept]), size(shape[kept:])), 1
    if axes == tuple(range(len(axes))):
        return (size(shape[: len(axes)]), size(shape[len(axes) :])), 0
    return None


def _is_product(node: Node) -> bool:
    if node.inputs[0].dtype not in (float32, float64) or not node.inputs[0].spec.size:
        return False
    matrix = _as_matrix(node)
    if matrix is None:
        return False
    (_, width), axis = matrix
    return axis == 0 or width <= LONGEST_ROW


def _bind_ones(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    matrix = _as_matrix(call.node)
    assert matrix is not None
    if not x.flags.c_contiguous:
        return _bind_ufunc(call)
    (height, width), axis = matrix
    table, result = x.reshape(height, width), out.reshape(-1, copy=False)
    if axis == 1:
        return partial(np.dot, table, np.ones(width, x.dtype), result)
    return partial(np.dot, np.ones(height, x.dtype), table, result)


TABLE.add(Kernel("sum", "cpu", "product with ones", _bind_ones, supports=_is_product, priority=1))
