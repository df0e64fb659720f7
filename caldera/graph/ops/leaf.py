"""Leaves: what a graph reads. Constants, variables, inputs, live tensors, and ranges."""

from __future__ import annotations

import numpy as np

from caldera.graph.node import Node, Spec, Symbol
from caldera.graph.opdef import op
from caldera.tensor.dtype import DType, is_float
from caldera.tensor.shape import Shape


@op("constant", kind="leaf")
def _constant(*, value: bool | int | float, dtype: DType) -> Spec:
    return Spec((), dtype)


def constant(value: bool | int | float, dtype: DType) -> Node:
    """A scalar constant, rounded to `dtype`."""
    rounded = np.asarray(value).astype(dtype)[()]
    plain: bool | int | float
    if is_float(dtype):
        plain = float(rounded)
    else:
        plain = bool(rounded) if dtype == np.bool_ else int(rounded)
    node: Node = _constant(value=plain, dtype=dtype)
    return node


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
