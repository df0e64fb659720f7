"""Complex numbers and their parts. Of real numbers the imaginary part is 0."""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift, lift_all
from caldera.core.graph.ops import base, movement, trigonometry
from caldera.core.tensor.dtype import complex_of, is_complex, part_of
from caldera.core.tensor.shape import broadcast_shapes


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
    return Expr(trigonometry.atan2(base.imag(node), base.real(node)))


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
