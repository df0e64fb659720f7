"""Other ways to reduce, which are faster for some shapes: which of them is for measuring to say.

A sum of rows or columns is a product with ones, and a library's product may be faster than a loop;
shorter stretches give more workers something to do; NumPy has loops of its own.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import numpy as np

from caldera.config import settings
from caldera.graph.node import Node, Spec
from caldera.graph.opdef import parameter
from caldera.graph.ops.product import matmul
from caldera.kernels.common.loop_body import REDUCTIONS
from caldera.kernels.native.elementwise.operations import is_known
from caldera.kernels.native.reduction.reduce import LONG, SHORT, bind
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import float32, float64
from caldera.tensor.shape import size

MOST_TERMS = 4096
"""Of sums in float32 that are taken one after the other: beyond, digits are lost."""
WORTH_A_CALL = 1 << 16
"""Elements from which on a call of NumPy is not most of the time: it also ends a run of native
kernels, which measuring it alone does not show."""


def _lengths(node: Node) -> tuple[int, int, bool] | None:
    """Results, terms of each, and whether the terms come last in memory; None if they lie neither
    at the beginning nor at the end of the shape."""
    spec, axes = node.inputs[0].outputs[0], tuple(sorted(node.attrs["axis"]))
    if spec.order is not None or not axes or 0 in spec.shape:
        return None
    terms = size(tuple(spec.shape[axis] for axis in axes))
    results = size(spec.shape) // terms
    if axes == tuple(range(len(spec.shape) - len(axes), len(spec.shape))):
        return results, terms, True
    return (results, terms, False) if axes == tuple(range(len(axes))) else None


# --- a product with ones


@lru_cache(maxsize=1024)
def _product(results: int, terms: int, is_last: bool, dtype: np.dtype) -> tuple[Node, Kernel]:
    """The product whose result is the sum, and the kernel that computes it."""
    shape = (results, terms) if is_last else (terms, results)
    left, right = parameter(0, Spec(shape, dtype)), parameter(1, Spec((terms, 1), dtype))
    node: Node = matmul(left, right, ta=not is_last, tb=False)
    return node, TABLE.candidates(node, "cpu")[0]


def _of(node: Node) -> tuple[Node, Kernel]:
    found = _lengths(node)
    assert found is not None
    return _product(*found, node.dtype)


def _is_product(node: Node) -> bool:
    found = _lengths(node)
    if found is None or node.dtype not in (float32, float64):
        return False
    is_exact = node.dtype == float64 or found[1] <= MOST_TERMS or settings.accuracy == "fast"
    return is_exact and found[1] > 1


def _product_workspace(node: Node) -> int:
    product, kernel = _of(node)
    return kernel.workspace(product)


def _bind_product(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return bind(call)
    product, kernel = _of(call.node)
    ones = np.ones(product.inputs[1].shape, x.dtype)
    return kernel.bind(
        Call(product, (out.reshape(product.shape),), (x.reshape(product.inputs[0].shape), ones),
             call.workspace)
    )  # fmt: skip


# --- shorter stretches, and NumPy


def _has_two_stages(node: Node) -> bool:
    found = _lengths(node)
    if found is None or not is_known(node):
        return False
    least = 2 * (SHORT.elements if found[2] else SHORT.rows)
    most = 2 * (LONG.elements if found[2] else LONG.rows)
    return least <= found[1] < most


_UFUNCS: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum
}  # fmt: skip
_BY_NUMPY = frozenset(map(np.dtype, ["int32", "int64", "uint32", "uint64", "float32", "float64"]))


def _is_for_numpy(node: Node) -> bool:
    found = _lengths(node)
    if found is None or node.dtype not in _BY_NUMPY:
        return False
    results, terms, is_last = found
    # Along rows NumPy adds up in pairs, across them one by one.
    is_exact = node.op.name in ("max", "min") or node.dtype != float32 or is_last
    return results * terms >= WORTH_A_CALL and (is_exact or terms <= MOST_TERMS)


def _bind_numpy(call: Call) -> Runner:
    node, (x,), (out,) = call.node, call.inputs, call.outputs
    axes, kept = node.attrs["axis"], node.attrs["keepdims"]
    reduce = _UFUNCS[node.op.name].reduce
    return partial(reduce, x, axes, x.dtype, out, kept)


for _name in sorted(REDUCTIONS):
    TABLE.add(Kernel(_name, "cpu", "two stages", partial(bind, stretches=SHORT), _has_two_stages,
                     priority=9))  # fmt: skip
    TABLE.add(Kernel(_name, "cpu", "numpy", _bind_numpy, _is_for_numpy, priority=8))
TABLE.add(
    Kernel("sum", "cpu", "product with ones", _bind_product, _is_product, _product_workspace, 7)
)
