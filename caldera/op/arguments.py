"""What several families of functions share: checks of plain numbers and names, where they fail, and
functions of floating-point numbers."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from caldera.errors import ConfigError
from caldera.graph.node import Node, describe
from caldera.graph.opdef import Op, location
from caldera.lazy import Expr, as_float, lift_all


def as_number(value: Any, name: str, op: str, *, above: float | None = None) -> float:
    """A number that is fixed when the expression is written, larger than `above` if that is given.

    >>> as_number(1, "delta", "huber", above=0)
    1.0
    """
    expected = f"{name}= a number" + ("" if above is None else f" above {above:g}")
    plain = isinstance(value, int | float | np.integer | np.floating)
    if not plain or isinstance(value, bool) or (above is not None and not value > above):
        raise ConfigError.build(location(op), expected=expected, got=repr(value))
    return float(value)


def as_count(value: Any, name: str, op: str) -> int:
    """A whole number of at least 1.

    >>> as_count(3, "groups", "group_norm")
    3
    """
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError.build(
            location(op), expected=f"{name}= a whole number of at least 1", got=repr(value)
        )
    return number


def float_function(function: Op, *operands: Any, **attrs: Any) -> Expr:
    """An op on floating-point numbers: operands meet in one dtype, integers become float32."""
    return Expr(function(*[as_float(each) for each in lift_all(*operands)], **attrs))


def place(name: str, *nodes: Node) -> str:
    """The start of an error message: `op.reshape of W (6, 5) float32`."""
    return f"{location(name)} of {', '.join(describe(node) for node in nodes)}"
