"""Functions of the array API standard that Caldera has in parts: for `tools.array_api`.

All of them are functions of tensors and expressions, with expressions as results.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.core.tensor.dtype import promote

# --- element by element, sums, and moving elements


def _rounding(function: Any) -> Any:
    def run(x: Any, /) -> Any:
        is_complex = x.dtype.kind == "c"
        return op.complex(function(op.real(x)), function(op.imag(x))) if is_complex else function(x)

    return run


def _accumulating(function: Any) -> Any:
    """Return a sum or product of which integers become int64 or uint64."""

    def run(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Any:
        wide = dtype or {"i": "int64", "u": "uint64"}.get(x.dtype.kind, x.dtype)
        return op.cast(function(op.cast(x, wide), axis, keepdims), wide)

    return run


def _clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    return op.positive(x) if min is None and max is None else op.cast(op.clip(x, min, max), x.dtype)


def _repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Any:
    x, axis = (op.flatten(x), 0) if axis is None else (x, axis)
    if isinstance(repeats, int):
        return op.repeat(x, repeats, axis)
    return op.gather(x, np.repeat(np.arange(x.shape[axis]), repeats.numpy()), axis)


def _in_one_dtype(arrays: Any) -> list[Any]:
    dtype = reduce(promote, [x.dtype for x in arrays])
    return [op.cast(x, dtype) for x in arrays]


def _concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    parts = _in_one_dtype(arrays)
    return op.concat(parts if axis is not None else list(map(op.flatten, parts)), axis or 0)


def _vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    row, column = op.moveaxis(op.conj(x1), axis, -1), op.moveaxis(x2, axis, -1)
    return op.squeeze(op.matmul(op.unsqueeze(row, -2), op.unsqueeze(column, -1)), (-2, -1))


EXACT: dict[str, Any] = {
    "add": op.add,
    "subtract": op.sub,
    "multiply": op.mul,
    "divide": op.div,
    "floor_divide": op.floor_div,
    "remainder": op.mod,
    "negative": op.neg,
    **{name: _rounding(getattr(op, name)) for name in ("ceil", "floor", "round", "trunc")},
    "clip": _clip,
    "sum": _accumulating(op.sum),
    "prod": _accumulating(op.prod),
    "var": op.variance,
    "tril": lambda x, /, *, k=0: op.tril(x, k),
    "triu": lambda x, /, *, k=0: op.triu(x, k),
    "broadcast_to": op.broadcast,
    "broadcast_arrays": lambda *xs: [
        op.broadcast(x, np.broadcast_shapes(*[each.shape for each in xs])) for x in xs
    ],
    "concat": _concat,
    "expand_dims": lambda x, /, *, axis=0: op.unsqueeze(x, axis),
    "permute_dims": op.transpose,
    "matrix_transpose": lambda x, /: op.swapaxes(x, -1, -2),
    "repeat": _repeat,
    "stack": lambda arrays, /, *, axis=0: op.stack(_in_one_dtype(arrays), axis),
    "unstack": lambda x, /, *, axis=0: tuple(op.moveaxis(x, axis, 0)),
    "take": lambda x, indices, /, *, axis=0: op.gather(x, indices, axis),
    "vecdot": _vecdot,
}

# --- linear algebra


def _trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Any:
    return EXACT["sum"](op.diagonal(x, offset), axis=-1, dtype=dtype)


def _vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    if ord in (1, 2, math.inf):
        return op.norm(x, ord, axis, keepdims)
    if ord == -math.inf:
        return op.min(op.abs(x), axis, keepdims)
    if ord == 0:
        return op.sum(op.cast(x != 0, op.abs(x).dtype), axis, keepdims)
    return op.sum(op.abs(x) ** float(ord), axis, keepdims) ** (1.0 / ord)


def _matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    if ord == "fro":
        return op.norm(x, 2, (-2, -1), keepdims)
    reduced = op.max if ord in (1, 2, math.inf) else op.min
    if ord in (1, -1, math.inf, -math.inf):
        return reduced(op.sum(op.abs(x), -2 if abs(ord) == 1 else -1, True), (-2, -1), keepdims)
    values = (op.sum if ord == "nuc" else reduced)(op.svd(x)[1], -1)
    return op.unsqueeze(values, (-2, -1)) if keepdims else values


def _matrix_power(x: Any, n: int, /) -> Any:
    one = op.broadcast(op.eye(x.shape[-1], dtype=x.dtype), x.shape)
    return reduce(op.matmul, [op.inverse(x) if n < 0 else x] * abs(n), one)


def _matrix_rank(x: Any, /, *, rtol: Any = None) -> Any:
    values = op.svd(x)[1]
    rtol = max(x.shape[-2:]) * float(np.finfo(values.dtype).eps) if rtol is None else rtol
    bound = op.max(values, -1, True) * (op.unsqueeze(rtol, -1) if hasattr(rtol, "shape") else rtol)
    return op.sum(op.cast(values > bound, "int64"), -1)


def _adjoint(x: Any) -> Any:
    return op.conj(op.swapaxes(x, -1, -2))


def _completed(x: Any) -> Any:
    """Return a unitary matrix whose first columns are those of Q in `x` = Q R."""
    rows, columns = x.shape[-2:]
    one = op.broadcast(op.eye(rows, dtype=x.dtype), (*x.shape[:-1], rows))
    return op.qr(op.concat([x, one], -1) if rows > columns else x)[0]


def _svd(x: Any, /, *, full_matrices: bool = True) -> Any:
    u, s, vh = op.svd(x)
    return (_completed(u), s, _adjoint(_completed(_adjoint(vh)))) if full_matrices else (u, s, vh)


def _qr(x: Any, /, *, mode: str = "reduced") -> Any:
    if mode == "reduced":
        return op.qr(x)
    q = _completed(x)
    return q, op.triu(op.matmul(_adjoint(q), x))


def _named(names: str, function: Any) -> Any:
    make: Any = namedtuple("Factors", names)
    return lambda *args, **named: make(*function(*args, **named))


LINALG: dict[str, Any] = {
    **{name: getattr(op, name) for name in ("cross", "outer", "pinv", "solve", "matmul")},
    "cholesky": lambda x, /, *, upper=False: _adjoint(op.cholesky(x)) if upper else op.cholesky(x),
    "det": op.determinant,
    "diagonal": lambda x, /, *, offset=0: op.diagonal(x, offset),
    "eigh": _named("eigenvalues eigenvectors", op.eigh),
    "eigvalsh": lambda x, /: op.eigh(x)[0],
    "inv": op.inverse,
    "matrix_norm": _matrix_norm,
    "matrix_power": _matrix_power,
    "matrix_rank": _matrix_rank,
    "matrix_transpose": EXACT["matrix_transpose"],
    "qr": _named("Q R", _qr),
    "slogdet": _named("sign logabsdet", op.slogdet),
    "svd": _named("U S Vh", _svd),
    "svdvals": lambda x, /: op.svd(x)[1],
    "tensordot": op.tensordot,
    "trace": _trace,
    "vecdot": _vecdot,
    "vector_norm": _vector_norm,
}

# --- Fourier transforms

OPPOSITE = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _several(last: Any, others: Any, *, last_first: bool) -> Any:
    """Return a transform along several axes from those along one, the last axis apart."""

    def run(x: Any, /, *, s: Any = None, axes: Any = None, norm: Any = "backward") -> Any:
        axes = range(-len(s), 0) if axes is None and s is not None else axes
        axes = range(x.ndim) if axes is None else axes
        s = [None] * len(axes) if s is None else s
        steps = [*zip([others] * (len(axes) - 1) + [last], axes, s, strict=True)]
        for one, axis, n in reversed(steps) if last_first else steps:
            x = one(x, n, axis, norm)
        return x

    return run


def _hfft(x: Any, /, *, n: Any = None, axis: int = -1, norm: Any = "backward") -> Any:
    return op.irfft(op.conj(x), n, axis, OPPOSITE[norm])


def _ihfft(x: Any, /, *, n: Any = None, axis: int = -1, norm: Any = "backward") -> Any:
    return op.conj(op.rfft(x, n, axis, OPPOSITE[norm]))


def _fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None) -> Any:
    half = (n + 1) // 2
    numbers = op.roll(op.arange(half - n, half, dtype="float64"), half, 0)
    return op.cast(numbers / (n * d), dtype or "float32")


def _shift(sign: int) -> Any:
    def run(x: Any, /, *, axes: Any = None) -> Any:
        axes = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
        return op.roll(x, [sign * (x.shape[axis] // 2) for axis in axes], list(axes))

    return run


FFT: dict[str, Any] = {
    **{name: getattr(op, name) for name in ("fft", "ifft", "rfft", "irfft")},
    "fftn": _several(op.fft, op.fft, last_first=True),
    "ifftn": _several(op.ifft, op.ifft, last_first=True),
    "rfftn": _several(op.rfft, op.fft, last_first=True),
    "irfftn": _several(op.irfft, op.ifft, last_first=False),
    "hfft": _hfft,
    "ihfft": _ihfft,
    "fftfreq": _fftfreq,
    "rfftfreq": lambda n, /, *, d=1.0, dtype=None: op.cast(
        op.arange(n // 2 + 1, dtype="float64") / (n * d), dtype or "float32"
    ),
    "fftshift": _shift(1),
    "ifftshift": _shift(-1),
}
