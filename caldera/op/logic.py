"""Comparison, logic, and tests of numbers: truth values (bool), which have no derivative."""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, binary, compare, lift, lift_all
from caldera.core.graph.ops import base, elementwise
from caldera.core.tensor import is_complex
from caldera.op.arguments import as_number

__all__ = [
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
    "where",
]


def equal(a: Any, b: Any) -> Expr:
    """Whether two are equal, as `a == b`; nan equals nothing.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.equal(cd.tensor([1.0, 2.0]), 2.0).tolist()
    [False, True]
    """
    return compare(elementwise.equal, a, b)


def not_equal(a: Any, b: Any) -> Expr:
    """Whether two differ, as `a != b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.not_equal(cd.tensor([1.0, 2.0]), 2.0).tolist()
    [True, False]
    """
    return compare(elementwise.not_equal, a, b)


def less(a: Any, b: Any) -> Expr:
    """Whether the first is smaller, as `a < b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.less(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [True, False, False]
    """
    return compare(elementwise.less, a, b)


def less_equal(a: Any, b: Any) -> Expr:
    """Whether the first is smaller or equal, as `a <= b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.less_equal(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [True, True, False]
    """
    return compare(elementwise.less_equal, a, b)


def greater(a: Any, b: Any) -> Expr:
    """Whether the first is larger, as `a > b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.greater(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [False, False, True]
    """
    return compare(elementwise.greater, a, b)


def greater_equal(a: Any, b: Any) -> Expr:
    """Whether the first is larger or equal, as `a >= b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.greater_equal(cd.tensor([1.0, 2.0, 3.0]), 2.0).tolist()
    [False, True, True]
    """
    return compare(elementwise.greater_equal, a, b)


def logical_and(a: Any, b: Any) -> Expr:
    """Whether both are true, as `a & b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.logical_and(x > 1.0, x < 3.0).tolist()
    [False, True, False]
    """
    return binary(elementwise.logical_and, a, b)


def logical_or(a: Any, b: Any) -> Expr:
    """Whether one or both are true, as `a | b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([1.0, 2.0, 3.0])
    >>> op.logical_or(x < 2.0, x > 2.0).tolist()
    [True, False, True]
    """
    return binary(elementwise.logical_or, a, b)


def logical_xor(a: Any, b: Any) -> Expr:
    """Whether exactly one is true, as `a ^ b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logical_xor(cd.tensor([True, True, False]), True).tolist()
    [False, False, True]
    """
    return binary(elementwise.logical_xor, a, b)


def logical_not(x: Any) -> Expr:
    """Whether it is false, as `~x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logical_not(cd.tensor([True, False])).tolist()
    [False, True]
    """
    return Expr(elementwise.logical_not(lift(x)))


def isfinite(x: Any) -> Expr:
    """Whether it is neither infinite nor nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.isfinite(cd.tensor([1.0, float("inf"), float("nan")])).tolist()
    [True, False, False]
    """
    return Expr(elementwise.isfinite(lift(x)))


def isnan(x: Any) -> Expr:
    """Whether it is nan.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.isnan(cd.tensor([1.0, float("inf"), float("nan")])).tolist()
    [False, False, True]
    """
    return Expr(elementwise.isnan(lift(x)))


def isinf(x: Any) -> Expr:
    """Whether it is infinite, on either side.

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
    """Whether |a - b| <= atol + rtol |b|, as NumPy has it: an infinity is close to itself alone.

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
    """`a` where the condition is true and `b` elsewhere; the derivative goes the same way.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([-1.0, 2.0])
    >>> op.where(x > 0.0, x, 0.0).tolist()
    [0.0, 2.0]
    """
    return Expr(elementwise.where(lift(condition), *lift_all(a, b)))
