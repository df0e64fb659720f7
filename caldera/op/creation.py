"""Values determined only by a shape: constants, ranges, diagonals.

They are computed on use, and take no memory in an expression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.graph.node import Node
from caldera.core.graph.ops import base, iota
from caldera.core.graph.ops import elementwise as e
from caldera.core.tensor import (
    DType,
    as_shape,
    bool_,
    canonical,
    complex64,
    float32,
    float64,
    int64,
    is_complex,
    is_inexact,
    side_of_range,
)
from caldera.errors import ConfigError
from caldera.op.arguments import as_number

__all__ = ["arange", "eye", "full", "linspace", "ones", "zeros"]

Sizes = int | Sequence[int]


def zeros(shape: Sizes, dtype: Any = "float32") -> Expr:
    """Return an array of zeros.

    >>> from caldera import op
    >>> op.zeros((2, 2)).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return Expr(base.full(as_shape(shape, "op.zeros"), 0, canonical(dtype)))


def ones(shape: Sizes, dtype: Any = "float32") -> Expr:
    """Return an array of ones.

    >>> from caldera import op
    >>> op.ones(3, dtype="int64").tolist()
    [1, 1, 1]
    """
    return Expr(base.full(as_shape(shape, "op.ones"), 1, canonical(dtype)))


def full(shape: Sizes, value: complex, dtype: Any = None) -> Expr:
    """Return an array of one number, by default float32 or, for a complex number, complex64.

    >>> from caldera import op
    >>> op.full((2,), 2.5).tolist()
    [2.5, 2.5]
    """
    is_number = isinstance(value, complex)
    wanted = canonical(dtype) if dtype is not None else complex64 if is_number else float32
    if is_number and is_complex(wanted):
        return Expr(base.full(as_shape(shape, "op.full"), value, wanted))
    number = value if isinstance(value, bool) else as_number(value, "value", "full")
    if not is_inexact(wanted):
        whole = math.isfinite(number) and number == math.floor(number)
        whole = whole and (wanted != bool_ or number in (0, 1))
        require(
            whole and not side_of_range(int(value.real), wanted),
            "op.full",
            f"value= a number that {wanted} can hold",
            repr(value),
        )
        number = int(value.real)
    return Expr(base.full(as_shape(shape, "op.full"), number, wanted))


def arange(start: float, stop: float | None = None, step: float = 1, *, dtype: Any = None) -> Expr:
    """Return the numbers from `start` up to, without, `stop`; from 0 on if only one bound is given.

    They are int64 if all three are integers, and float32 otherwise.

    >>> from caldera import op
    >>> op.arange(4).tolist(), op.arange(1, 0, -0.25).tolist()
    ([0, 1, 2, 3], [1.0, 0.75, 0.5, 0.25])
    """
    first, last = (0, start) if stop is None else (start, stop)
    numbers = [as_number(each, "a bound", "arange") for each in (first, last, step)]
    require(
        step and all(map(math.isfinite, numbers)),
        "op.arange",
        "finite bounds, and a step other than 0",
        f"{first}, {last}, {step}",
    )
    is_whole = all(
        float(each).is_integer() and not isinstance(each, float) for each in (first, last, step)
    )
    wanted = canonical(dtype) if dtype is not None else int64 if is_whole else float32
    count = max(math.ceil((last - first) / step), 0)
    ends = (first, first + (count - 1) * step) if count else ()
    if any(side_of_range(int(each), wanted) for each in ends):
        raise ConfigError.build(
            "op.arange",
            expected=f"numbers that {wanted} can hold",
            got=" to ".join(map(str, ends)),
        )
    # Positions are exact: added up in few digits, many steps would drift.
    exact = int64 if is_whole else float64
    steps = e.mul(_positions(count, exact), base.full((), step, exact))
    return Expr(base.cast(e.add(steps, base.full((), first, exact)), wanted))


def linspace(
    start: float, stop: float, count: int, *, endpoint: bool = True, dtype: Any = "float32"
) -> Expr:
    """Return `count` numbers at equal distances, from `start` to `stop` (or before it).

    >>> from caldera import op
    >>> op.linspace(0, 1, 5).tolist(), op.linspace(0, 1, 4, endpoint=False).tolist()
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.75])
    """
    first, last = (as_number(each, "a bound", "linspace") for each in (start, stop))
    (length,) = as_shape((count,), "op.linspace count")
    parts = max(length - 1 if endpoint else length, 1)
    positions = _positions(length, float64)
    # From the nearer end, so that both ends are exact.
    share = base.full((), (last - first) / parts, float64)
    left = e.mul(positions, share)
    right = e.mul(e.sub(base.full((), parts, float64), positions), share)
    line = e.where(
        e.less(positions, base.full((), parts / 2, float64)),
        e.add(base.full((), first, float64), left),
        e.sub(base.full((), last, float64), right),
    )
    return Expr(base.cast(line, canonical(dtype)))


def eye(rows: int, columns: int | None = None, k: int = 0, *, dtype: Any = "float32") -> Expr:
    """Return a matrix with 1 on a diagonal (`k` above the main one) and 0 elsewhere.

    >>> from caldera import op
    >>> op.eye(2, 3, 1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    shape = as_shape((rows, rows if columns is None else columns), "op.eye")
    down, across = (iota(shape=shape, axis=axis, dtype=int64) for axis in (0, 1))
    is_on = e.equal(e.add(down, base.full((), int(as_number(k, "k", "eye")), int64)), across)
    return Expr(base.cast(is_on, canonical(dtype)))


def _positions(count: int, dtype: DType) -> Node:
    return iota(shape=(count,), axis=0, dtype=dtype)
