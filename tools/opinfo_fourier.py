"""PyTorch's `fft` written with Caldera's operations, as in `tools/opinfo_forms.py`.

Complex results are pairs on a last axis. PyTorch's samples here are real; they become pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from caldera import op


def complex_pair(x: Any) -> Any:
    """A real signal as pairs."""
    return op.stack([x, op.zeros(x.shape, str(x.dtype))], -1)


def fitted(x: Any, n: Any, dim: int) -> Any:
    """A signal cut to n, or with zeros behind it; `dim` does not count an axis of pairs."""
    if n is None or n == x.shape[dim]:
        return x
    if n < x.shape[dim]:
        return op.moveaxis(op.moveaxis(x, dim, 0)[:n], 0, dim)
    widths = [(0, 0)] * x.ndim
    widths[dim] = (0, n - x.shape[dim])
    return op.pad(x, widths)


def fourier(function: Callable[..., Any], kind: str, default: int | None) -> Callable[..., Any]:
    """A transform along some axes: `default` is how many, from the end, None for all.

    The `kind` is "complex", "real" (a real signal) or "back" (to a real signal); `function` works
    along the last of the axes, complex transforms along the others.
    """
    inverse = kind == "back" or function is op.ifft
    other = op.ifft if inverse else op.fft

    def transform(
        x: Any, n: Any = None, dim: Any = None, norm: Any = None, *, s: Any = None
    ) -> Any:
        n = s if s is not None else n
        lengths = None if n is None else [n] if isinstance(n, int) else list(n)
        if dim is None:
            count = len(lengths) if lengths else (default or x.ndim)
            dim = -1 if default == 1 else list(range(-count, 0))
        along = [each % x.ndim for each in ([dim] if isinstance(dim, int) else dim)]
        lengths = lengths or [None] * len(along)
        total = 1
        last, cut = along[-1], lengths[-1]
        if kind == "back":
            cut = 2 * (x.shape[last] - 1) if cut is None else cut
            x = fitted(x, cut // 2 + 1, last)
        for axis, length in zip(along, lengths, strict=True):
            if axis != last or kind != "back":
                x = fitted(x, length, axis)
            total *= cut if axis == last and kind == "back" else x.shape[axis]
        y = function(x, last) if kind == "real" else complex_pair(x)
        for axis in along[:-1]:
            y = other(y, axis)
        if kind == "complex":
            y = function(y, last)
        elif kind == "back":
            y = op.irfft(y, cut, last)
        factor = {"forward": (1 / total, total), "ortho": (1 / math.sqrt(total), math.sqrt(total))}
        return op.mul(y, factor[norm][int(inverse)]) if norm in factor else y

    return transform


FOURIER: dict[str, Callable[..., Any]] = {
    f"fft.{name}{suffix}": fourier(function, kind, default)
    for suffix, default in (("", 1), ("2", 2), ("n", None))
    for name, function, kind in (
        ("fft", op.fft, "complex"), ("ifft", op.ifft, "complex"),
        ("rfft", op.rfft, "real"), ("irfft", op.irfft, "back"),
    )
}  # fmt: skip
