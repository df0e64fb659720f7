"""PyTorch's `fft` and complex numbers written with Caldera's operations, as in
`tools/opinfo_forms.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from caldera import op


def fourier(function: Callable[..., Any], kind: str, default: int | None) -> Callable[..., Any]:
    """A transform along some axes: `default` is how many, from the end, None for all.

    The `kind` is "complex", "real" (a real signal) or "back" (to a real signal); `function` works
    along the last of the axes, complex transforms along the others.
    """
    other = op.ifft if kind == "back" or function is op.ifft else op.fft

    def transform(
        x: Any, n: Any = None, dim: Any = None, norm: Any = None, *, s: Any = None
    ) -> Any:
        n = s if s is not None else n
        lengths = None if n is None else [n] if isinstance(n, int) else list(n)
        if dim is None:
            count = len(lengths) if lengths else (default or x.ndim)
            dim = -1 if default == 1 else list(range(-count, 0))
        along = [each % x.ndim for each in ([dim] if isinstance(dim, int) else dim)]
        lengths = [None if n == -1 else n for n in lengths] if lengths else [None] * len(along)
        norm = norm or "backward"
        y = function(x, lengths[-1], along[-1], norm) if kind == "real" else x
        for axis, length in zip(along[:-1], lengths[:-1], strict=True):
            y = other(y, length, axis, norm)
        return y if kind == "real" else function(y, lengths[-1], along[-1], norm)

    return transform


FOURIER: dict[str, Callable[..., Any]] = {
    f"fft.{name}{suffix}": fourier(function, kind, default)
    for suffix, default in (("", 1), ("2", 2), ("n", None))
    for name, function, kind in (
        ("fft", op.fft, "complex"),
        ("ifft", op.ifft, "complex"),
        ("rfft", op.rfft, "real"),
        ("irfft", op.irfft, "back"),
    )
}

COMPLEX: dict[str, Callable[..., Any]] = {
    name: getattr(op, name)
    for name in ("angle", "complex", "conj", "imag", "real", "view_as_complex", "view_as_real")
} | {
    "conj_physical": op.conj,
    "resolve_conj": lambda x: x,
    "H": lambda x: _adjoint(x),
    "mH": lambda x: _adjoint(x),
    "polar": lambda r, t: op.complex(r * op.cos(t), r * op.sin(t)),
    "vdot": lambda a, b: op.dot(op.conj(a), b),
    "isreal": lambda x: op.equal(op.imag(x), 0),
    "linalg.vecdot": lambda a, b, *, dim=-1: op.sum(op.mul(op.conj(a), b), dim),
    "linalg.eig": op.eig,
    "linalg.eigvals": op.eigvals,
}


def _adjoint(x: Any) -> Any:
    return op.conj(op.swapaxes(x, -1, -2)) if x.ndim > 1 else op.conj(x)
