"""Conversion of operands to nodes with a shared dtype."""

from __future__ import annotations

import weakref
from functools import reduce
from typing import Any

import numpy as np

from caldera.compiler.lazy.indexing import array_node
from caldera.core.graph.node import Node, Spec, Symbol
from caldera.core.graph.ops.base import cast, constant
from caldera.core.graph.ops.base import tensor as tensor_leaf
from caldera.core.tensor import (
    DType,
    Tensor,
    array_of,
    canonical,
    exactly,
    float32,
    has_dtype,
    is_inexact,
    of_scalar,
    promote,
    side_of_range,
)
from caldera.errors import ConfigError, DtypeError


class GraphOperand:
    """A value that a node computes: the base of `Expr`."""

    __slots__ = ("node",)

    node: Node


class SizesOpen:
    """An operand whose sizes are not known yet: the base of `OpenExpr`."""


def as_float(node: Node) -> Node:
    """Return the node, cast to float32 if it holds integers or truth values."""
    return node if is_inexact(node.dtype) else cast(node, float32)


def lift(value: Any, like: DType | None = None) -> Node:
    """Return the node of any valid operand.

    Python scalars take the dtype of the operand next to them (`like`).
    """
    if isinstance(value, GraphOperand):
        return value.node
    if isinstance(value, Tensor):
        return _leaf_of(value)
    if isinstance(value, SizesOpen):
        raise ConfigError.build(
            "operand",
            expected="an expression whose sizes are known",
            got=repr(value),
            hint="open sizes are for op functions, operators, layers, eval and cd.compile",
        )
    if isinstance(value, bool | int | float | complex):
        dtype = of_scalar(value, like)
        if side_of_range(value, dtype):
            raise DtypeError.build(
                "operand",
                expected=f"a number that {dtype} can hold",
                got=str(value),
                hint="cast the narrower operand to a wider dtype with op.cast",
            )
        return constant(value, dtype)
    array = array_of(value, "operand")
    # A list of Python numbers is as weak as one number; an array keeps its dtype.
    if not isinstance(value, np.ndarray | np.generic) and array.dtype.kind in "ifc":
        array = exactly(array, of_scalar(_one_of(array, value), like), "operand")
    return array_node(array)


# A node keeps its tensor alive, so an id is good as long as its entry is.
_leaves: weakref.WeakValueDictionary[int, Node] = weakref.WeakValueDictionary()


def _leaf_of(value: Tensor) -> Node:
    node = _leaves.get(id(value))
    if node is None:
        spec = Spec(value.shape, canonical(value.dtype))
        node = tensor_leaf(symbol=Symbol("", spec, "tensor", value))
        _leaves[id(value)] = node
    return node


def lift_all(*values: Any) -> tuple[Node, ...]:
    """Return operands that meet each other: lifted, and cast to the dtype they share."""
    dtypes = [dtype for dtype in map(dtype_of, values) if dtype is not None]
    # Floats first: with a float, integers do not affect the dtype, however they promote together.
    ordered = sorted(dtypes, key=is_inexact, reverse=True)
    shared = reduce(promote, ordered) if ordered else None
    # A weak number still decides the family, also in a list: True + 2 is an int, [1] + 0.5 a float.
    for number in map(_weak_number, values):
        if number is not None:
            weak = of_scalar(number, shared)
            shared = weak if shared is None else promote(shared, weak)
    return tuple(cast(lift(value, shared), shared) if shared else lift(value) for value in values)


def dtype_of(value: Any) -> DType | None:
    """Return the dtype that an operand requires; None if it takes its neighbours' dtype.

    numpy.float64 is a Python float, and as weak: np.sqrt(2) must not turn a network into float64.
    (numpy.complex128 is a Python complex number in the same way.)
    """
    if isinstance(value, GraphOperand):
        return value.node.dtype
    if isinstance(value, Tensor):
        return canonical(value.dtype)
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, float | complex):
        return canonical(value.dtype)
    return None


def _weak_number(value: Any) -> bool | int | float | complex | None:
    """Return a number of the kind contained in an operand without dtype; None for others."""
    if isinstance(value, bool | int | float | complex):
        return value
    if not isinstance(value, list | tuple):
        return None
    return _one_of(array_of(value, "operand"), value)


def _one_of(array: np.ndarray, value: Any) -> Any:
    """Return a number as the array of these values holds: one of Python if they have no dtype."""
    number = array.dtype.type(0)
    return number if has_dtype(value) else number.item()
