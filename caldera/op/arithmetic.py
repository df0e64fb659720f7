"""Elementwise arithmetic, and complex numbers with their parts.

The functions have the meaning of the operators `+ - * / ** // %`. Operands broadcast as in NumPy
and are converted to their common dtype; Python numbers take the dtype of the array operand. The
imaginary part of real numbers is 0.
"""

from __future__ import annotations

from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, binary, divide, lift, lift_all, power
from caldera.core.graph.ops import base, elementwise, movement, special
from caldera.core.tensor import broadcast_shapes, complex_of, is_complex, part_of
from caldera.op.arguments import float_function

__all__ = [
    "add",
    "angle",
    "clip",
    "complex",
    "conj",
    "copysign",
    "div",
    "floor_div",
    "imag",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "neg",
    "positive",
    "pow",
    "real",
    "sub",
    "view_as_complex",
    "view_as_real",
]


def add(a: Any, b: Any) -> Expr:
    """Return the sum, as `a + b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.add(cd.tensor([1.0, 2.0]), 10).tolist()
    [11.0, 12.0]
    """
    return binary(elementwise.add, a, b)


def sub(a: Any, b: Any) -> Expr:
    """Return the difference, as `a - b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sub(cd.tensor([[1.0], [2.0]]), cd.tensor([0.5, 1.0])).tolist()
    [[0.5, 0.0], [1.5, 1.0]]
    """
    return binary(elementwise.sub, a, b)


def mul(a: Any, b: Any) -> Expr:
    """Return the product element by element, as `a * b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mul(cd.tensor([1.0, 2.0]), cd.tensor([3.0, 4.0])).tolist()
    [3.0, 8.0]
    """
    return binary(elementwise.mul, a, b)


def div(a: Any, b: Any) -> Expr:
    """Return the quotient, as `a / b`; quotients of integers are computed in float32.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.div(cd.tensor([1, 3]), 2).tolist()
    [0.5, 1.5]
    """
    return divide(a, b)


def pow(a: Any, b: Any) -> Expr:
    """Return `a` to the power of `b`, as `a ** b`.

    The derivative of `a ** 0` is 0 everywhere, and so is the derivative of `0 ** b` with respect to
    `b`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.pow(cd.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [1.0, 4.0, 9.0]
    """
    return power(a, b)


def floor_div(a: Any, b: Any) -> Expr:
    """Return the quotient rounded down, as `a // b`; its derivative is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.floor_div(cd.tensor([7, -7]), 2).tolist()
    [3, -4]
    """
    return binary(elementwise.floor_div, a, b)


def mod(a: Any, b: Any) -> Expr:
    """Return the remainder of the quotient rounded down, as `a % b`: it has the sign of `b`.

    Its derivative is 1 with respect to `a` and `-(a // b)` with respect to `b`, at the jumps too.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mod(cd.tensor([7.5, -7.5]), 2).tolist()
    [1.5, 0.5]
    """
    return binary(elementwise.mod, a, b)


def neg(x: Any) -> Expr:
    """Return the negative, as `-x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.neg(cd.tensor([1.0, -2.0])).tolist()
    [-1.0, 2.0]
    """
    return Expr(elementwise.neg(lift(x)))


def positive(x: Any) -> Expr:
    """Return the number itself, as `+x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.positive(cd.tensor([1.0, -2.0])).tolist()
    [1.0, -2.0]
    """
    return Expr(lift(x))


def copysign(a: Any, b: Any) -> Expr:
    """Return the magnitude of `a` with the sign of `b`, including the sign of a zero or a nan.

    The derivative with respect to `a` is 1 or -1, 0 at 0, and the one with respect to `b` is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.copysign(cd.tensor([1.0, -2.0]), cd.tensor([-0.0, 5.0])).tolist()
    [-1.0, 2.0]
    """
    return float_function(elementwise.copysign, a, b)


def maximum(a: Any, b: Any) -> Expr:
    """Return the larger of two, element by element; equal ones share the derivative equally.

    A nan on either side results in nan, and has no derivative.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.maximum(cd.tensor([1.0, 5.0]), 3.0).tolist()
    [3.0, 5.0]
    """
    return binary(elementwise.maximum, a, b)


def minimum(a: Any, b: Any) -> Expr:
    """Return the smaller of two, element by element; equal ones share the derivative equally.

    A nan on either side results in nan, and has no derivative.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.minimum(cd.tensor([1.0, 5.0]), 3.0).tolist()
    [1.0, 3.0]
    """
    return binary(elementwise.minimum, a, b)


def clip(x: Any, low: Any = None, high: Any = None) -> Expr:
    """Limit `x` to at least `low` and at most `high`; None leaves that side open.

    It is `minimum(maximum(x, low), high)`: the derivative is 1 between the bounds, 0 outside and
    one half on them.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.clip(cd.tensor([-2.0, 0.5, 7.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    require(low is not None or high is not None, "op.clip", "low, high or both", "neither")
    result = x
    if low is not None:
        result = maximum(result, low)
    if high is not None:
        result = minimum(result, high)
    return Expr(lift(result))


def complex(real: Any, imag: Any) -> Expr:
    """Return complex numbers with these parts: complex128 if either is float64, else complex64.

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
    """Return the real part.

    >>> from caldera import op
    >>> op.real([1.0 + 2.0j, 3.0j]).tolist()
    [1.0, 0.0]
    """
    return Expr(base.real(lift(x)))


def imag(x: Any) -> Expr:
    """Return the imaginary part.

    >>> from caldera import op
    >>> op.imag([1.0 + 2.0j, 3.0j]).tolist()
    [2.0, 3.0]
    """
    return Expr(base.imag(lift(x)))


def conj(x: Any) -> Expr:
    """Return the complex conjugate: the imaginary part with its sign reversed.

    >>> from caldera import op
    >>> op.conj([1.0 + 2.0j]).tolist()
    [(1-2j)]
    """
    return Expr(base.conj(lift(x)))


def angle(x: Any) -> Expr:
    """Return the angle to the positive real axis, from -pi to pi; its derivative at 0 is 0.

    >>> from caldera import op
    >>> [round(each, 4) for each in op.angle([1.0j, -1.0, 1.0 + 1.0j]).tolist()]
    [1.5708, 3.1416, 0.7854]
    """
    node = as_float(lift(x))
    return Expr(special.atan2(base.imag(node), base.real(node)))


def view_as_real(x: Any) -> Expr:
    """Return complex numbers as pairs (real, imaginary) on a new last axis of length 2.

    >>> from caldera import op
    >>> op.view_as_real([1.0 + 2.0j, 3.0j]).tolist()
    [[1.0, 2.0], [0.0, 3.0]]
    """
    return Expr(movement.view_as_real(lift(x)))


def view_as_complex(x: Any) -> Expr:
    """Return pairs (real, imaginary) on a last axis of length 2 as complex numbers.

    >>> from caldera import op
    >>> op.view_as_complex([[1.0, 2.0], [0.0, 3.0]]).tolist()
    [(1+2j), 3j]
    """
    return Expr(movement.view_as_complex(as_float(lift(x))))
