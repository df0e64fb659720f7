"""Fourier transforms. Complex numbers are pairs (real, imaginary) on a last axis of length 2.

Where a function takes `axis`, the axis of pairs does not count: -1 is the last axis of the signal.
The inverse transforms divide by n, the others by nothing, as in `numpy.fft`.
"""

from __future__ import annotations

from typing import Any

from caldera.errors import ShapeError
from caldera.graph.node import Node, describe
from caldera.graph.ops import fourier
from caldera.graph.ops.elementwise import mul
from caldera.graph.ops.leaf import constant
from caldera.lazy import Expr, as_float, lift, lift_all
from caldera.tensor.shape import as_shape, normalise_axis


def fft(x: Any, axis: int = -1) -> Expr:
    """The discrete Fourier transform of a complex signal of shape (..., n, 2).

    >>> from caldera import op
    >>> op.fft([[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 0.0]]).tolist()
    [[3.0, 0.0], [-1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]]
    """
    return Expr(_forward(as_float(lift(x)), axis, "op.fft"))


def ifft(x: Any, axis: int = -1) -> Expr:
    """The inverse of `op.fft`: a complex signal from its n frequencies.

    >>> from caldera import op
    >>> op.ifft([[3.0, 0.0], [-1.0, 0.0], [3.0, 0.0], [-1.0, 0.0]]).tolist()
    [[1.0, 0.0], [0.0, 0.0], [2.0, 0.0], [0.0, 0.0]]
    """
    return Expr(_inverse(as_float(lift(x)), axis, "op.ifft"))


def rfft(x: Any, axis: int = -1) -> Expr:
    """The frequencies 0 to n // 2 of a real signal of shape (..., n), as (..., n // 2 + 1, 2).

    >>> from caldera import op
    >>> op.rfft([1.0, 0.0, 2.0, 0.0]).tolist()
    [[3.0, 0.0], [-1.0, 0.0], [3.0, 0.0]]
    """
    node = as_float(lift(x))
    return Expr(fourier.rfft(node, axis=normalise_axis(axis, len(node.shape), "op.rfft")))


def irfft(x: Any, n: int | None = None, axis: int = -1) -> Expr:
    """The inverse of `op.rfft`: a real signal of length `n` from its n // 2 + 1 frequencies.

    `n` is even if not given: twice the number of frequencies less one.

    >>> from caldera import op
    >>> op.irfft([[3.0, 0.0], [-1.0, 0.0], [3.0, 0.0]]).tolist()
    [1.0, 0.0, 2.0, 0.0]
    """
    return Expr(_real_inverse(as_float(lift(x)), n, axis, "op.irfft"))


def fft2(x: Any) -> Expr:
    """The transform of `op.fft` over the last two axes of a complex signal (..., m, n, 2).

    >>> from caldera import op
    >>> op.fft2([[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [4.0, 0.0]]]).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    rows = _forward(as_float(lift(x)), -1, "op.fft2")
    return Expr(_forward(rows, -2, "op.fft2"))


def ifft2(x: Any) -> Expr:
    """The inverse of `op.fft2`.

    >>> from caldera import op
    >>> op.ifft2([[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]).tolist()
    [[[1.0, 0.0], [2.0, 0.0]], [[3.0, 0.0], [4.0, 0.0]]]
    """
    rows = _inverse(as_float(lift(x)), -1, "op.ifft2")
    return Expr(_inverse(rows, -2, "op.ifft2"))


def rfft2(x: Any) -> Expr:
    """The frequencies of real images (..., m, n), as (..., m, n // 2 + 1, 2).

    >>> from caldera import op
    >>> op.rfft2([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]
    """
    node = as_float(lift(x))
    rows = fourier.rfft(node, axis=normalise_axis(-1, len(node.shape), "op.rfft2"))
    return Expr(_forward(rows, -2, "op.rfft2"))


def irfft2(x: Any, n: int | None = None) -> Expr:
    """The inverse of `op.rfft2`; `n` is the length of the images' last axis, even if not given.

    >>> from caldera import op
    >>> op.irfft2([[[10.0, 0.0], [-2.0, 0.0]], [[-4.0, 0.0], [0.0, 0.0]]]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    columns = _inverse(as_float(lift(x)), -2, "op.irfft2")
    return Expr(_real_inverse(columns, n, -1, "op.irfft2"))


def complex_mul(a: Any, b: Any) -> Expr:
    """The product of complex numbers, each a pair (real, imaginary) on the last axis.

    >>> from caldera import op
    >>> op.complex_mul([1.0, 2.0], [3.0, 4.0]).tolist()
    [-5.0, 10.0]
    """
    first, second = lift_all(a, b)
    return Expr(fourier.complex_mul(as_float(first), as_float(second)))


def _signal_axis(node: Node, axis: int, where: str) -> int:
    if len(node.shape) < 2 or node.shape[-1] != 2:
        raise ShapeError.build(
            where, expected="complex numbers: shape (..., n, 2), the last axis (real, imaginary)",
            got=describe(node), hint="use op.rfft for a real signal, or stack the two parts",
        )  # fmt: skip
    return normalise_axis(axis, len(node.shape) - 1, where)


def _forward(node: Node, axis: int, where: str) -> Node:
    result: Node = fourier.fft(node, axis=_signal_axis(node, axis, where), inverse=False)
    return result


def _inverse(node: Node, axis: int, where: str) -> Node:
    position = _signal_axis(node, axis, where)
    total = fourier.fft(node, axis=position, inverse=True)
    return _divided(total, node.shape[position])


def _real_inverse(node: Node, n: int | None, axis: int, where: str) -> Node:
    position = _signal_axis(node, axis, where)
    (length,) = as_shape((2 * (node.shape[position] - 1) if n is None else n,), f"{where} n")
    return _divided(fourier.irfft(node, axis=position, n=length), length)


def _divided(total: Node, n: int) -> Node:
    result: Node = mul(total, constant(1 / n, total.dtype))
    return result
