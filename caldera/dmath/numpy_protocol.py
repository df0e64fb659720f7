"""NumPy's functions on arrays whose parts are on ranks: they stay there.

`np.linalg.svd(A)`, `np.mean(A, axis=0)` and `np.exp(A) + 1` give arrays of `dmath`. Each of NumPy's
functions that is known here stands with what computes it; another is refused with a hint, and never
brings an array together behind a user's back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require, shown
from caldera.compiler.sharding.ops import place
from caldera.errors import ConfigError

Function = Callable[..., Any]
UFUNCS: dict[Any, Function] = {
    np.add: op.add,
    np.subtract: op.sub,
    np.multiply: op.mul,
    np.divide: op.div,
    np.power: op.pow,
    np.floor_divide: op.floor_div,
    np.mod: op.mod,
    np.negative: op.neg,
    np.matmul: op.matmul,
    np.maximum: op.maximum,
    np.minimum: op.minimum,
    np.equal: op.equal,
    np.not_equal: op.not_equal,
    np.less: op.less,
    np.less_equal: op.less_equal,
    np.greater: op.greater,
    np.greater_equal: op.greater_equal,
    np.logical_and: op.logical_and,
    np.logical_or: op.logical_or,
    np.logical_not: op.logical_not,
    np.logical_xor: op.logical_xor,
    np.isfinite: op.isfinite,
    np.isinf: op.isinf,
    np.isnan: op.isnan,
    np.absolute: op.abs,
    np.exp: op.exp,
    np.exp2: op.exp2,
    np.expm1: op.expm1,
    np.log: op.log,
    np.log1p: op.log1p,
    np.log2: op.log2,
    np.log10: op.log10,
    np.sqrt: op.sqrt,
    np.square: op.square,
    np.reciprocal: op.reciprocal,
    np.sign: op.sign,
    np.sin: op.sin,
    np.cos: op.cos,
    np.tan: op.tan,
    np.tanh: op.tanh,
    np.floor: op.floor,
    np.ceil: op.ceil,
    np.rint: op.round,
    np.trunc: op.trunc,
    np.conjugate: op.conj,
    np.arcsin: op.asin,
    np.arccos: op.acos,
    np.arctan: op.atan,
    np.arctan2: op.atan2,
    np.sinh: op.sinh,
    np.cosh: op.cosh,
    np.arcsinh: op.asinh,
    np.arccosh: op.acosh,
    np.arctanh: op.atanh,
    np.hypot: op.hypot,
    np.logaddexp: op.logaddexp,
}
"""What is done element by element, and the product."""
REDUCTIONS: dict[Any, Function] = {
    np.add: op.sum,
    np.multiply: op.prod,
    np.maximum: op.max,
    np.minimum: op.min,
    np.logical_and: op.all,
    np.logical_or: op.any,
}
"""What `ufunc.reduce` does."""
FUNCTIONS: dict[Any, Function] = {
    np.transpose: lambda a, axes=None: op.transpose(
        a, tuple(reversed(range(a.ndim))) if axes is None else axes
    ),
    np.reshape: lambda a, shape: op.reshape(a, shape),
    np.ravel: lambda a: op.reshape(a, (-1,)),
    np.concatenate: lambda arrays, axis=0: op.concat(arrays, axis),
    np.stack: lambda arrays, axis=0: op.stack(arrays, axis),
    np.vstack: lambda arrays: op.concat([_matrix(each) for each in arrays], 0),
    np.hstack: lambda arrays: op.concat(arrays, 0 if arrays[0].ndim == 1 else 1),
    np.where: op.where,
    np.clip: lambda a, a_min=None, a_max=None: op.clip(a, a_min, a_max),
    np.squeeze: op.squeeze,
    np.expand_dims: op.unsqueeze,
    np.swapaxes: op.swapaxes,
    np.moveaxis: op.moveaxis,
    np.flip: op.flip,
    np.roll: op.roll,
    np.tile: op.tile,
    np.broadcast_to: op.broadcast,
    np.dot: op.dot,
    np.outer: op.outer,
    np.einsum: op.einsum,
    np.trace: op.trace,
    np.tril: lambda m, k=0: op.tril(m, k),
    np.triu: lambda m, k=0: op.triu(m, k),
    np.diagonal: op.diagonal,
    np.diag: lambda v, k=0: _diag(v, k),
    np.inner: lambda a, b: op.tensordot(a, b, axes=((-1,), (-1,))) if a.ndim and b.ndim else a * b,
    np.vdot: lambda a, b: op.sum(op.conj(op.reshape(a, (-1,))) * op.reshape(b, (-1,))),
    np.tensordot: op.tensordot,
    np.kron: op.kron,
    np.pad: lambda array, pad_width, mode="constant", constant_values=0: op.pad(
        array, pad_width, constant_values, mode
    ),
    np.split: lambda ary, indices_or_sections, axis=0: _split(ary, indices_or_sections, axis),
    np.repeat: lambda a, repeats, axis=None: op.repeat(
        op.reshape(a, (-1,)) if axis is None else a, repeats, axis or 0
    ),
    np.take: lambda a, indices, axis=None: op.gather(
        op.reshape(a, (-1,)) if axis is None else a, indices, axis or 0
    ),
    np.diff: lambda a, n=1, axis=-1: _diff(a, n, axis),
    np.round: lambda a, decimals=0: _round(a, decimals),
    np.zeros_like: lambda a, dtype=None: _like(a, 0, dtype),
    np.ones_like: lambda a, dtype=None: _like(a, 1, dtype),
    np.full_like: lambda a, fill_value, dtype=None: _like(a, fill_value, dtype),
    np.sort: lambda a, axis=-1: op.sort(a, axis),
    np.argsort: lambda a, axis=-1: op.argsort(a, axis),
    np.cumsum: lambda a, axis=None: op.cumsum(
        op.reshape(a, (-1,)) if axis is None else a, 0 if axis is None else axis
    ),
    np.argmax: lambda a, axis=None: op.argmax(a, axis),
    np.argmin: lambda a, axis=None: op.argmin(a, axis),
    np.isclose: op.isclose,
    np.allclose: lambda a, b, **how: bool(op.all(op.isclose(a, b, **how))),
    np.array_equal: lambda a, b: a.shape == b.shape and bool(op.all(op.equal(a, b))),
    np.real: op.real,
    np.imag: op.imag,
    np.shape: lambda a: a.shape,
    np.ndim: lambda a: a.ndim,
    np.size: lambda a: a.size,
    np.linalg.svd: lambda a, full_matrices=True: _svd(a, full_matrices),
    np.linalg.qr: op.qr,
    np.linalg.cholesky: op.cholesky,
    np.linalg.solve: op.solve,
    np.linalg.inv: op.inverse,
    np.linalg.det: op.determinant,
    np.linalg.slogdet: op.slogdet,
    np.linalg.eigh: op.eigh,
    np.linalg.eigvalsh: lambda a: op.eigh(a)[0],
    np.linalg.pinv: op.pinv,
    np.linalg.lstsq: lambda a, b, rcond=None: _lstsq(a, b, rcond),
    np.linalg.matrix_rank: lambda A, tol=None, *, rtol=None: _rank(op.svd(A)[1], A, rtol, tol),
    np.linalg.cond: lambda x, p=None: _condition(x, p),
    np.fft.fft: op.fft,
    np.fft.ifft: op.ifft,
    np.fft.rfft: op.rfft,
    np.fft.irfft: op.irfft,
    np.fft.fft2: lambda a, *, norm=None: op.fft2(a, norm or "backward"),
    np.fft.ifft2: lambda a, *, norm=None: op.ifft2(a, norm or "backward"),
    np.fft.fftn: lambda a, *, axes=None, norm=None: op.fftn(a, axes, norm or "backward"),
    np.fft.ifftn: lambda a, *, axes=None, norm=None: op.ifftn(a, axes, norm or "backward"),
}
"""By NumPy's function, with as much of its signature as there is."""


def _reducing(function: Function) -> Function:
    def reduce(a: Any, axis: Any = None, keepdims: Any = False, **how: Any) -> Any:
        return function(a, axis=axis, keepdims=bool(keepdims), **how)

    return reduce


FUNCTIONS |= {
    np.sum: _reducing(op.sum),
    np.mean: _reducing(op.mean),
    np.max: _reducing(op.max),
    np.min: _reducing(op.min),
    np.prod: _reducing(op.prod),
    np.all: _reducing(op.all),
    np.any: _reducing(op.any),
    np.median: _reducing(op.median),
    np.var: lambda a, axis=None, ddof=0, keepdims=False: op.variance(a, axis, bool(keepdims), ddof),
    np.std: lambda a, axis=None, ddof=0, keepdims=False: op.std(a, axis, bool(keepdims), ddof),
    np.linalg.norm: lambda x, ord=None, axis=None, keepdims=False: _norm(x, ord, axis, keepdims),
}


FUNCTIONS |= {
    np.average: lambda a, axis=None, weights=None: _average(a, axis, weights),
    np.count_nonzero: lambda a, axis=None, keepdims=False: op.sum(
        op.cast(op.not_equal(a, 0), "int64"), axis, bool(keepdims)
    ),
    np.ptp: lambda a, axis=None, keepdims=False: (
        op.max(a, axis, bool(keepdims)) - op.min(a, axis, bool(keepdims))
    ),
    np.quantile: lambda a, q, axis=None, keepdims=False: op.quantile(a, q, axis, bool(keepdims)),
    np.percentile: lambda a, q, axis=None, keepdims=False: op.quantile(
        a, (np.asarray(q) / 100).tolist(), axis, bool(keepdims)
    ),
}


def _average(a: Any, axis: Any, weights: Any) -> Any:
    if weights is None:
        return op.mean(a, axis)
    if weights.ndim != a.ndim and isinstance(axis, int):
        # Weights of lines along an axis.
        weights = op.reshape(weights, [-1 if i == axis % a.ndim else 1 for i in range(a.ndim)])
    return op.sum(a * weights, axis) / op.sum(op.broadcast(weights, a.shape), axis)


def _diag(v: Any, k: int) -> Any:
    if v.ndim == 2:
        return op.diagonal(v, k)
    n = v.shape[0] + abs(k)
    lines = op.pad(v, ((max(k, 0), max(-k, 0)),))
    return op.where(op.eye(n, k=k, dtype="bool"), op.unsqueeze(lines, 0), 0)


def _diff(a: Any, n: int, axis: int) -> Any:
    for _ in range(min(n, a.shape[axis])):
        rest = a.shape[axis] - 1
        a = op.split(a, (1, rest), axis)[1] - op.split(a, (rest, 1), axis)[0]
    return a


def _round(a: Any, decimals: int) -> Any:
    if a.dtype.kind not in "iu":
        return op.round(a * 10.0**decimals) / 10.0**decimals
    if decimals >= 0:
        return a
    # In whole numbers: large ones have no float of their own.
    unit = 10**-decimals
    below = a // unit * unit
    twice = 2 * (a - below)
    # Halves go to even multiples.
    is_up = op.logical_or(
        twice > unit, op.logical_and(op.equal(twice, unit), below // unit % 2 > 0)
    )
    return below + unit * op.cast(is_up, a.dtype)


def _split(array: Any, parts: Any, axis: int) -> Any:
    length = array.shape[axis]
    if not isinstance(parts, int):
        parts = [int(size) for size in np.diff((0, *np.minimum(parts, length), length))]
    return list(op.split(array, parts, axis))


def _like(a: Any, value: Any, dtype: Any) -> Any:
    node = op.full(a.shape, value, a.dtype if dtype is None else dtype).node
    return type(a)(place(node, None))


def _matrix(each: Any) -> Any:
    return op.unsqueeze(each, 0) if each.ndim == 1 else each


def _svd(a: Any, full_matrices: bool) -> Any:
    if full_matrices and a.shape[-1] != a.shape[-2]:
        raise ConfigError.build(
            "np.linalg.svd",
            expected="full_matrices=False for an array of dmath",
            got=f"full_matrices=True for shape {a.shape}",
            hint="the reduced factors have all there is to know",
        )
    return op.svd(a)


def _lstsq(a: Any, b: Any, rcond: float | None) -> tuple[Any, Any, int, Any]:
    """The shortest x with the least squares of a x - b, these, the rank, and a's singular values.

    The rank is a number, and whether there are residuals depends on it: it is computed at once.
    """
    u, s, vh = op.svd(a)
    b = b if hasattr(b, "ndim") else np.asarray(b)
    right = op.unsqueeze(b, 1) if b.ndim == 1 else b
    large = _counting(s, a, rcond)
    inverse = op.where(large, op.reciprocal(op.where(large, s, 1)), 0)
    turned = op.matmul(op.conj(op.transpose(u, (1, 0))), right)
    x = op.matmul(op.conj(op.transpose(vh, (1, 0))), op.unsqueeze(inverse, 1) * turned)
    rank = int(op.sum(op.cast(large, "int64")))
    rows, columns = a.shape
    left: Any = np.zeros(0, s.dtype)
    if rank == columns < rows:
        left = op.sum(op.square(op.abs(right - op.matmul(a, x))), 0)
    return op.reshape(x, (columns, *b.shape[1:])), left, rank, s


def _counting(s: Any, a: Any, rtol: float | None, tol: float | None = None) -> Any:
    """Which singular values of a matrix count as different from 0."""
    if tol is not None:
        return s > tol
    if rtol is None:
        rtol = max(a.shape[-2:]) * float(np.finfo(np.dtype(s.dtype)).eps)
    return s > rtol * op.max(s, -1, True)


def _rank(s: Any, a: Any, rtol: float | None, tol: float | None) -> Any:
    return op.sum(op.cast(_counting(s, a, rtol, tol), "int64"), -1)


def _condition(x: Any, order: Any) -> Any:
    if order not in (None, 2, -2):
        raise ConfigError.build(
            "np.linalg.cond",
            expected="p None, 2 or -2 for an array of dmath",
            got=repr(order),
            hint="for others multiply np.linalg.norm(x, p) by that of np.linalg.inv(x)",
        )
    s = op.svd(x)[1]
    largest, smallest = op.max(s, -1), op.min(s, -1)
    return smallest / largest if order == -2 else largest / smallest


def _norm(x: Any, order: Any, axis: Any, keepdims: bool) -> Any:
    if order not in (None, 1, 2, np.inf, "fro") or (x.ndim > 1 and axis is None and order == 2):
        raise ConfigError.build(
            "np.linalg.norm",
            expected="ord None, 1, 2, inf or 'fro'",
            got=repr(order),
            hint="for other norms of matrices use np.linalg.svd",
        )
    if x.ndim > 1 and axis is None and order in (1, np.inf):
        return op.max(op.sum(op.abs(x), axis=0 if order == 1 else 1))
    return op.norm(x, 2 if order in (None, "fro") else order, axis, keepdims)


def apply_ufunc(ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """What a ufunc of NumPy gives for arrays of dmath."""
    name = f"np.{ufunc.__name__}"
    if method == "__call__" and ufunc in UFUNCS and not options:
        return UFUNCS[ufunc](*inputs)
    if method == "reduce" and ufunc in REDUCTIONS:
        axis, keepdims = options.pop("axis", 0), options.pop("keepdims", False)
        if not options:
            return REDUCTIONS[ufunc](*inputs, axis=axis, keepdims=bool(keepdims))
    way = name if method == "__call__" else f"{name}.{method}"
    raise _unknown(way + "".join(f" with {option}=" for option in options))


def apply_function(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """What a function of NumPy gives for arrays of dmath."""
    name = f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    if function not in FUNCTIONS:
        raise _unknown(name)
    keepdims = options.get("keepdims", False)
    require(isinstance(keepdims, int | np.bool_), name, "keepdims= True or False", shown(keepdims))
    try:
        return FUNCTIONS[function](*args, **options)
    except TypeError as error:
        raise _unknown(f"{name} with these arguments") from error


def _unknown(what: str) -> ConfigError:
    return ConfigError.build(
        what,
        expected="a function of NumPy that dmath knows",
        got="another",
        hint="use a function of caldera.op, or take the whole array with .numpy() first",
    )
