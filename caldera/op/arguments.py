"""Checks shared by families of functions: numbers and names, and floating-point functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, TypeVar, cast

import numpy as np

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift, lift_all
from caldera.core.graph import Node, Op, describe, location
from caldera.core.graph.ops.base import reshape
from caldera.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


def as_number(value: Any, name: str, op: str, *, above: float | None = None) -> float:
    """Return a constant number, larger than `above` if that is given.

    >>> as_number(1, "delta", "huber", above=0)
    1.0
    """
    expected = f"{name}= a number" + ("" if above is None else f" above {above:g}")
    plain = isinstance(value, int | float | np.integer | np.floating)
    if not plain or isinstance(value, bool) or (above is not None and not value > above):
        raise ConfigError.build(location(op), expected=expected, got=repr(value))
    return float(value)


def as_count(value: Any, name: str, op: str, *, least: int = 1) -> int:
    """Return a whole number of at least 1, or another one.

    >>> as_count(3, "groups", "group_norm")
    3
    """
    try:
        number = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        number = least - 1
    require(number >= least, location(op), f"{name}= an integer >= {least}", repr(value))
    return number


def float_function(function: Op, *operands: Any, **attrs: Any) -> Expr:
    """An op on floating-point numbers: operands meet in one dtype, integers become float32."""
    return Expr(function(*[as_float(each) for each in lift_all(*operands)], **attrs))


def along_an_axis(function: Function) -> Function:
    """Decorate a function of `x` along an axis to accept scalars.

    A scalar is passed as a vector of one element, and results of that vector's shape become
    scalars.
    """

    @wraps(function)
    def run(x: Any, *further: Any, **named: Any) -> Any:
        node = lift(x)
        if node.shape:
            return function(x, *further, **named)
        results = function(Expr(reshape(node, (1,))), *further, **named)
        if isinstance(results, tuple):
            return tuple(map(_as_scalar, results))
        return _as_scalar(results)

    # The wrapper is guarded like any other function: a guard would unwrap it otherwise.
    del run.__wrapped__
    run.__signature__ = signature(function)  # type: ignore[attr-defined]
    return cast(Function, run)


def _as_scalar(result: Expr) -> Expr:
    return Expr(reshape(result.node, ())) if result.shape == (1,) else result


def place(name: str, *nodes: Node) -> str:
    """Return the start of an error message: `op.reshape of W (6, 5) float32`."""
    return f"{location(name)} of {', '.join(describe(node) for node in nodes)}"
