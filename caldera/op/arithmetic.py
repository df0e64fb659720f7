"""Elementwise arithmetic, comparison and logic, and complex numbers with their parts.

The functions have the meaning of the operators `+ - * / ** // %`. Operands broadcast as in NumPy
and are converted to their common dtype; Python numbers take the dtype of the other operand. The
imaginary part of real numbers is 0. Comparisons give truth values (bool), which have no derivative.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, binary, compare, divide, lift, lift_all, power
from caldera.core.graph.ops import base, elementwise, movement, special
from caldera.core.tensor.dtype import complex_of, is_complex, part_of
from caldera.core.tensor.shape import broadcast_shapes
from caldera.errors import ConfigError
from caldera.op.arguments import as_number


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


def complex(real: Any, imag: Any) -> Expr:
    """The numbers with these parts: complex128 if one of them is float64, else complex64.

    >>> from caldera import op
    >>> op.complex([1.0, 2.0], [0.0, -1.0]).tolist()
    [(1+0j), (2-1j)]
    """
    nodes = [as_float(each) for each in lift_all(real, imag)]
    shape = broadcast_shapes(*[node.shape for node in nodes])
    dtype = part_of(complex_of(nodes[0].dtype))
    # A complex part would be dropped half: the op refuses it.
    parts = [node if is_complex(node.dtype) else base.cast(node, dtype) for node in nodes]
    return Expr(base.complex_(*[base.broadcast_to(part, shape) for part in parts]))


def real(x: Any) -> Expr:
    """The real part.

    >>> from caldera import op
    >>> op.real([1.0 + 2.0j, 3.0j]).tolist()
    [1.0, 0.0]
    """
    return Expr(base.real(lift(x)))


def imag(x: Any) -> Expr:
    """The imaginary part.

    >>> from caldera import op
    >>> op.imag([1.0 + 2.0j, 3.0j]).tolist()
    [2.0, 3.0]
    """
    return Expr(base.imag(lift(x)))


def conj(x: Any) -> Expr:
    """The conjugate: the imaginary part with the other sign.

    >>> from caldera import op
    >>> op.conj([1.0 + 2.0j]).tolist()
    [(1-2j)]
    """
    return Expr(base.conj(lift(x)))


def angle(x: Any) -> Expr:
    """The angle to the positive real axis, from -pi to pi; its derivative at 0 is 0.

    >>> from caldera import op
    >>> [round(each, 4) for each in op.angle([1.0j, -1.0, 1.0 + 1.0j]).tolist()]
    [1.5708, 3.1416, 0.7854]
    """
    node = as_float(lift(x))
    return Expr(special.atan2(base.imag(node), base.real(node)))


def view_as_real(x: Any) -> Expr:
    """Complex numbers as pairs (real, imaginary) on a new last axis of length 2.

    >>> from caldera import op
    >>> op.view_as_real([1.0 + 2.0j, 3.0j]).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    return Expr(movement.view_as_real(lift(x)))


def view_as_complex(x: Any) -> Expr:
    """Pairs (real, imaginary) on a last axis of length 2 as complex numbers.

    >>> from caldera import op
    >>> op.view_as_complex([[1.0, 2.0], [0.0, 3.0]]).tolist()
    [(1+2j), 3j]
    """
    return Expr(movement.view_as_complex(as_float(lift(x))))


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
