"""Which of Caldera's operations is which of PyTorch's: the names of its OpInfo database.

`SAME` are operators that take the same arguments under another name or the same; the functions of
`FORMS` turn PyTorch's arguments into Caldera's. Where an operator is made of several of Caldera's,
it is written out here. A name is an OpInfo's, followed by that of its variant if it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera import op
from tools import opinfo_forms as f
from tools import opinfo_networks as n
from tools.opinfo_fourier import COMPLEX, FOURIER

_EQUAL_NAMES = (
    "abs acos acosh asin asinh atan atan2 atanh ceil cos cosh digamma erf erfc erfinv exp exp2 "
    "expm1 floor hypot isfinite isinf isnan kron lgamma log log10 log1p log2 logaddexp "
    "matmul maximum minimum mul neg pow reciprocal rsqrt "
    "sigmoid sign sin sinh sqrt square tan tanh trunc outer dot"
)

SAME: dict[str, str] = {name: name for name in _EQUAL_NAMES.split()} | {
    "__radd__": "add",
    "__rmul__": "mul",
    "bmm": "matmul",
    "clamp_max": "minimum",
    "clamp_min": "maximum",
    "eq": "equal",
    "floor_divide": "floor_div",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "linalg.det": "determinant",
    "linalg.inv": "inverse",
    "linalg.slogdet": "slogdet",
    "lt": "less",
    "matrix_exp": "expm",
    "max.binary": "maximum",
    "min.binary": "minimum",
    "mm": "matmul",
    "mv": "matmul",
    "ne": "not_equal",
    "nn.functional.hardsigmoid": "hard_sigmoid",
    "nn.functional.mish": "mish",
    "nn.functional.softsign": "softsign",
    "remainder": "mod",
    "round": "round",
    "ravel": "flatten",
    "sgn": "sign",
    "true_divide": "div",
    "unsqueeze": "unsqueeze",
    "unsqueeze_copy": "unsqueeze",
}

Form = Callable[..., Any]

ARITHMETIC: dict[str, Form] = {
    "add": lambda a, b, *, alpha=1: op.add(a, b if alpha == 1 else op.mul(b, alpha)),
    "sub": lambda a, b, *, alpha=1: op.sub(a, b if alpha == 1 else op.mul(b, alpha)),
    "rsub": lambda a, b, alpha=1: op.sub(b, a if alpha == 1 else op.mul(a, alpha)),
    "__rsub__": lambda a, b: op.sub(b, a),
    "__rdiv__": lambda a, b: op.div(b, a),
    "__rmod__": lambda a, b: op.mod(b, a),
    "__rpow__": lambda a, b: op.pow(b, a),
    "__rmatmul__": lambda a, b: op.matmul(b, a),
    "div.no_rounding_mode": f.divided,
    "div.trunc_rounding": f.divided,
    "div.floor_rounding": f.divided,
    "addcmul": lambda x, a, b, *, value=1: op.add(x, op.mul(op.mul(a, b), value)),
    "addcdiv": lambda x, a, b, *, value=1: op.add(x, op.mul(op.div(a, b), value)),
    "addmm": lambda x, a, b, *, beta=1, alpha=1: f.scaled(x, op.matmul(a, b), beta, alpha),
    "addmm.decomposed": lambda x, a, b, *, beta=1, alpha=1: f.scaled(
        x, op.matmul(a, b), beta, alpha
    ),
    "addmv": lambda x, a, b, *, beta=1, alpha=1: f.scaled(x, op.matmul(a, b), beta, alpha),
    "baddbmm": lambda x, a, b, *, beta=1, alpha=1: f.scaled(x, op.matmul(a, b), beta, alpha),
    "addbmm": lambda x, a, b, *, beta=1, alpha=1: f.scaled(
        x, op.sum(op.matmul(a, b), 0), beta, alpha
    ),
    "addr": lambda x, a, b, *, beta=1, alpha=1: f.scaled(x, op.outer(a, b), beta, alpha),
    "lerp": lambda a, b, weight: op.add(a, op.mul(op.sub(b, a), weight)),
    "frac": lambda x: op.sub(x, op.trunc(x)),
    "deg2rad": lambda x: op.mul(x, np.pi / 180),
    "rad2deg": lambda x: op.mul(x, 180 / np.pi),
    "positive": lambda x: x,
    "clamp": lambda x, min=None, max=None: op.clip(x, min, max),
    "float_power": lambda a, b: op.pow(
        op.cast(a, "float64"), b if isinstance(b, int | float) else op.cast(b, "float64")
    ),
    "clone": lambda x, memory_format=None: op.add(x, 0),
    "logit": lambda x, eps=None: (lambda p: op.log(op.div(p, op.sub(1, p))))(
        # The lower bound first, where they have changed places.
        x
        if eps is None
        else op.where(op.less(x, eps), eps, op.where(op.greater(x, 1 - eps), 1 - eps, x))
    ),
    "logaddexp2": lambda a, b: op.div(
        op.logaddexp(op.mul(a, np.log(2)), op.mul(b, np.log(2))), np.log(2)
    ),
    "ldexp": lambda a, b: op.mul(a, op.exp2(b)),
    "sinc": lambda x: f.sinc(op.equal(x, 0), op.mul(x, np.pi)),
    "nan_to_num": lambda x, nan=None, posinf=None, neginf=None: op.nan_to_num(
        x, 0.0 if nan is None else nan, posinf, neginf
    ),
    "isclose": lambda a, b, rtol=1e-5, atol=1e-8, equal_nan=False: op.isclose(
        a, b, rtol, atol, equal_nan
    ),
    "logical_and": lambda a, b: op.logical_and(op.not_equal(a, 0), op.not_equal(b, 0)),
    "logical_or": lambda a, b: op.logical_or(op.not_equal(a, 0), op.not_equal(b, 0)),
    "logical_xor": lambda a, b: op.logical_xor(op.not_equal(a, 0), op.not_equal(b, 0)),
    "logical_not": lambda x: op.logical_not(op.not_equal(x, 0)),
    "isposinf": lambda x: op.equal(x, float("inf")),
    "isneginf": lambda x: op.equal(x, float("-inf")),
    "where": lambda a, condition, b: op.where(condition, a, b),
    "special.ndtr": lambda x: op.mul(op.erfc(op.mul(x, -np.sqrt(0.5))), 0.5),
    "fmod": lambda a, b: op.sub(a, op.mul(op.trunc(op.div(a, b)), b)),
    "heaviside": lambda x, v: op.where(op.equal(x, 0), v, op.cast(op.greater(x, 0), str(x.dtype))),
    "round.decimals_0": lambda x, *, decimals: op.round(x),
}

REDUCTIONS: dict[str, Form] = {
    "sum": f.reduction(op.sum),
    "mean": f.reduction(op.mean),
    "prod": f.reduction(op.prod),
    "all": f.reduction(op.all),
    "any": f.reduction(op.any),
    "amax": f.reduction(op.max),
    "amin": f.reduction(op.min),
    "argmax": f.reduction(op.argmax),
    "argmin": f.reduction(op.argmin),
    "logsumexp": f.reduction(op.logsumexp),
    "aminmax": lambda x, *, dim=None, keepdim=False: (
        op.min(x, dim, keepdim),
        op.max(x, dim, keepdim),
    ),
    "max.reduction_no_dim": lambda x: op.max(x),
    "min.reduction_no_dim": lambda x: op.min(x),
    "max.reduction_with_dim": f.largest(op.max, op.argmax),
    "min.reduction_with_dim": f.largest(op.min, op.argmin),
    "var": f.spread(op.variance),
    "var.unbiased": f.spread(op.variance),
    "std": f.spread(op.std),
    "std.unbiased": f.spread(op.std),
    "var_mean": f.with_mean(op.variance),
    "var_mean.unbiased": f.with_mean(op.variance),
    "std_mean": f.with_mean(op.std),
    "std_mean.unbiased": f.with_mean(op.std),
    "count_nonzero": lambda x, dim=None: op.sum(op.cast(op.not_equal(x, 0), "int64"), f.axes(dim)),
    "nansum": f.reduction(lambda x, *rest: op.sum(op.where(op.isnan(x), 0.0, x), *rest)),
    "median": f.median,
    "quantile": f.quantile,
    "cumsum": lambda x, dim, *, dtype=None: op.cumsum(f.cast(x, dtype), dim),
    "cumprod": lambda x, dim, *, dtype=None: op.cumprod(f.cast(x, dtype), dim),
    "cummax": lambda x, dim: op.cummax(x, dim),
    "cummin": lambda x, dim: op.cummin(x, dim),
    "linalg.vector_norm": f.vector_norm,
    "linalg.matrix_norm": f.matrix_norm,
    "dist": lambda a, b, p=2: f.vector_norm(op.sub(a, b), p),
    "trace": lambda x: op.trace(x),
    "cov": f.covariance,
    "diff": f.differences,
}

SHAPES: dict[str, Form] = {
    "reshape": lambda x, *shape: op.reshape(x, f.sizes(shape)),
    "view": lambda x, *shape: op.reshape(x, f.sizes(shape)),
    "view_copy": lambda x, *shape: op.reshape(x, f.sizes(shape)),
    "reshape_as": lambda x, other: op.reshape(x, other.shape),
    "view_as": lambda x, other: op.reshape(x, other.shape),
    "flatten": f.flattened,
    "unflatten": f.unflattened,
    "squeeze": f.squeezed,
    "squeeze.multiple": f.squeezed,
    "squeeze_copy": f.squeezed,
    "permute": lambda x, *dims: op.transpose(x, f.sizes(dims)),
    "permute_copy": lambda x, *dims: op.transpose(x, f.sizes(dims)),
    "transpose": lambda x, dim0, dim1: op.swapaxes(x, dim0, dim1),
    "transpose_copy": lambda x, dim0, dim1: op.swapaxes(x, dim0, dim1),
    "movedim": lambda x, source, destination: op.moveaxis(x, source, destination),
    "t": lambda x: op.transpose(x),
    "t_copy": lambda x: op.transpose(x),
    "T": lambda x: op.transpose(x),
    "mT": lambda x: op.swapaxes(x, -2, -1),
    "mH": lambda x: op.swapaxes(x, -2, -1),
    "H": lambda x: op.transpose(x),
    "expand": f.expanded,
    "expand_copy": f.expanded,
    "expand_as": lambda x, other: op.broadcast(x, other.shape),
    "broadcast_to": lambda x, size: op.broadcast(x, size),
    "broadcast_tensors": lambda *parts: [
        op.broadcast(x, np.broadcast_shapes(*(each.shape for each in parts))) for x in parts
    ],
    "cat": lambda tensors, dim=0: op.concat(tensors, dim),
    "stack": lambda tensors, dim=0: op.stack(tensors, dim),
    "hstack": f.joined(1, 1),
    "vstack": f.joined(2, 0),
    "dstack": f.joined(3, 2),
    "column_stack": lambda parts: op.concat(
        [x if x.ndim > 1 else op.reshape(x, (-1, 1)) for x in parts], 1
    ),
    "atleast_1d": f.at_least(1),
    "atleast_2d": f.at_least(2),
    "atleast_3d": f.at_least(3),
    "chunk": f.chunks,
    "unsafe_chunk": f.chunks,
    "split": f.pieces,
    "split.list_args": f.pieces,
    "unsafe_split": f.pieces,
    "split_with_sizes": f.pieces,
    "split_with_sizes_copy": f.pieces,
    "tensor_split": f.tensor_split,
    "hsplit": lambda x, at: f.tensor_split(x, at, 0 if x.ndim == 1 else 1),
    "vsplit": lambda x, at: f.tensor_split(x, at, 0),
    "dsplit": lambda x, at: f.tensor_split(x, at, 2),
    "unbind": f.unbind,
    "unbind_copy": f.unbind,
    "narrow": f.narrow,
    "narrow_copy": f.narrow,
    "slice": f.slice_of,
    "select": lambda x, dim, index: op.moveaxis(x, dim, 0)[index],
    "flip": lambda x, dims: op.flip(x, dims),
    "fliplr": lambda x: op.flip(x, 1),
    "flipud": lambda x: op.flip(x, 0),
    "roll": lambda x, shifts, dims=None: op.roll(x, shifts, f.axes(dims)),
    "rot90": lambda x, k=1, dims=(0, 1): f.rotated(x, k, dims),
    "repeat": lambda x, *repeats: op.tile(x, f.sizes(repeats)),
    "tile": lambda x, *dims: op.tile(x, f.sizes(dims)),
    "meshgrid.variadic_tensors": lambda *lines, indexing="ij": op.meshgrid(
        *lines, indexing=indexing
    ),
    "meshgrid.list_of_tensors": lambda lines, indexing="ij": op.meshgrid(*lines, indexing=indexing),
    "tril": lambda x, diagonal=0: op.tril(x, diagonal),
    "triu": lambda x, diagonal=0: op.triu(x, diagonal),
    "diagonal": f.diagonal,
    "diagonal_copy": f.diagonal,
    "diag": f.diag,
    "diag_embed": f.diag_embed,
    "linalg.diagonal": lambda x, *, offset=0, dim1=-2, dim2=-1: f.diagonal(x, offset, dim1, dim2),
    "fft.fftshift": lambda x, dim=None: f.shifted(x, dim, 1),
    "fft.ifftshift": lambda x, dim=None: f.shifted(x, dim, -1),
    "zeros_like": lambda x, dtype=None, device=None: op.zeros(x.shape, dtype or str(x.dtype)),
    "ones_like": lambda x, dtype=None, device=None: op.ones(x.shape, dtype or str(x.dtype)),
    "full_like": lambda x, value, dtype=None, device=None: op.full(
        x.shape, value, dtype or str(x.dtype)
    ),
    "double": lambda x, memory_format=None: op.cast(x, "float64"),
    "float": lambda x, memory_format=None: op.cast(x, "float32"),
    "half": lambda x, memory_format=None: op.cast(x, "float16"),
    "long": lambda x, memory_format=None: op.cast(x, "int64"),
    "int": lambda x, memory_format=None: op.cast(x, "int32"),
    "bool": lambda x, memory_format=None: op.cast(x, "bool"),
}

INDICES: dict[str, Form] = {
    "gather": f.taken,
    "take_along_dim": lambda x, indices, dim=None: (
        op.take_along_axis(op.flatten(x), indices.reshape(-1), 0)
        if dim is None
        else op.take_along_axis(x, indices, dim)
    ),
    "index_select": lambda x, dim, index: op.reshape(
        op.gather(x, np.atleast_1d(index), dim), f.selected_shape(x.shape, dim, index)
    ),
    "take": lambda x, index: op.gather(op.flatten(x), index),
    "scatter": f.put,
    "scatter_add": lambda x, dim, index, src: f.put(x, dim, index, src, reduce="add"),
    "index_add": lambda x, dim, index, source, *, alpha=1: op.scatter_add(
        x, index, op.mul(source, alpha), dim
    ),
    "index_copy": lambda x, dim, index, source: op.scatter(x, index, source, dim),
    "index_fill": lambda x, dim, index, value: op.scatter(x, index, value, dim),
    "masked_fill": lambda x, mask, value: op.where(mask, value, x),
    "masked_select": lambda x, mask: op.broadcast(x, np.broadcast_shapes(x.shape, mask.shape))[
        np.broadcast_to(mask, np.broadcast_shapes(x.shape, mask.shape))
    ],
    "__getitem__": lambda x, key: x[key],
    "index_put": lambda x, indices, values, accumulate=False: (
        x.at[tuple(indices)].add(values) if accumulate else x.at[tuple(indices)].set(values)
    ),
    "sort": f.sort,
    "msort": lambda x: op.sort(x, 0),
    "argsort": lambda x, dim=-1, descending=False, stable=False: op.argsort(x, dim, descending),
    "topk": f.top,
    "searchsorted": f.searched,
    "bucketize": lambda x, boundaries, *, out_int32=False, right=False: f.searched(
        boundaries, x, right=right, out_int32=out_int32
    ),
    "nn.functional.embedding": n.embedding,
    "nn.functional.one_hot": lambda x, num_classes=-1: op.one_hot(
        x, int(x.max()) + 1 if num_classes == -1 else num_classes, "int64"
    ),
    "bincount": lambda x, weights=None, minlength=0: op.bincount(
        x,
        max(minlength, int(x.max()) + 1 if x.size else 0),
        # Sums of weights are float64 in PyTorch, unless they are float32.
        op.cast(weights, "float64") if isinstance(weights, np.ndarray) else weights,
    ),
    "nonzero": f.nonzero,
    "argwhere": f.nonzero,
    "arange": lambda *bounds, dtype=None, device=None: op.arange(*bounds, dtype=dtype),
    "linspace": lambda start, end, steps, *, dtype="float32", device=None: op.linspace(
        start, end, steps, dtype=dtype
    ),
    "eye": lambda rows, columns=None, *, dtype="float32", device=None, requires_grad=False: op.eye(
        rows, columns, dtype=dtype
    ),
    "ones": lambda shape, *, dtype="float32", device=None: op.ones(shape, dtype),
    "zeros": lambda shape, *, dtype="float32", device=None: op.zeros(shape, dtype),
    "full": lambda shape, value, *, dtype="float32", device=None: op.full(shape, value, dtype),
}

MATRICES: dict[str, Form] = {
    "tensordot": lambda a, b, dims=2: op.tensordot(a, b, dims),
    "einsum": lambda operands, equation: op.einsum(equation, *operands),
    "inner": lambda a, b: (
        op.mul(a, b) if 0 in (a.ndim, b.ndim) else op.tensordot(a, b, ((-1,), (-1,)))
    ),
    "linalg.multi_dot": f.chain,
    "linalg.matrix_power": f.power,
    "cross": lambda a, b, dim=None: op.cross(a, b, _first_three(a) if dim is None else dim),
    "linalg.cross": lambda a, b, *, dim=-1: op.cross(a, b, dim),
    "cdist": lambda a, b, p=2.0, compute_mode=None: _distance(a, b, p),
    "cholesky": lambda a, upper=False: _upper(op.cholesky(a), upper),
    "linalg.cholesky": lambda a, *, upper=False: _upper(op.cholesky(a), upper),
    "qr": lambda a, some=True: _reduced(op.qr(a), a, not some),
    "linalg.qr": lambda a, mode="reduced": _reduced(op.qr(a), a, mode == "complete", mode),
    "linalg.svd": lambda a, full_matrices=True: _reduced(op.svd(a), a, full_matrices),
    "linalg.svdvals": lambda a: op.svd(a)[1],
    "linalg.eigh": lambda a, UPLO="L": op.eigh(a),
    "linalg.eigvalsh": lambda a, UPLO="L": op.eigh(a)[0],
    "linalg.solve": lambda a, b, *, left=True: _solved(a, b, left),
    "linalg.solve_triangular": f.solve_triangular,
    "linalg.pinv": lambda a, *, rtol=None, atol=None, hermitian=False: _pinv(a, rtol, atol),
    "pinverse": lambda a, rcond=None: op.pinv(a, rcond),
    "logdet": lambda a: _logdet(*op.slogdet(a)),
    "cholesky_solve": lambda b, low, upper=False: op.solve(
        op.matmul(op.conj(op.swapaxes(low, -2, -1)), low)
        if upper
        else op.matmul(low, op.conj(op.swapaxes(low, -2, -1))),
        b,
    ),
}


def _first_three(x: Any) -> int:
    return list(x.shape).index(3)


def _distance(a: Any, b: Any, p: float) -> Any:
    if p not in (1, 2, float("inf")):
        raise f.NotExpressed(f"a distance of order {p}")
    return op.cdist(a, b, float(p))


def _upper(low: Any, upper: bool) -> Any:
    return op.conj(op.swapaxes(low, -2, -1)) if upper else low


def _reduced(parts: Any, a: Any, complete: bool, mode: str = "") -> Any:
    if mode == "r":
        raise f.NotExpressed("mode='r', with an empty Q")
    if complete and a.shape[-1] != a.shape[-2]:
        raise f.NotExpressed("all columns of Q or U")
    return parts


def _solved(a: Any, b: Any, left: bool) -> Any:
    if left and b.ndim > 1 and tuple(b.shape) == tuple(a.shape[:-1]):
        return op.squeeze(op.solve(a, op.unsqueeze(b, -1)), -1)
    if left:
        return op.solve(a, b)
    return op.swapaxes(op.solve(op.swapaxes(a, -2, -1), op.swapaxes(b, -2, -1)), -2, -1)


def _pinv(a: Any, rtol: Any, atol: Any) -> Any:
    if atol is not None or not (rtol is None or isinstance(rtol, float)):
        raise f.NotExpressed("an absolute tolerance, or one for each matrix")
    return op.pinv(a, rtol)


def _logdet(sign: Any, logarithm: Any) -> Any:
    return op.where(op.less(sign, 0), float("nan"), logarithm)


FORMS: dict[str, Form] = {
    **ARITHMETIC,
    **REDUCTIONS,
    **SHAPES,
    **INDICES,
    **MATRICES,
    **n.NETWORKS,
    **FOURIER,
    **COMPLEX,
}

SYMMETRIC = {
    "cholesky": "PyTorch reads one triangle of a matrix, Caldera the mean of both",
    "linalg.cholesky": "PyTorch reads one triangle of a matrix, Caldera the mean of both",
    "linalg.eigh": "PyTorch reads one triangle of a matrix, Caldera the mean of both",
    "linalg.eigvalsh": "PyTorch reads one triangle of a matrix, Caldera the mean of both",
}
"""Operators that PyTorch is given (a + aᵀ) / 2 for, with the reason."""

UP_TO_SIGN = {
    "qr": "R has no negative number on its diagonal here",
    "linalg.qr": "R has no negative number on its diagonal here",
    "linalg.svd": "the signs of singular vectors are open",
    "linalg.eigh": "the signs of eigenvectors are open",
    "linalg.eig": "the phases of eigenvectors are open",
}
"""Operators of which absolute values are compared, with the reason."""

FIRST_OUTPUTS = {
    "median": (1, "Caldera's gives no places"),
}
"""How many of PyTorch's outputs are compared, where Caldera has fewer, with the reason."""

CONVENTIONS: dict[str, str] = {}
"""Operators whose difference is a known convention, with the reason."""


def form(name: str) -> Form | None:
    """The function from PyTorch's arguments to Caldera's expression, if there is one."""
    if name in FORMS:
        return FORMS[name]
    return getattr(op, SAME[name]) if name in SAME else None
