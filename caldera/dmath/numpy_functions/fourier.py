"""Fourier transforms along the axes and in the lengths that NumPy names."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.dmath.numpy_functions.dispatch import Function, handles, register
from caldera.dmath.numpy_functions.reductions import axes_of

Lengths = list[tuple[int, int | None]]


def _plain(function: Function) -> Function:
    def run(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
        return function(a, n, index(axis), norm or "backward")

    return run


register(
    {
        np.fft.fft: _plain(op.fft),
        np.fft.ifft: _plain(op.ifft),
        np.fft.rfft: _plain(op.rfft),
    }
)
register({np.fft.irfft: _plain(op.irfft)}, size=2)

SWAPPED: dict[str, Any] = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
"""Norm of the inverse transform."""


@handles(np.fft.hfft, size=2)
def _(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
    return op.irfft(op.conj(a), n, index(axis), SWAPPED[norm or "backward"])


@handles(np.fft.ihfft)
def _(a: Any, n: Any = None, axis: Any = -1, norm: Any = None) -> Any:
    return op.conj(op.rfft(a, n, index(axis), SWAPPED[norm or "backward"]))


def _axes_and_lengths(a: Any, s: Any, axes: Any) -> Lengths:
    """Return the axes in order, each with a length or None."""
    if axes is None:
        axes = range(a.ndim) if s is None else range(-len(s), 0)
    lengths = [None] * len(axes) if s is None else [None if n in (-1, None) else n for n in s]
    return list(zip([index(axis) % a.ndim for axis in axes], lengths, strict=True))


def _whole(a: Any, along: Lengths, norm: Any, inverse: bool) -> Any:
    axes = [axis for axis, _ in along]
    if along and len(set(axes)) == len(axes) and all(n is None for _, n in along):
        return (op.ifftn if inverse else op.fftn)(a, axes, norm)
    for axis, n in reversed(along):
        a = (op.ifft if inverse else op.fft)(a, n, axis, norm)
    return a


def _several(inverse: bool, default: Any = None) -> Function:
    def run(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        return _whole(a, _axes_and_lengths(a, s, axes), norm or "backward", inverse)

    return run


def _half(default: Any = None) -> Function:
    def run(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        *others, (last, n) = _axes_and_lengths(a, s, axes)
        half = op.rfft(a, n, last, norm or "backward")
        return _whole(half, others, norm or "backward", False) if others else half

    return run


def _from_half(default: Any = None) -> Function:
    def run(a: Any, s: Any = None, axes: Any = default, norm: Any = None) -> Any:
        *others, (last, n) = _axes_and_lengths(a, s, axes)
        whole = _whole(a, others, norm or "backward", True) if others else a
        return op.irfft(whole, n, last, norm or "backward")

    return run


register(
    {
        np.fft.fft2: _several(False, (-2, -1)),
        np.fft.ifft2: _several(True, (-2, -1)),
        np.fft.fftn: _several(False),
        np.fft.ifftn: _several(True),
        np.fft.rfft2: _half((-2, -1)),
        np.fft.rfftn: _half(),
    }
)
register({np.fft.irfft2: _from_half((-2, -1)), np.fft.irfftn: _from_half()}, size=2)


def _shift(sign: int) -> Function:
    def run(x: Any, axes: Any = None) -> Any:
        along = axes_of(axes, x.ndim)
        shifts = [sign * (x.shape[axis] // 2) for axis in along]
        return op.roll(x, shifts, along) if along else x

    return run


register({np.fft.fftshift: _shift(1), np.fft.ifftshift: _shift(-1)})
