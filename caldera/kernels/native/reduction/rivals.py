"""Other ways to reduce, which are faster for some shapes: which of them is for measuring to say.

A sum of rows or columns is a product with ones, for which there is the BLAS behind NumPy's `dot`;
shorter stretches give more workers something to do; NumPy has loops of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.core.tensor.dtype import float32, float64
from caldera.kernels.common.loop_body import REDUCTIONS
from caldera.kernels.common.reduction import MOST_TERMS, lengths
from caldera.kernels.native.elementwise.operations import is_known
from caldera.kernels.native.reduction.reduce import LONG, SHORT, bind
from caldera.kernels.table import TABLE, Call, Kernel, Runner

WORTH_A_CALL = 1 << 14
"""Elements from which on a call of NumPy is not most of the time: it also ends a run of native
kernels, which measuring it alone does not show."""


# --- a product with ones


def _is_product(node: Node) -> bool:
    found = lengths(node)
    if found is None or node.dtype not in (float32, float64):
        return False
    results, terms, _ = found
    is_exact = node.dtype == float64 or terms <= MOST_TERMS or settings.accuracy == "fast"
    return is_exact and terms > 1 and results * terms >= WORTH_A_CALL


def _bind_product(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    if not (x.flags.c_contiguous and out.flags.c_contiguous):
        return bind(call)
    found = lengths(call.node)
    assert found is not None
    results, terms, is_last = found
    ones = np.ones(terms, x.dtype)
    if is_last:
        return partial(np.dot, x.reshape(results, terms), ones, out.reshape(results))
    return partial(np.dot, ones, x.reshape(terms, results), out.reshape(results))


# --- shorter stretches, and NumPy


def _has_two_stages(node: Node) -> bool:
    found = lengths(node)
    if found is None or not is_known(node):
        return False
    least = 2 * (SHORT.elements if found[2] else SHORT.rows)
    most = 2 * (LONG.elements if found[2] else LONG.rows)
    return least <= found[1] < most


_UFUNCS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
_BY_NUMPY = frozenset(map(np.dtype, ["int32", "int64", "uint32", "uint64", "float32", "float64"]))


def _is_for_numpy(node: Node) -> bool:
    found = lengths(node)
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
    TABLE.add(
        Kernel(
            _name, "cpu", "two stages", partial(bind, stretches=SHORT), _has_two_stages, priority=9
        )
    )
    TABLE.add(Kernel(_name, "cpu", "numpy", _bind_numpy, _is_for_numpy, priority=8, serial=True))
TABLE.add(
    Kernel("sum", "cpu", "product with ones", _bind_product, _is_product, priority=7, serial=True)
)
