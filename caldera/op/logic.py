"""Comparison, logic, tests of numbers, and bits of integers, all without derivatives.

Comparison, logic and tests return truth values (bool). The functions `bitwise_...` have the meaning
of the operators `& | ^ ~ << >>`. A shift by a negative number of bits, or by all bits of the dtype
or more, shifts out all bits, as in NumPy.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, binary, compare, lift, lift_all
from caldera.core.graph.ops import base, elementwise
from caldera.core.tensor import is_complex, is_inexact
from caldera.op.arguments import as_number

__all__ = [
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "equal",
    "greater",
    "greater_equal",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "not_equal",
    "signbit",
    "where",
]


def equal(a: Any, b: Any) -> Expr:
    """Return True where two are equal, as `a == b`; nan is not equal to any number.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.equal(cd.tensor([1.0, 2.0]), 2.0).tolist()
    [False, True]
    """
    return compare(elementwise.equal, a, b)


def not_equal(a: Any, b: Any) -> Expr:
    """Return True where `a` and `b` differ, as `a != b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.not_equal(cd.tensor([1.0, 2.0]), 2.0).tolist()
    [True, False]
    """
    return compare(elementwise.not_equal, a, b)


def less(a: Any, b: Any) -> Expr:
    """Return True where the first is smaller, as `a < b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.less(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [True, False, False]
    """
    return compare(elementwise.less, a, b)


def less_equal(a: Any, b: Any) -> Expr:
    """Return True where the first is smaller or equal, as `a <= b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.less_equal(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [True, True, False]
    """
    return compare(elementwise.less_equal, a, b)


def greater(a: Any, b: Any) -> Expr:
    """Return True where the first is larger, as `a > b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.greater(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [False, False, True]
    """
    return compare(elementwise.greater, a, b)


def greater_equal(a: Any, b: Any) -> Expr:
    """Return True where the first is larger or equal, as `a >= b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.greater_equal(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [False, True, True]
    """
    return compare(elementwise.greater_equal, a, b)


def logical_and(a: Any, b: Any) -> Expr:
    """Return True where both are true, as `a & b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.logical_and(x > 1.0, x < 3.0).tolist()
    [False, True, False]
    """
    return binary(elementwise.logical_and, a, b)


def logical_or(a: Any, b: Any) -> Expr:
    """Return True where one or both are true, as `a | b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.logical_or(x < 2.0, x > 2.0).tolist()
    [True, False, True]
    """
    return binary(elementwise.logical_or, a, b)


def logical_xor(a: Any, b: Any) -> Expr:
    """Return True where exactly one is true, as `a ^ b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logical_xor(cd.tensor([True, True, False]), True).tolist()
    [False, False, True]
    """
    return binary(elementwise.logical_xor, a, b)


def logical_not(x: Any) -> Expr:
    """Return True where `x` is false, as `~x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logical_not(cd.tensor([True, False])).tolist()
    [False, True]
    """
    return Expr(elementwise.logical_not(lift(x)))


def bitwise_and(a: Any, b: Any) -> Expr:
    """Return the bits that are 1 in both, as `a & b`; of truth values, True where both are.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_and(cd.tensor([12, 10]), 6).tolist()
    [4, 2]
    """
    return binary(elementwise.and_, a, b)


def bitwise_or(a: Any, b: Any) -> Expr:
    """Return the bits that are 1 in either, as `a | b`; of truth values, True where either is.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_or(cd.tensor([12, 10]), 6).tolist()
    [14, 14]
    """
    return binary(elementwise.or_, a, b)


def bitwise_xor(a: Any, b: Any) -> Expr:
    """Return the bits that are 1 in exactly one, as `a ^ b`; of truth values, True if they differ.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_xor(cd.tensor([12, 10]), 6).tolist()
    [10, 12]
    """
    return binary(elementwise.xor, a, b)


def bitwise_invert(x: Any) -> Expr:
    """Return the bitwise complement of integers or the negation of booleans, as `~x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_invert(cd.tensor([0, 5])).tolist()
    [-1, -6]
    """
    return Expr(elementwise.invert(lift(x)))


def bitwise_left_shift(a: Any, b: Any) -> Expr:
    """Shift the bits of `a` to the left by `b` places, as `a << b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_left_shift(cd.tensor([1, -3]), cd.tensor([4, 1])).tolist()
    [16, -6]
    """
    return binary(elementwise.bitwise_left_shift, a, b)


def bitwise_right_shift(a: Any, b: Any) -> Expr:
    """Shift the bits of `a` to the right by `b` places, as `a >> b`; the sign stays.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.bitwise_right_shift(cd.tensor([17, -3]), 1).tolist()
    [8, -2]
    """
    return binary(elementwise.bitwise_right_shift, a, b)


def signbit(x: Any) -> Expr:
    """Return True where the sign is negative, including the sign of a zero or a nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.signbit(cd.tensor([1.0, 0.0, -0.0])).tolist()
    [False, False, True]
    """
    node = lift(x)
    if is_inexact(node.dtype):
        node = elementwise.copysign(elementwise.scalar(1, node), node)
    return Expr(elementwise.less(node, elementwise.scalar(0, node)))


def isfinite(x: Any) -> Expr:
    """Return True where `x` is neither infinite nor nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.isfinite(cd.tensor([1.0, float("inf"), float("nan")])).tolist()
    [True, False, False]
    """
    return Expr(elementwise.isfinite(lift(x)))


def isnan(x: Any) -> Expr:
    """Return True where `x` is nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.isnan(cd.tensor([1.0, float("inf"), float("nan")])).tolist()
    [False, False, True]
    """
    return Expr(elementwise.isnan(lift(x)))


def isinf(x: Any) -> Expr:
    """Return True where `x` is positive or negative infinity.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.isinf(cd.tensor([1.0, float("-inf"), float("nan")])).tolist()
    [False, True, False]
    """
    node = lift(x)
    if is_complex(node.dtype):
        return isinf(Expr(base.real(node))) | isinf(Expr(base.imag(node)))
    other = elementwise.logical_or(elementwise.isfinite(node), elementwise.isnan(node))
    return Expr(elementwise.logical_not(other))


def isclose(
    a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Expr:
    """Return True where |a - b| <= atol + rtol |b|, as in NumPy.

    An infinity is close only to itself.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 1.1, float("inf")])
    >>> op.isclose(x, 1.0).tolist(), op.isclose(x, x).tolist()
    ([True, False, False], [True, True, True])
    """
    left, right = (as_float(each) for each in lift_all(a, b))
    beside = elementwise.abs_(right)
    relative, absolute = (
        elementwise.scalar(as_number(value, name, "isclose"), beside)
        for value, name in ((rtol, "rtol"), (atol, "atol"))
    )
    bound = elementwise.add(absolute, elementwise.mul(relative, beside))
    near = elementwise.less_equal(elementwise.abs_(elementwise.sub(left, right)), bound)
    near = elementwise.logical_and(near, elementwise.isfinite(right))
    near = elementwise.logical_or(near, elementwise.equal(left, right))
    if equal_nan:
        both = elementwise.logical_and(elementwise.isnan(left), elementwise.isnan(right))
        near = elementwise.logical_or(near, both)
    return Expr(near)


def where(condition: Any, a: Any, b: Any) -> Expr:
    """Choose `a` where the condition is true and `b` elsewhere; the derivative goes the same way.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([-1.0, 2.0])
    >>> op.where(x > 0.0, x, 0.0).tolist()
    [0.0, 2.0]
    """
    return Expr(elementwise.where(lift(condition), *lift_all(a, b)))
