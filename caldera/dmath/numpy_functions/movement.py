"""Shapes and axes; joining, cutting, repeating and padding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.core.tensor import canonical
from caldera.dmath.numpy_functions.dispatch import (
    Function,
    as_dtype,
    handles,
    register,
)
from caldera.errors import ShapeError


def _reshape(a: Any, shape: Any, order: Any = "C", copy: Any = None) -> Any:
    require(
        order in ("C", "F", "A") and copy is not False,
        "np.reshape",
        "order= C, F or A, and a copy",
        f"{order!r}, copy={copy}",
    )
    shape = tuple(int(n) for n in (shape if np.ndim(shape) else (shape,)))
    require(
        shape.count(-1) <= 1 and min(shape, default=0) >= -1,
        "np.reshape",
        "sizes, one of which is -1",
        shape,
        error=ShapeError,
    )
    if order != "F":
        return op.reshape(a, shape)
    turned = op.transpose(a, tuple(reversed(range(a.ndim))))
    return op.transpose(op.reshape(turned, shape[::-1]), tuple(reversed(range(len(shape)))))


def _ravel(a: Any, order: Any = "C") -> Any:
    return _reshape(a, (-1,) if a.size else (0,), "A" if order == "K" else order)


def flat(a: Any) -> Any:
    """Return the elements as a vector."""
    return op.reshape(a, (a.size,))


handles(np.reshape, ruled=False)(_reshape)
handles(np.ravel, ruled=False)(_ravel)


def _ints(value: Any) -> Any:
    return tuple(int(each) for each in value) if np.ndim(value) else int(value)


def _axes_or_none(value: Any) -> Any:
    return None if value is None else _ints(value)


def _rot90(m: Any, k: Any = 1, axes: Any = (0, 1)) -> Any:
    first, second = (index(axis) % m.ndim for axis in axes)
    turns = int(k) % 4
    if turns in (1, 2):
        m = op.flip(m, second if turns == 1 else (first, second))
    if turns % 2:
        m = op.swapaxes(m, first, second)
    return op.flip(m, second) if turns == 3 else m


def _rollaxis(a: Any, axis: Any, start: Any = 0) -> Any:
    axis, start = index(axis) % a.ndim, int(start)
    start = start + a.ndim if start < 0 else start
    return op.moveaxis(a, axis, start - 1 if axis < start else start)


def _roll(a: Any, shift: Any, axis: Any = None) -> Any:
    if axis is None:
        return op.roll(a, _ints(shift)) if a.size else a
    pairs = np.broadcast(shift, axis)
    for by, along in pairs:
        a = op.roll(a, int(by), int(along))
    return a


def _tile(A: Any, reps: Any) -> Any:
    counts = tuple(int(n) for n in (reps if np.ndim(reps) else (reps,)))
    require(
        min(counts, default=0) >= 0,
        "np.tile",
        "reps= that are not negative",
        reps,
        error=ShapeError,
    )
    return op.tile(op.reshape(A, (1,) * (len(counts) - A.ndim) + A.shape), counts)


register(
    {
        np.transpose: lambda a, axes=None: op.transpose(
            a,
            tuple(reversed(range(a.ndim))) if axes is None else tuple(np.atleast_1d(axes).tolist()),
        ),
        np.matrix_transpose: lambda x: op.swapaxes(x, -1, -2),
        np.linalg.matrix_transpose: lambda x: op.swapaxes(x, -1, -2),
        np.squeeze: lambda a, axis=None: op.squeeze(a, _axes_or_none(axis)),
        np.expand_dims: lambda a, axis: op.unsqueeze(a, _ints(axis)),
        np.swapaxes: lambda a, axis1, axis2: op.swapaxes(a, index(axis1), index(axis2)),
        np.moveaxis: lambda a, source, destination: op.moveaxis(
            a, _ints(source), _ints(destination)
        ),
        np.rollaxis: _rollaxis,
        np.flip: lambda m, axis=None: op.flip(m, _axes_or_none(axis)),
        np.fliplr: lambda m: op.flip(m, 1),
        np.flipud: lambda m: op.flip(m, 0),
        np.rot90: _rot90,
        np.roll: _roll,
        np.tile: _tile,
        np.copy: lambda a, order="K", subok=False: a,
    }
)
handles(np.broadcast_to, ruled=False)(
    lambda array, shape, subok=False: op.broadcast(array, _ints(shape))
)


@handles(np.astype, ruled=False)
def _(x: Any, dtype: Any, copy: Any = True) -> Any:
    return as_dtype(x, canonical(dtype))


@handles(np.broadcast_arrays, floats=False)
def _(args: Any, subok: Any = False) -> Any:
    shape = np.broadcast_shapes(*[each.shape for each in args])
    return tuple(op.broadcast(each, shape) for each in args)


# --- joining


def _concatenate(arrays: Any, axis: Any = 0, dtype: Any = None, casting: Any = None) -> Any:
    parts = [flat(each) for each in arrays] if axis is None else arrays
    return op.concat(parts, 0 if axis is None else index(axis))


def _at_least(each: Any, ndim: int) -> Any:
    if each.ndim >= ndim:
        return each
    shapes = {
        1: (each.size,),
        2: (1, each.size),
        3: (1, *each.shape, 1) if each.ndim == 1 else (*each.shape, 1),
    }
    return op.reshape(each, shapes[ndim] if each.ndim else (1,) * ndim)


def _side_by_side(tup: Any, dtype: Any = None, casting: Any = None) -> Any:
    parts = [_at_least(each, 1) for each in tup]
    return op.concat(parts, 0 if parts[0].ndim == 1 else 1)


def _columns(tup: Any) -> Any:
    return op.concat([op.reshape(e, (-1, 1)) if e.ndim < 2 else e for e in tup], 1)


def _several(ndim: int) -> Function:
    def run(arys: Any) -> Any:
        made = tuple(_at_least(each, ndim) for each in arys)
        return made[0] if len(made) == 1 else made

    return run


register(
    {
        np.concatenate: _concatenate,
        np.stack: lambda arrays, axis=0, dtype=None, casting=None: op.stack(arrays, index(axis)),
        np.vstack: lambda tup, dtype=None, casting=None: op.concat(
            [_at_least(each, 2) for each in tup], 0
        ),
        np.hstack: _side_by_side,
        np.dstack: lambda tup: op.concat([_at_least(each, 3) for each in tup], 2),
        np.column_stack: _columns,
    }
)
register(
    {np.atleast_1d: _several(1), np.atleast_2d: _several(2), np.atleast_3d: _several(3)},
    floats=False,
)


@handles(np.append, aside="axis")
def _(arr: Any, values: Any, axis: Any = None) -> Any:
    return _concatenate([arr, values], axis)


# --- cutting


def _pieces(name: str, ary: Any, parts: Any, axis: int, uneven: bool = False) -> list[Any]:
    require(-ary.ndim <= axis < ary.ndim, name, f"an axis of {ary.ndim}", axis, error=ShapeError)
    length = ary.shape[axis]
    if np.ndim(parts):
        if any(int(each) < 0 for each in parts):
            parts = [slice(*each).indices(length)[:2] for each in _pairs(parts)]
        else:
            ends = [0, *np.minimum(np.asarray(parts, np.int64), length).tolist(), length]
            parts = list(pairwise(ends))
    else:
        count = int(parts)
        if count < 1 or (length % count and not uneven):
            raise ShapeError.build(
                name, expected=f"a number of equal parts of {length}", got=str(parts)
            )
        least, more = divmod(length, count)
        ends = np.cumsum([0] + [least + 1] * more + [least] * (count - more)).tolist()
        parts = list(pairwise(ends))
    key: list[Any] = [slice(None)] * ary.ndim
    found = []
    for begin, end in parts:
        key[axis] = slice(begin, max(begin, end))
        found.append(ary[tuple(key)])
    return found


def _pairs(parts: Sequence[Any]) -> list[tuple[Any, Any]]:
    ends = [0, *(int(each) for each in parts), None]
    return list(pairwise(ends))


def _split_along(name: str, axis: int, least: int) -> Function:
    def run(ary: Any, indices_or_sections: Any) -> Any:
        require(ary.ndim >= least, name, f"{least} axes or more", ary.ndim, error=ShapeError)
        # Of a vector the only axis, as NumPy's hsplit.
        return _pieces(name, ary, indices_or_sections, axis if ary.ndim > axis else 0)

    return run


def _unstack(x: Any, axis: Any = 0) -> Any:
    require(
        x.ndim and -x.ndim <= index(axis) < x.ndim,
        "np.unstack",
        f"an axis of {x.ndim}",
        axis,
        error=ShapeError,
    )
    where = index(axis) % x.ndim
    key: tuple[Any, ...] = (slice(None),) * where
    return tuple(x[(*key, i)] for i in range(x.shape[where]))


register(
    {
        np.split: lambda ary, indices_or_sections, axis=0: _pieces(
            "np.split", ary, indices_or_sections, index(axis)
        ),
        np.array_split: lambda ary, indices_or_sections, axis=0: _pieces(
            "np.array_split", ary, indices_or_sections, index(axis), uneven=True
        ),
        np.hsplit: _split_along("np.hsplit", 1, 1),
        np.vsplit: _split_along("np.vsplit", 0, 2),
        np.dsplit: _split_along("np.dsplit", 2, 3),
    },
    ruled=False,
)
if hasattr(np, "unstack"):
    handles(np.unstack, ruled=False)(_unstack)


# --- repeating, taking and choosing


@handles(np.repeat)
def _(a: Any, repeats: Any, axis: Any = None) -> Any:
    a, where = (flat(a), 0) if axis is None else (a, index(axis))
    counts = np.asarray(repeats)
    if counts.ndim == 0 or counts.size == 1:
        count = int(counts.reshape(()))
        require(count >= 0, "np.repeat", "repeats >= 0", count, error=ShapeError)
        return op.repeat(a, count, where)
    return op.gather(a, np.repeat(np.arange(a.shape[where]), counts), where)


@handles(np.take, ruled=False)
def _(a: Any, indices: Any, axis: Any = None, mode: Any = "raise") -> Any:
    a, where = (flat(a), 0) if axis is None else (a, index(axis))
    indices = _positions("np.take", indices)
    length = a.shape[where] if -a.ndim <= where < a.ndim else 1
    require(mode in ("raise", "wrap", "clip"), "np.take", "mode= raise, wrap or clip", repr(mode))
    if mode == "wrap" and length:
        indices = op.mod(indices, length)
    elif mode == "clip":
        indices = op.clip(indices, 0, max(length - 1, 0))
    elif isinstance(indices, np.ndarray):
        outside = (indices < -length) | (indices >= length)
        if outside.any():
            raise ShapeError.build(
                "np.take", expected=f"indices within {length}", got=str(indices[outside][0])
            )
    return op.gather(a, indices, where)


def _positions(name: str, indices: Any) -> Any:
    indices = indices if hasattr(indices, "node") else np.asarray(indices)
    require(indices.dtype.kind in "iu" or not indices.size, name, "integers", indices.dtype.name)
    return as_dtype(indices, np.dtype(np.int64))


@handles(np.take_along_axis, ruled=False)
def _(arr: Any, indices: Any, axis: Any = -1) -> Any:
    indices = _positions("np.take_along_axis", indices)
    if axis is None:
        require(
            indices.ndim == 1,
            "np.take_along_axis",
            "one axis of indices",
            indices.ndim,
            error=ShapeError,
        )
        return op.take_along_axis(flat(arr), indices, 0)
    require(
        arr.ndim == indices.ndim,
        "np.take_along_axis",
        f"indices of {arr.ndim} axes",
        indices.ndim,
        error=ShapeError,
    )
    return op.take_along_axis(arr, indices, index(axis))


@handles(np.clip, weak=True)
def _(a: Any, a_min: Any = None, a_max: Any = None, min: Any = None, max: Any = None) -> Any:
    low, high = (min if a_min is None else a_min), (max if a_max is None else a_max)
    return a if low is None and high is None else op.clip(a, low, high)


PADS = {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}
"""Modes of `op.pad` by NumPy's names."""


@handles(np.pad, ruled=False)
def _(array: Any, pad_width: Any, mode: Any = "constant", constant_values: Any = 0) -> Any:
    widths = np.asarray(pad_width)
    require(
        not isinstance(pad_width, dict) and widths.dtype.kind in "iu" and not (widths < 0).any(),
        "np.pad",
        "integers >= 0",
        pad_width,
    )
    pairs = [tuple(each) for each in np.broadcast_to(widths, (array.ndim, 2)).tolist()]
    require(
        mode != "symmetric" and mode in (*PADS, "constant") and not np.ndim(constant_values),
        "np.pad",
        f"mode= constant or {', '.join(PADS)}, one value",
        repr(mode),
    )
    if not array.ndim:
        return array
    if mode == "constant":
        value = np.asarray(constant_values).astype(array.dtype).item()
        return op.pad(array, pairs, value)
    require(not constant_values, "np.pad", "no constant_values=", f"mode={mode!r}")
    return op.pad(array, pairs, mode=PADS[mode])
