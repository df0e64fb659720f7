"""Matrix products by BLAS, written straight into their output."""

from __future__ import annotations

from functools import partial

import numpy as np

from caldera.kernels.cpu.blas import product
from caldera.kernels.cpu.scratch import through_float32
from caldera.kernels.table import TABLE, Array, Call, Kernel, Runner


def _reaches_blas(matrices: Array) -> bool:
    """Whether one of the last two axes is dense, which is all that BLAS asks for.

    Anything else NumPy would multiply in a plain loop.
    """
    itemsize = matrices.itemsize
    rows, columns = matrices.strides[-2:]
    height, width = matrices.shape[-2:]
    dense_rows = columns == itemsize and rows >= width * itemsize
    dense_columns = rows == itemsize and columns >= height * itemsize
    return bool(dense_rows or dense_columns)


def _bind(call: Call) -> Runner:
    attrs = call.node.attrs
    a, b = call.inputs
    (out,) = call.outputs
    left = a.swapaxes(-1, -2) if attrs["ta"] else a
    right = b.swapaxes(-1, -2) if attrs["tb"] else b
    if _reaches_blas(left) and _reaches_blas(right):
        return partial(product, left, right, out)
    return lambda: product(np.ascontiguousarray(left), np.ascontiguousarray(right), out)


_bind_any, _workspace = through_float32(_bind, lambda node: 0)
TABLE.add(Kernel("matmul", "cpu", "blas", _bind_any, workspace=_workspace))
