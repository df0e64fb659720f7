"""Averages, quantiles, covariances and histograms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.dmath.numpy_functions.dispatch import (
    Function,
    as_dtype,
    as_floats,
    handles,
    register,
)
from caldera.dmath.numpy_functions.reductions import axes_of, kept, mean, present
from caldera.errors import ConfigError, DtypeError, ShapeError


@handles(np.average)
def _(
    a: Any, axis: Any = None, weights: Any = None, returned: Any = False, keepdims: Any = False
) -> Any:
    if weights is None:
        made = mean(a, axis, None, keepdims)
        count = math.prod(a.shape[i] for i in axes_of(axis, a.ndim))
        scale: Any = op.full(made.shape, count, made.dtype)
    else:
        dtype = np.result_type(a.dtype, weights.dtype)
        if a.dtype.kind in "biu":
            dtype = np.result_type(dtype, np.float64)
        weights = _lines(as_dtype(weights, dtype), a.shape, axis)
        scale = op.sum(op.broadcast(weights, a.shape), axis, bool(keepdims))
        made = op.div(op.sum(op.mul(as_dtype(a, dtype), weights), axis, bool(keepdims)), scale)
        if bool(op.any(op.equal(scale, 0))):
            raise ConfigError.build(
                "np.average", expected="weights that do not add up to zero", got="a sum of zero"
            )
    return (made, scale) if returned else made


def _lines(weights: Any, shape: tuple[int, ...], axis: Any) -> Any:
    """Return weights of the whole shape, or of the axes that are averaged over."""
    if weights.shape == shape:
        return weights
    axes = axes_of(axis, len(shape))
    require(
        axis is not None and weights.shape == tuple(shape[i] for i in axes),
        "np.average",
        f"weights of shape {shape} or of axis=",
        weights.shape,
        error=ShapeError,
    )
    order = tuple(np.argsort(axes).tolist())
    return op.reshape(
        op.transpose(weights, order), [n if i in axes else 1 for i, n in enumerate(shape)]
    )


def _quantiles(a: Any, q: Any, axis: Any, method: str, skips_nan: bool) -> Any:
    """Return quantiles along axes, interpolated with NumPy's formula."""
    floats = as_floats(a)
    axes = axes_of(axis, floats.ndim)
    left = tuple(i for i in range(floats.ndim) if i not in axes)
    shape = tuple(floats.shape[i] for i in left)
    if not a.size:
        return op.full((*np.shape(q), *shape), np.nan, floats.dtype)
    rows = op.sort(op.reshape(op.transpose(floats, (*left, *axes)), (*shape, -1)), -1)
    length = rows.shape[-1]
    broken = op.isnan(op.gather(rows, [length - 1], -1))
    last: Any = np.float64(length - 1)
    if skips_nan:
        count = op.sum(present(rows), -1, True)
        broken, last = op.equal(count, 0), op.cast(op.maximum(count - 1, 0), "float64")
    found = [
        _quantile(rows, float(each), last, broken, method) for each in np.asarray(q).reshape(-1)
    ]
    return op.reshape(op.stack(found, 0), (*np.shape(q), *shape))


def _quantile(rows: Any, q: float, last: Any, broken: Any, method: str) -> Any:
    at = last * q
    low = op.floor(at)
    if method in EXACT:
        place = {"lower": low, "higher": op.ceil(at), "nearest": op.round(at)}[method]
        made = _element(rows, place)
    else:
        # As in NumPy, even where infinity is multiplied by 0.
        first, second = _element(rows, low), _element(rows, op.minimum(low + 1, last))
        share = op.cast(op.sub(at, low), rows.dtype)
        step = op.sub(second, first)
        if method == "mean":
            middle = op.mul(op.add(first, second), 0.5)
            made = op.where(op.equal(share, 0), first, middle)
        else:
            if method == "midpoint":
                share = op.where(op.equal(share, 0), share, op.full((), 0.5, rows.dtype))
            # From the nearer of the two: the largest stays the largest.
            made = op.where(
                op.less(share, 0.5),
                op.add(first, op.mul(step, share)),
                op.sub(second, op.mul(step, op.sub(1.0, share))),
            )
    return op.where(broken, op.full((), np.nan, rows.dtype), made)


def _element(rows: Any, place: Any) -> Any:
    """Return the element of each row at a place, which is the same for all rows or one for each."""
    shape = (*rows.shape[:-1], 1)
    return op.take_along_axis(rows, op.broadcast(op.cast(place, "int64"), shape), -1)


EXACT = ("lower", "higher", "nearest")
"""Methods that take one of the elements."""
METHODS = ("linear", *EXACT, "midpoint")


def _quantile_of(percent: bool, skips_nan: bool) -> Function:
    def reduce(
        a: Any,
        q: Any,
        axis: Any = None,
        overwrite_input: Any = False,
        method: Any = "linear",
        keepdims: Any = False,
    ) -> Any:
        require(
            method in METHODS, "np.quantile", f"method= one of {', '.join(METHODS)}", repr(method)
        )
        require(
            not skips_nan or not np.ndim(q) or a.size,
            "np.nanquantile",
            "one q for an array without elements",
            q,
            error=ShapeError,
        )
        share = np.true_divide(q, 100) if percent else np.asarray(q, np.float64)
        if method == "linear" and not percent and np.asarray(q).dtype.kind in "iub":
            # Minimum or maximum: no interpolation.
            method = "lower"
        if np.ndim(q):
            # Fractions in an array have a dtype, which numbers have not.
            kind = np.result_type(np.asarray(q).dtype, 0.5)
            a = as_dtype(a, np.result_type(as_floats(a).dtype, kind))
        made = _quantiles(a, share, axis, method, skips_nan)
        if not keepdims:
            return made
        axes = axes_of(axis, a.ndim)
        ones = tuple(1 if i in axes else n for i, n in enumerate(a.shape))
        return op.reshape(made, (*share.shape, *ones))

    return reduce


def _median(skips_nan: bool) -> Function:
    def reduce(
        a: Any, axis: Any = None, overwrite_input: Any = False, keepdims: Any = False
    ) -> Any:
        return kept(_quantiles(a, 0.5, axis, "mean", skips_nan), a.shape, axis, keepdims)

    return reduce


register(
    {
        np.median: _median(False),
        np.nanmedian: _median(True),
        np.quantile: _quantile_of(False, False),
        np.percentile: _quantile_of(True, False),
        np.nanquantile: _quantile_of(False, True),
        np.nanpercentile: _quantile_of(True, True),
    }
)


@handles(np.cov, ruled=False)
def covariance(
    m: Any,
    y: Any = None,
    rowvar: Any = True,
    bias: Any = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    dtype: Any = None,
) -> Any:
    """The covariances of rows (or columns) that are variables, with weights of observations."""
    require(ddof is None or ddof == int(ddof), "np.cov", "ddof= an integer", repr(ddof))
    given = [each for each in (m, y) if each is not None]
    require(
        not any(each.ndim > 2 for each in given),
        "np.cov",
        "at most two axes",
        "more",
        error=ShapeError,
    )
    kind = np.result_type(*[each.dtype for each in given], np.float64)
    if dtype is not None:
        kind = np.dtype(dtype)
        require(kind.kind in "fc", "np.cov", "dtype= of floats", dtype, error=DtypeError)
    rows = [_variables(as_dtype(each, kind), rowvar) for each in given]
    x = op.concat(rows, 0) if len(rows) > 1 else rows[0]
    less = (0 if bias else 1) if ddof is None else int(ddof)
    weights = _observation_weights(x.shape[1], fweights, aweights)
    if weights is None:
        centred, divisor = op.sub(x, op.mean(x, 1, True)), float(x.shape[1] - less)
        right = centred
    else:
        require(weights.sum(), "np.cov", "weights above 0", "a sum of 0")
        total, x = float(weights.sum()), as_dtype(x, np.result_type(x.dtype, np.float64))
        line = op.full((), 1, x.dtype) * weights.astype(part(x.dtype))
        centred = op.sub(x, op.div(op.sum(op.mul(x, line), 1, True), total))
        right, divisor = op.mul(centred, line), total - less
        if aweights is not None and less:
            divisor = total - less * float((weights * np.asarray(aweights)).sum()) / total
    made = op.matmul(centred, op.conj(op.transpose(right, (1, 0))))
    made = op.div(made, op.full((), max(divisor, 0.0), made.dtype))
    return op.squeeze(made)


def part(dtype: Any) -> Any:
    """Return the dtype of the parts of complex numbers; real numbers are their own."""
    return np.empty(0, dtype).real.dtype


def _variables(x: Any, rowvar: Any) -> Any:
    if x.ndim < 2:
        return op.reshape(x, (1, -1))
    return x if rowvar else op.transpose(x, (1, 0))


def _observation_weights(count: int, fweights: Any, aweights: Any) -> Any:
    """Return the product of both kinds of weights, checked as NumPy does."""
    made = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        line = np.asarray(given)
        wrong = line.ndim != 1 or len(line) != count or (line < 0).any()
        if wrong or (name == "fweights" and not np.all(line == np.around(line))):
            raise ConfigError.build(
                "np.cov", expected=f"{count} {name} that are not negative", got=str(line)[:80]
            )
        made = line.astype(np.float64) if made is None else made * line
    return made


@handles(np.corrcoef, ruled=False)
def _(x: Any, y: Any = None, rowvar: Any = True, dtype: Any = None) -> Any:
    made = covariance(x, y, rowvar, dtype=dtype)
    if made.ndim == 0:
        return op.div(made, made)
    spread = op.sqrt(op.real(op.diagonal(made)))
    made = op.div(op.div(made, op.unsqueeze(spread, 1)), op.unsqueeze(spread, 0))
    if made.dtype.kind != "c":
        return op.clip(made, -1, 1)
    return op.complex(op.clip(op.real(made), -1, 1), op.clip(op.imag(made), -1, 1))


@handles(np.histogram, ruled=False)
def _(a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None) -> Any:
    require(
        a.dtype.kind != "c" and not isinstance(bins, str),
        "np.histogram",
        "real numbers, and bins= a number or edges",
        bins,
        error=DtypeError,
    )
    require(
        weights is None or getattr(weights, "shape", None) == a.shape,
        "np.histogram",
        f"weights of shape {a.shape}",
        getattr(weights, "shape", weights),
        error=ShapeError,
    )
    a = op.cast(a, "uint8") if a.dtype.kind == "b" else a
    ends = np.zeros(0, a.dtype)
    if a.size and range is None and np.ndim(bins) == 0:
        ends = np.stack([op.min(a).numpy(), op.max(a).numpy()])
    edges = np.histogram_bin_edges(ends, bins, range)
    values = as_dtype(a, np.result_type(a.dtype, edges.dtype)).reshape(-1, 1)
    line = edges.astype(values.dtype)
    # Bins exclude their upper edge, except for the last one.
    inside = op.greater_equal(values, line[:-1])
    inside = op.logical_and(
        inside, op.concat([op.less(values, line[1:-1]), op.less_equal(values, line[-1:])], 1)
    )
    added: Any = op.cast(inside, "int64")
    if weights is not None:
        kind = weights.dtype if weights.dtype.kind == "c" else np.dtype(np.float64)
        line_of = op.reshape(as_dtype(weights, kind), (-1, 1))
        if np.ndim(bins):
            # As NumPy with given edges: differences of cumulative counts.
            inside = op.concat([op.less(values, line[:-1]), op.less_equal(values, line[-1:])], 1)
        added = op.where(inside, line_of, op.full((), 0, kind))
    counts = op.sum(added, 0)
    if weights is not None and np.ndim(bins):
        counts = op.sub(counts[1:], counts[:-1])
    if density:
        widths = np.diff(edges).astype(np.float64)
        counts = op.cast(counts, "float64") if counts.dtype.kind in "iu" else counts
        return op.div(op.div(counts, widths), op.sum(counts)), edges
    if weights is not None and weights.dtype.kind not in "c":
        counts = as_dtype(counts, np.dtype(weights.dtype))
    return counts, edges
