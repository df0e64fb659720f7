"""Pooling and its adjoints, one native kernel for all of them.

Each is the same loop: for every pixel that is written, look at the pixels it gathers from (its
taps), a vector of channels at a time. Which taps a row or a column has follows from size, stride,
padding and dilation alone, so it is worked out once, when the kernel is bound, and kept in tables:
no padding is ever read, and no two workers write the same pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from caldera.config import settings
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    Emitter,
    Pointer,
    Value,
    element,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.half import load_wide, store_narrow
from caldera.kernels.native.codegen.program import NativeRunner, native_call
from caldera.kernels.table import TABLE, Call, Kernel, Runner

WORTH_SPLITTING = 1 << 14
"""Elements read from which on a second thread pays."""

# --- taps


@dataclass(frozen=True)
class Taps:
    """For each place along one axis of what is written: which places of the other side it reads.

    `begin[i]` to `begin[i + 1]` are the rows of `entries` that belong to place i; a row has the
    place that is read, the position inside the window, and how many elements its window holds.
    """

    begin: np.ndarray
    entries: np.ndarray


def taps(
    length: int, size: int, stride: int, padding: tuple[int, int], dilation: int, *, adjoint: bool
) -> Taps:
    """The taps of the windows over an axis of this length; of its elements if `adjoint`."""
    reach = dilation * (size - 1) + 1
    windows = (length + sum(padding) - reach) // stride + 1
    inside = [
        [
            (window * stride - padding[0] + position * dilation, position)
            for position in range(size)
            if 0 <= window * stride - padding[0] + position * dilation < length
        ]
        for window in range(windows)
    ]
    rows: list[list[tuple[int, int, int]]] = [[] for _ in range(length if adjoint else windows)]
    for window, found in enumerate(inside):
        for place, position in found:
            if adjoint:
                rows[place].append((window, position, len(found)))
            else:
                rows[window].append((place, position, len(found)))
    begin = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=begin[1:])
    entries = np.array([entry for row in rows for entry in row], np.int64).reshape(-1, 3)
    return Taps(begin, entries)


# --- the kernel


@dataclass(frozen=True)
class _Image:
    """An array (N, C, H, W) anywhere in memory, inside a kernel."""

    memory: Pointer
    steps: Sequence[Value]

    def line(self, image: Value, row: Value) -> Value:
        return image * self.steps[0] + row * self.steps[2]

    def at(self, line: Value, column: Value, channel: Value) -> Value:
        return line + column * self.steps[3] + channel * self.steps[1]


_POINTERS = 4
_FLOATS = ("float32", "float64")
_TYPES = {"float64": F64, "float32": F32, "float16": I16, "bfloat16": I16, "int8": I8, "int32": I32}


def _build(k: Emitter, mode: str, dtype: str, index_dtype: str, lanes: tuple[int, ...]) -> None:
    """Slots: four images (read, its index, written, its index), then their steps, then the rest."""
    kinds = (_TYPES[dtype], _TYPES[index_dtype]) * 2
    read, name, written, winner = (
        _Image(
            k.pointer(slot, kind),
            [k.integer(_POINTERS + 4 * slot + axis) for axis in range(4)],
        )
        for slot, kind in enumerate(kinds)
    )
    images, channels, rows, columns, width, whole = (k.integer(slot) for slot in range(20, 26))
    row_begin, row_taps, column_begin, column_taps = (k.pointer(i, I64) for i in range(26, 30))
    first, last = k.share(images * rows)
    with k.loop(first, last) as line, k.loop(0, columns) as column:
        image, row = line // rows, line % rows
        row_from, row_to = row_begin.load(row), row_begin.load(row + 1)
        column_from, column_to = column_begin.load(column), column_begin.load(column + 1)
        taken = (row_to - row_from) * (column_to - column_from)

        def one(channel: Value, count: int) -> None:
            loop = _Channels(k, mode, dtype, _TYPES[index_dtype], count)
            if mode == "max":
                with k.when(taken > 0):
                    down, across = row_taps.at(3 * row_from), column_taps.at(3 * column_from)
                    loop.begin_at(down.load(1) * width + across.load(1))
            if mode == "gather":
                place = name.at(name.line(image, row), column, channel)
                loop.wanted = name.memory.load(place, count)
            with k.loop(row_from, row_to) as i:
                down = row_taps.at(3 * i)
                source, names = (each.line(image, down.load(0)) for each in (read, name))
                with k.loop(column_from, column_to) as j:
                    across = column_taps.at(3 * j)
                    place = read.at(source, across.load(0), channel)
                    value = load_wide(k, read.memory, place, count, dtype)
                    if mode == "scatter":
                        place = name.at(names, across.load(0), channel)
                        loop.wanted = name.memory.load(place, count)
                    held = k.select(whole > 0, whole, down.load(2) * across.load(2))
                    loop.tap(value, down.load(1) * width + across.load(1), held)
            place = written.at(written.line(image, row), column, channel)
            result = loop.result(k.select(whole > 0, whole, taken))
            store_narrow(k, written.memory, place, result, dtype)
            if mode == "max":
                place = winner.at(winner.line(image, row), column, channel)
                winner.memory.store(place, loop.name.value)

        k.in_widths(0, channels, lanes, one)


class _Channels:
    """What happens to a vector of channels of the pixel that is written, tap by tap."""

    def __init__(self, k: Emitter, mode: str, dtype: str, index: ir.Type, count: int) -> None:
        self.k = k
        self.mode = mode
        kind = vector(F64 if dtype == "float64" else F32, count)
        self.value = k.variable(-math.inf if mode == "max" else 0.0, kind)
        self.name = k.variable(-1, vector(index, count))
        self.wanted: Value | None = None

    def begin_at(self, position: Value) -> None:
        """The first element wins unless a later one is larger."""
        self.name.value = self._named(position)

    def _named(self, position: Value) -> Value:
        kind = self.name.type
        return self.k.constant(self.k.convert(position, element(kind)), kind)

    def tap(self, x: Value, position: Value, held: Value) -> None:
        k, best = self.k, self.value.value
        if self.mode == "max":
            # A nan wins over everything but a nan.
            wins = k.above_or_nan(x, best) & ~k.is_nan(best)
            self.value.value = k.select(wins, x, best)
            self.name.value = k.select(wins, self._named(position), self.name.value)
        elif self.mode == "mean":
            self.value.value = best + x
        elif self.mode == "spread":
            self.value.value = k.fma(x, 1.0 / k.convert(held, element(x.type)), best)
        else:
            assert self.wanted is not None
            here = self.wanted.equals(self._named(position))
            added = best + x if self.mode == "scatter" else x
            self.value.value = k.select(here, added, best)

    def result(self, held: Value) -> Value:
        value = self.value.value
        return value / self.k.convert(held, element(value.type)) if self.mode == "mean" else value


def _scatter(k: Emitter, dtype: str, index_dtype: str) -> None:
    """Adding each window's value at its winner, image by image: one element a window, where looking
    from the other side asks every element about all its windows.

    Slots: g, index, out, then their steps, then images, channels, rows, columns, the bytes of an
    image, its height and width, for each row and column of windows where the window begins, for
    each position in a window how far down and how far right it is, the largest of these, and for
    each position how far it is from the first.
    """
    kinds = (_TYPES[dtype], _TYPES[index_dtype], _TYPES[dtype])
    given, name, out = (
        _Image(k.pointer(slot, kind), [k.integer(3 + 4 * slot + axis) for axis in range(4)])
        for slot, kind in enumerate(kinds)
    )
    images, channels, rows, columns, nbytes = (k.integer(slot) for slot in range(15, 20))
    height, width = k.integer(20), k.integer(21)
    starts = [k.pointer(slot, I64) for slot in (22, 23)]
    offsets = [k.pointer(slot, I64) for slot in (24, 25)]
    reach = [k.integer(slot) for slot in (26, 27)]
    flat = k.pointer(28, I64)
    first, last = k.share(images)
    with k.loop(first, last) as image:
        k.clear_bytes(out.memory.at(image * out.steps[0]), nbytes)
        with k.loop(0, rows) as row, k.loop(0, columns) as column:
            top, left = starts[0].load(row), starts[1].load(column)
            line, names = given.line(image, row), name.line(image, row)
            corner = out.line(image, top) + left * out.steps[3]
            low = (top >= 0) & (left >= 0)
            whole = low & (top + reach[0] < height) & (left + reach[1] < width)

            def add(channel: Value, *, checked: bool) -> None:
                position = k.convert(name.memory.load(name.at(names, column, channel)), I64)
                added = given.memory.load(given.at(line, column, channel))
                if not checked:
                    place = corner + flat.load(position) + channel * out.steps[1]
                    out.memory.store(place, out.memory.load(place) + added)
                    return
                position = k.maximum(position, 0)
                y, x = (offsets[axis].load(position) for axis in (0, 1))
                place = out.at(out.line(image, top + y), left + x, channel)
                named = name.memory.load(name.at(names, column, channel)) >= 0
                inside = (top + y >= 0) & (top + y < height) & (left + x >= 0) & (left + x < width)
                with k.when(named & inside):
                    out.memory.store(place, out.memory.load(place) + added)

            with k.either(whole) as (all_of_it, some):
                with all_of_it, k.loop(0, channels) as channel:
                    add(channel, checked=False)
                with some, k.loop(0, channels) as channel:
                    add(channel, checked=True)


# --- binding


def _bind(mode: str, *, adjoint: bool) -> Callable[[Call], Runner]:
    def bind(call: Call) -> Runner:
        attrs = call.node.attrs
        images = call.outputs[0] if adjoint else call.inputs[0]
        height, width = images.shape[2:]
        dilation = attrs.get("dilation", (1, 1))
        tables = [
            taps(length, attrs["size"][i], attrs["stride"][i], attrs["padding"][i], dilation[i],
                 adjoint=adjoint)
            for i, length in enumerate((height, width))
        ]  # fmt: skip
        written = call.outputs[0]
        # An array that this mode does not use is stood in for by one that it does.
        read = call.inputs[0]
        name = call.inputs[1] if len(call.inputs) > 1 else read
        winner = call.outputs[1] if len(call.outputs) > 1 else written
        arrays = (read, name, written, winner)
        steps = [step // array.itemsize for array in arrays for step in array.strides]
        dense = all(array.strides[1] == array.itemsize for array in arrays)
        rows, columns = attrs["size"]
        kernel = compiled(
            _build, mode=mode, dtype=read.dtype.name, index_dtype=_index_name(name, winner),
            lanes=_widths(read.dtype.name) if dense else (1,),
        )  # fmt: skip
        busy = max(read.size, written.size) >= WORTH_SPLITTING
        return NativeRunner([native_call(
            kernel, *arrays, *steps, written.shape[0], written.shape[1], *written.shape[2:],
            columns, rows * columns if attrs.get("count_padding") else 0,
            *(array for table in tables for array in (table.begin, table.entries)),
            parts=settings.threads if busy else 1,
        )])  # fmt: skip

    return bind


def _bind_scatter(call: Call) -> Runner:
    (out,), (given, index) = call.outputs, call.inputs
    image = out[:1]
    whole = image.size and sorted(image.strides[1:])[0] == out.itemsize
    dense = whole and out.strides[0] == image.nbytes and image.nbytes == _extent(image)
    if not dense or given.dtype.name not in _FLOATS or len(out) < settings.threads:
        return _bind("scatter", adjoint=True)(call)
    attrs = call.node.attrs
    steps = [step // array.itemsize for array in (given, index, out) for step in array.strides]
    starts = [
        np.arange(given.shape[2 + i]) * attrs["stride"][i] - attrs["padding"][i][0] for i in (0, 1)
    ]
    down, across = (np.arange(attrs["size"][i]) * attrs["dilation"][i] for i in (0, 1))
    kernel = compiled(_scatter, dtype=given.dtype.name, index_dtype=index.dtype.name)
    return NativeRunner([native_call(
        kernel, given, index, out, *steps, *given.shape, image.nbytes, *out.shape[2:], *starts,
        np.repeat(down, len(across)), np.tile(across, len(down)), down[-1], across[-1],
        (down[:, None] * steps[-2] + across * steps[-1]).ravel(),
        parts=settings.threads if out.size >= WORTH_SPLITTING else 1,
    )])  # fmt: skip


def _extent(array: np.ndarray) -> int:
    """The bytes from the first to the last element of an array."""
    steps = zip(array.shape, array.strides, strict=True)
    return int(sum((n - 1) * step for n, step in steps)) + array.itemsize


def _widths(dtype: str) -> tuple[int, ...]:
    lanes = natural_lanes(F64 if dtype == "float64" else F32)
    # Several registers at a time: looking up a tap costs as much as a register's arithmetic.
    return 4 * lanes, lanes, 1


def _index_name(*arrays: np.ndarray) -> str:
    return next((each.dtype.name for each in arrays if each.dtype.kind == "i"), "int32")


for _op, _mode, _adjoint in (
    ("max_pool2d", "max", False),
    ("pool_gather", "gather", False),
    ("avg_pool2d", "mean", False),
    ("avg_pool2d_input", "spread", True),
):
    TABLE.add(Kernel(_op, "cpu", "native", _bind(_mode, adjoint=_adjoint), priority=10))
TABLE.add(Kernel("pool_scatter", "cpu", "native", _bind_scatter, priority=10))
