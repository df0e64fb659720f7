"""Arithmetic, element by element, as the operators `+ - * / ** // %` mean it.

Operands broadcast as in NumPy and meet in the dtype they share; Python numbers take that of the
other operand.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, binary, divide, lift, power
from caldera.core.graph.ops import elementwise
from caldera.errors import ConfigError


def add(a: Any, b: Any) -> Expr:
    """The sum, as `a + b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.add(cd.tensor([1.0, 2.0]), 10).tolist()
    [11.0, 12.0]
    """
    return binary(elementwise.add, a, b)


def sub(a: Any, b: Any) -> Expr:
    """The difference, as `a - b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sub(cd.tensor([[1.0], [2.0]]), cd.tensor([0.5, 1.0])).tolist()
    [[0.5, 0.0], [1.5, 1.0]]
    """
    return binary(elementwise.sub, a, b)


def mul(a: Any, b: Any) -> Expr:
    """The product element by element, as `a * b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mul(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).tolist()
    [3.0, 8.0]
    """
    return binary(elementwise.mul, a, b)


def div(a: Any, b: Any) -> Expr:
    """The quotient, as `a / b`; that of integers is computed in float32.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.div(cd.tensor([1, 3]), 2).tolist()
    [0.5, 1.5]
    """
    return divide(a, b)


def pow(a: Any, b: Any) -> Expr:
    """`a` to the power of `b`, as `a ** b`.

    The derivative of `a ** 0` is 0 everywhere, and so is that of `0 ** b` with respect to `b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.pow(cd.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 4.0, 9.0]
    """
    return power(a, b)


def floor_div(a: Any, b: Any) -> Expr:
    """The quotient rounded down, as `a // b`; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.floor_div(cd.tensor([7, -7]), 2).tolist()
    [3, -4]
    """
    return binary(elementwise.floor_div, a, b)


def mod(a: Any, b: Any) -> Expr:
    """The remainder of the quotient rounded down, as `a % b`: it has the sign of `b`.

    Its derivative is 1 with respect to `a` and `-(a // b)` with respect to `b`, at the jumps too.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mod(cd.tensor([7.5, -7.5]), 2).tolist()
    [1.5, 0.5]
    """
    return binary(elementwise.mod, a, b)


def neg(x: Any) -> Expr:
    """The negative, as `-x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.neg(cd.tensor([1.0, -2.0])).tolist()
    [-1.0, 2.0]
    """
    return Expr(elementwise.neg(lift(x)))


def maximum(a: Any, b: Any) -> Expr:
    """The larger of two, element by element; equal ones share the derivative half and half.

    A nan on either side gives nan, and no derivative.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.maximum(cd.tensor([1.0, 5.0]), 3.0).tolist()
    [3.0, 5.0]
    """
    return binary(elementwise.maximum, a, b)


def minimum(a: Any, b: Any) -> Expr:
    """The smaller of two, element by element; equal ones share the derivative half and half.

    A nan on either side gives nan, and no derivative.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.minimum(cd.tensor([1.0, 5.0]), 3.0).tolist()
    [1.0, 3.0]
    """
    return binary(elementwise.minimum, a, b)


def clip(x: Any, low: Any = None, high: Any = None) -> Expr:
    """`x`, but at least `low` and at most `high`; None leaves that side open.

    It is `minimum(maximum(x, low), high)`: the derivative is 1 between the bounds, 0 outside and
    one half on them.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.clip(cd.tensor([-2.0, 0.5, 7.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if low is None and high is None:
        raise ConfigError.build("op.clip", expected="low, high or both", got="neither")
    result = x
    if low is not None:
        result = maximum(result, low)
    if high is not None:
        result = minimum(result, high)
    return Expr(lift(result))
