"""Fourier transforms, as in `numpy.fft`: of real or complex signals, with complex frequencies.

`n` truncates a signal or pads it with zeros. `norm` is the direction that divides: "backward" (the
inverse transforms divide by n), "forward" (the forward transforms do) or "ortho" (both divide by
the root of n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node
from caldera.core.graph.ops import (
    cast,
    constant,
    fourier,
    mul,
    narrow,
    pad,
    view_as_complex,
    view_as_real,
)
from caldera.core.tensor import as_shape, complex_of, normalise_axes, normalise_axis, part_of

__all__ = ["fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "irfft", "irfft2", "rfft", "rfft2"]

Norm = Literal["backward", "ortho", "forward"]
Axes = Sequence[int] | None


def fft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Expr:
    """Return the discrete Fourier transform along an axis.

    >>> from caldera import op
    >>> op.fft([1.0, 2.0, 2.0, 0.0]).tolist()
    [(5+0j), (-1-2j), (1+0j), (-1+2j)]
    """
    return _complex_to_complex("op.fft", x, n, axis, norm, inverse=False)


def ifft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Expr:
    """Return the inverse of `op.fft`: a complex signal from its frequencies.

    >>> from caldera import op
    >>> op.ifft([3.0, -1.0, 3.0, -1.0]).tolist()
    [(1+0j), 0j, (2+0j), 0j]
    """
    return _complex_to_complex("op.ifft", x, n, axis, norm, inverse=True)


def rfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Expr:
    """Return the frequencies 0 to n // 2 of a real signal; the rest are their conjugates.

    >>> from caldera import op
    >>> op.rfft([1.0, 0.0, 2.0, 0.0]).tolist()
    [(3+0j), (-1+0j), (3+0j)]
    """
    node, position = _signal("op.rfft", _real(x), n, axis)
    return _finished(fourier.rfft(node, axis=position), node.shape[position], norm, inverse=False)


def irfft(x: Any, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Expr:
    """Return the inverse of `op.rfft`: a real signal of length `n` from its n // 2 + 1 frequencies.

    `n` is even if not given: twice the number of frequencies less one. The imaginary parts of
    frequency 0 and, for even n, of the last one are ignored.

    >>> from caldera import op
    >>> op.irfft([3.0, -1.0, 3.0]).tolist()
    [1.0, 0.0, 2.0, 0.0]
    """
    return Expr(_complex_to_real("op.irfft", _complex(x), n, axis, norm))


def fftn(x: Any, axes: Axes = None, norm: Norm = "backward") -> Expr:
    """Return the transform of `op.fft` along several axes, by default all axes.

    >>> from caldera import op
    >>> op.fftn([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    return _along("op.fftn", x, axes, norm, inverse=False)


def ifftn(x: Any, axes: Axes = None, norm: Norm = "backward") -> Expr:
    """Return the inverse of `op.fftn`.

    >>> from caldera import op
    >>> op.ifftn([[10.0, -2.0], [-4.0, 0.0]]).tolist()
    [[(1+0j), (2+0j)], [(3+0j), (4+0j)]]
    """
    return _along("op.ifftn", x, axes, norm, inverse=True)


def fft2(x: Any, norm: Norm = "backward") -> Expr:
    """Return the transform of `op.fft` along the last two axes.

    >>> from caldera import op
    >>> op.fft2([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    return _along("op.fft2", x, (-2, -1), norm, inverse=False)


def ifft2(x: Any, norm: Norm = "backward") -> Expr:
    """Return the inverse of `op.fft2`.

    >>> from caldera import op
    >>> op.ifft2([[10.0, -2.0], [-4.0, 0.0]]).tolist()
    [[(1+0j), (2+0j)], [(3+0j), (4+0j)]]
    """
    return _along("op.ifft2", x, (-2, -1), norm, inverse=True)


def rfft2(x: Any, norm: Norm = "backward") -> Expr:
    """Return the frequencies of real images (..., m, n), as (..., m, n // 2 + 1).

    >>> from caldera import op
    >>> op.rfft2([[1.0, 2.0], [3.0, 4.0]]).tolist()
    [[(10+0j), (-2+0j)], [(-4+0j), 0j]]
    """
    node = _real(x)
    rows, columns = normalise_axes((-2, -1), len(node.shape), "op.rfft2")
    half = fourier.rfft(node, axis=columns)
    pairs = fourier.fft(half, axis=rows, inverse=False)
    return _finished(pairs, node.shape[rows] * node.shape[columns], norm, inverse=False)


def irfft2(x: Any, n: int | None = None, norm: Norm = "backward") -> Expr:
    """Return the inverse of `op.rfft2`.

    `n` is the length of the images' last axis, even if not given.

    >>> from caldera import op
    >>> op.irfft2([[10.0, -2.0], [-4.0, 0.0]]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    columns = _along("op.irfft2", x, (-2,), norm, inverse=True).node
    normalise_axis(-2, len(columns.shape), "op.irfft2")
    return Expr(_complex_to_real("op.irfft2", columns, n, -1, norm))


# --- from what is given to pairs, and back


def _real(x: Any) -> Node:
    """Convert to the dtype of real transforms; complex numbers raise an error."""
    node = as_float(lift(x))
    return cast(node, part_of(complex_of(node.dtype))) if node.dtype.kind != "c" else node


def _complex(x: Any) -> Node:
    node = as_float(lift(x))
    return cast(node, complex_of(node.dtype))


def _signal(where: str, node: Node, n: int | None, axis: int) -> tuple[Node, int]:
    """Return the signal with a length of `n` along `axis`, and that axis from the front."""
    position = normalise_axis(axis, len(node.shape), where)
    if n is None:
        return node, position
    (length,) = as_shape((n,), f"{where} n")
    kept = narrow(node, position, 0, min(length, node.shape[position]))
    widths = [(0, 0)] * len(node.shape)
    widths[position] = (0, length - kept.shape[position])
    return pad(kept, tuple(widths)), position


def _complex_to_complex(
    where: str, x: Any, n: int | None, axis: int, norm: Norm, *, inverse: bool
) -> Expr:
    node, position = _signal(where, as_float(lift(x)), n, axis)
    pairs = _transformed(node, (position,), inverse=inverse)
    return _finished(pairs, node.shape[position], norm, inverse=inverse)


def _along(where: str, x: Any, axes: Axes, norm: Norm, *, inverse: bool) -> Expr:
    node = as_float(lift(x))
    positions = normalise_axes(axes, len(node.shape), where)
    count = math.prod(node.shape[position] for position in positions)
    pairs = _transformed(node, positions, inverse=inverse)
    return _finished(pairs, count, norm, inverse=inverse)


def _transformed(node: Node, axes: tuple[int, ...], *, inverse: bool) -> Node:
    """Transform the last axis first, as in NumPy: it is whole if rows are partitioned over ranks.

    Real signals have half of the work, and ranks half of the bytes: the remaining frequencies
    follow.
    """
    if not axes:
        return view_as_real(cast(node, complex_of(node.dtype)))
    *before, last = axes
    is_real = node.dtype.kind != "c" and not inverse and node.shape[last] > 0
    if is_real:
        pairs = fourier.rfft(cast(node, part_of(complex_of(node.dtype))), axis=last)
    else:
        pairs = view_as_real(cast(node, complex_of(node.dtype)))
        pairs = fourier.fft(pairs, axis=last, inverse=inverse)
    for axis in reversed(before):
        pairs = fourier.fft(pairs, axis=axis, inverse=inverse)
    if not is_real:
        return pairs
    return fourier.all_frequencies(pairs, last, node.shape[last], tuple(before))


def _complex_to_real(where: str, node: Node, n: int | None, axis: int, norm: Norm) -> Node:
    position = normalise_axis(axis, len(node.shape), where)
    (length,) = as_shape((2 * (node.shape[position] - 1) if n is None else n,), f"{where} n")
    half, _ = _signal(where, node, fourier.frequencies(length), position)
    signal = fourier.irfft(view_as_real(half), axis=position, n=length)
    return _scaled(signal, length, norm, inverse=True)


def _finished(pairs: Node, count: int, norm: Norm, *, inverse: bool) -> Expr:
    return Expr(view_as_complex(_scaled(pairs, count, norm, inverse=inverse)))


def _scaled(total: Node, count: int, norm: Norm, *, inverse: bool) -> Node:
    require(
        norm in ("backward", "ortho", "forward"),
        "op.fft",
        "norm= backward, ortho or forward",
        repr(norm),
    )
    power = 0.5 if norm == "ortho" else float((norm == "backward") == inverse)
    if not power:
        return total
    factor = 1 / count if power == 1 else 1 / math.sqrt(count)
    return mul(total, constant(factor, total.dtype))
