"""What flows between operators while a model is written down as a graph.

A value is an `Expr` (it depends on what is fed or trained), a NumPy array (it is known now), a list
(a sequence of ONNX) or None (left out). Shapes are always known, so all the arithmetic that models
do with shapes happens while they are written down, and never when they run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from caldera import op
from caldera.base.file_limit import check_asked
from caldera.compiler.lazy import Expr
from caldera.core.graph.body import topological
from caldera.core.graph.node import Node, Symbol
from caldera.errors import CalderaError
from caldera.kernels.reference import interpret
from caldera.onnx.dtypes import is_ours

Value = Any


class NeedsValue(CalderaError):
    """Something must be known before the graph can be written down, and is only fed later."""

    def __init__(self, message: str, symbols: Iterable[Symbol] = ()) -> None:
        super().__init__(message)
        self.symbols = tuple(symbols)


def known(value: Value, what: str = "a value") -> np.ndarray:
    """The array that a value stands for, if it does not depend on what is fed or trained.

    >>> from caldera import op
    >>> known(op.add(np.arange(3), 1)).tolist()
    [1, 2, 3]
    """
    if isinstance(value, np.ndarray):
        return value
    for node in topological([value.node]):
        for spec in node.outputs:
            check_size(spec.shape, spec.dtype)
    leaves = _leaves(value)
    free = _free(leaves)
    if free:
        names = ", ".join(symbol.name for symbol in free[:4])
        message = NeedsValue.build(
            "onnx", expected=f"{what} that is known before the model runs", got=f"one from {names}"
        )
        raise NeedsValue(str(message), free)
    arrays = {node: symbol.value.numpy() for node, symbol in leaves.items()}
    with np.errstate(all="ignore"):
        return interpret([value.node], arrays)[0]


def _leaves(value: Expr) -> dict[Node, Symbol]:
    """What an expression reads, numbers apart."""
    order = topological([value.node])
    return {node: node.attrs["symbol"] for node in order if "symbol" in node.attrs}


def _free(leaves: Mapping[Node, Symbol]) -> list[Symbol]:
    """What of it is not known now."""
    return [symbol for symbol in leaves.values() if symbol.role != "array"]


def known_if_possible(value: Value) -> Value:
    """The same with arrays for those expressions that can be computed now."""
    if isinstance(value, list):
        return [known_if_possible(each) for each in value]
    if not isinstance(value, Expr) or _free(_leaves(value)):
        return value
    return known(value)


def check_size(shape: Iterable[int], dtype: Any = np.float64, *, held: int = 0) -> None:
    """Refuse what is too large for a file to ask for, beside `held` bytes of what is known."""
    sizes = tuple(shape)
    check_asked(math.prod(sizes) * np.dtype(dtype).itemsize, f"onnx, shape {sizes}", held=held)


def expression(value: Value) -> Expr:
    """An array as an expression, so that it can be cut like one."""
    return value if isinstance(value, Expr) else op.reshape(value, value.shape)


def laid_along(x: Value, y: Value, axis: int | None, broadcast: int) -> Value:
    """Up to version 6 a second operand could be laid along any axis of the first."""
    if not broadcast or axis is None:
        return y
    return op.reshape(y, (*y.shape, *(1,) * (len(x.shape) - axis - len(y.shape))))


def all_known(value: Value) -> Value:
    """The same with arrays for expressions, also inside sequences."""
    if isinstance(value, list):
        return [all_known(each) for each in value]
    return known(value) if isinstance(value, Expr) else value


def is_known(value: Value) -> bool:
    """Whether there is no expression in it."""
    if isinstance(value, list):
        return all(is_known(each) for each in value)
    return not isinstance(value, Expr)


def is_foreign(value: Value) -> bool:
    """Whether it holds elements that Caldera has no dtype for."""
    if isinstance(value, list):
        return any(is_foreign(each) for each in value)
    return isinstance(value, np.ndarray) and not is_ours(value.dtype)


def integers(value: Value, what: str = "whole numbers") -> tuple[int, ...]:
    """Whole numbers that have to be known: sizes, axes, widths."""
    if isinstance(value, tuple | int):
        return value if isinstance(value, tuple) else (value,)
    return tuple(int(each) for each in known(value, what).reshape(-1))


def integer(value: Value, what: str = "a whole number") -> int:
    """One whole number that has to be known."""
    (found,) = integers(value, what)
    return found


def numbers(value: Value, what: str = "numbers") -> tuple[float, ...]:
    """Numbers that have to be known: scales, thresholds."""
    if isinstance(value, tuple | float):
        return value if isinstance(value, tuple) else (value,)
    return tuple(float(each) for each in known(value, what).reshape(-1))


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    return axis + rank if axis < 0 else axis
