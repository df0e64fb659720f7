"""What a graph reads (constants, variables, inputs, live tensors, ranges), and assignment."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from caldera.core.graph.node import Node, Spec, Symbol, frozen
from caldera.core.graph.opdef import MOST_KNOWN, op, refuse_dtype, refuse_shape
from caldera.core.tensor.dtype import DType, is_complex, is_float
from caldera.core.tensor.shape import Shape
from caldera.errors import DtypeError

Number = bool | int | float | complex
_NUMBERS = frozenset({bool, int, float, complex})


@op("constant", kind="leaf")
def _constant(*, value: Number, dtype: DType) -> Spec:
    return Spec((), dtype)


_known: dict[Hashable, Node] = {}
"""Constants by what they were made of: the same few are written again and again."""


def constant(value: Number, dtype: DType) -> Node:
    """A scalar constant, rounded to `dtype`."""
    if type(value) not in _NUMBERS:
        value = np.asarray(value).item()
    key = (frozen(value), dtype)
    node = _known.get(key)
    if node is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        node = _known[key] = _constant(value=_rounded(value, dtype), dtype=dtype)
    return node


def _rounded(value: Number, dtype: DType) -> Number:
    try:
        rounded = np.asarray(value).astype(dtype)[()]
    except OverflowError:
        raise DtypeError.build(
            "constant", expected=f"a number that {dtype} can hold", got=str(value)
        ) from None
    if is_float(dtype):
        return float(rounded)
    if is_complex(dtype):
        return complex(rounded)
    return bool(rounded) if dtype == np.bool_ else int(rounded)


@op("variable", kind="leaf")
def variable(*, symbol: Symbol) -> Spec:
    """State that lives between runs and may be assigned."""
    return symbol.spec


@op("input", kind="leaf")
def input_(*, symbol: Symbol) -> Spec:
    """A value fed at each run."""
    return symbol.spec


@op("tensor", kind="leaf")
def tensor(*, symbol: Symbol) -> Spec:
    """A user's tensor; runs see what it holds at that moment."""
    return symbol.spec


@op("array", kind="leaf")
def array(*, symbol: Symbol) -> Spec:
    """A constant array: it never changes, so it may be folded."""
    return symbol.spec


@op("iota", kind="leaf")
def iota(*, shape: Shape, axis: int, dtype: DType) -> Spec:
    """The index along `axis`, as a value of `shape`."""
    return Spec(shape, dtype)


@op("assign", kind="state")
def assign(target: Spec, value: Spec) -> Spec:
    """The value, and a promise that `target` holds it when the run is over."""
    if value.shape != target.shape:
        refuse_shape("a value of the variable's shape")
    if value.dtype != target.dtype:
        refuse_dtype("a value of the variable's dtype", hint="cast it with op.cast")
    return value
