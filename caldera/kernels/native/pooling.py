"""Pooling and its adjoints as a single native kernel.

All are the same loop: for every output pixel, read its input pixels (its taps), a vector of
channels at a time. The taps of a row or a column depend only on size, stride, padding and dilation.
They are computed once, when the kernel is bound, and stored in tables. Padding is never read, and
no two workers write the same pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir

from caldera.base.threads import thread_count
from caldera.kernels.native.codegen import (
    I32,
    I64,
    ElementPointer,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    RegisterValue,
    computed_type,
    element,
    host_target,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.pooling_windows import (
    ImageMemory,
    average_windows,
    image_memory,
    tiles_image,
)
from caldera.kernels.table import Call, Runner

WORTH_SPLITTING = 1 << 14
"""Elements read from which on a second thread pays."""

# --- taps


@dataclass(frozen=True)
class Taps:
    """Input positions that each output position reads, along one axis.

    `begin[i]` to `begin[i + 1]` are the rows of `entries` that belong to output position i. A row
    contains the input position, the position inside the window, and the number of elements in the
    window.
    """

    begin: np.ndarray
    entries: np.ndarray


def taps(
    length: int, size: int, stride: int, padding: tuple[int, int], dilation: int, *, adjoint: bool
) -> Taps:
    """Return the taps of the windows over an axis of this length; of its elements if `adjoint`."""
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
    return Taps(begin, np.array([entry for row in rows for entry in row], np.int64).reshape(-1, 3))


# --- the kernel


_FLOATS = ("float32", "float64")


@native_kernel
def _pool(
    k: Emitter,
    read: ImageMemory,
    written: ImageMemory,
    index: ImageMemory | None,
    images: Integer,
    channels: Integer,
    rows: Integer,
    columns: Integer,
    width: Integer,
    whole: Integer,
    row_begin: Pointer,
    row_taps: Pointer,
    column_begin: Pointer,
    column_taps: Pointer,
    mode: str,
    lanes: tuple[int, ...],
    is_masked: bool,
) -> None:
    """Run the loop over all output pixels.

    `width` is the width of a window. `whole` is the size of a window if padding counts, else 0. The
    index has the winner of each window: "max" writes it, "gather" and "scatter" read it.
    """
    with k.loop(*k.part_range(images * rows)) as line, k.loop(0, columns) as column:
        image, row = line // rows, line % rows
        row_from, row_to = row_begin.load(row), row_begin.load(row + 1)
        column_from, column_to = column_begin.load(column), column_begin.load(column + 1)
        taken = (row_to - row_from) * (column_to - column_from)
        for channel, count, mask in k.masked_vectors(channels, lanes, masked=is_masked):
            loop = _Channels(k, mode, read.memory.computed, index, count)
            if mode == "max":
                with k.if_then(taken > 0):
                    down, across = row_taps.at(3 * row_from), column_taps.at(3 * column_from)
                    loop.begin_at(down.load(1) * width + across.load(1))
            if mode == "gather":
                winners, place = _winner(index, image, row, column, channel)
                loop.wanted = winners.load(place, count, mask)
            with k.loop(row_from, row_to) as i:
                down = row_taps.at(3 * i)
                source = read.line(image, down.load(0))
                with k.loop(column_from, column_to) as j:
                    across = column_taps.at(3 * j)
                    place = read.at(source, across.load(0), channel)
                    value = read.memory.load(place, count, mask)
                    if mode == "scatter":
                        where = down.load(0), across.load(0)
                        winners, place = _winner(index, image, *where, channel)
                        loop.wanted = winners.load(place, count, mask)
                    held = k.select(whole > 0, whole, down.load(2) * across.load(2))
                    loop.tap(value, down.load(1) * width + across.load(1), held)
            place = written.at(written.line(image, row), column, channel)
            result = loop.result(k.select(whole > 0, whole, taken))
            written.memory.store(place, result, mask)
            if mode == "max":
                winners, place = _winner(index, image, row, column, channel)
                winners.store(place, loop.name.value, mask)


def _winner(
    index: ImageMemory | None,
    image: RegisterValue,
    row: RegisterValue,
    column: RegisterValue,
    channel: RegisterValue,
) -> tuple[ElementPointer, RegisterValue]:
    """Return the memory and the offset of a window's winner, for vectors of channels."""
    assert index is not None
    return index.memory, index.at(index.line(image, row), column, channel)


class _Channels:
    """Accumulator for a vector of channels of an output pixel, updated tap by tap."""

    def __init__(
        self, k: Emitter, mode: str, kind: ir.Type, index: ImageMemory | None, count: int
    ) -> None:
        self.k = k
        self.mode = mode
        self.value = k.variable(-math.inf if mode == "max" else 0.0, vector(kind, count))
        positions = I32 if index is None else index.memory.place.type
        self.name = k.variable(-1, vector(positions, count))
        self.wanted: RegisterValue | None = None

    def begin_at(self, position: RegisterValue) -> None:
        """The first element wins unless a later one is larger."""
        self.name.value = self._named(position)

    def _named(self, position: RegisterValue) -> RegisterValue:
        kind = self.name.type
        return self.k.constant(self.k.convert(position, element(kind)), kind)

    def tap(self, x: RegisterValue, position: RegisterValue, held: RegisterValue) -> None:
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

    def result(self, held: RegisterValue) -> RegisterValue:
        value = self.value.value
        return value / self.k.convert(held, element(value.type)) if self.mode == "mean" else value


@native_kernel
def _scatter(
    k: Emitter,
    given: ImageMemory,
    index: ImageMemory,
    out: ImageMemory,
    images: Integer,
    channels: Integer,
    rows: Integer,
    columns: Integer,
    nbytes: Integer,
    height: Integer,
    width: Integer,
    tops: Pointer,
    lefts: Pointer,
    downs: Pointer,
    rights: Pointer,
    reach_down: Integer,
    reach_right: Integer,
    flat: Pointer,
) -> None:
    """Add the value of each window at its winner, image by image.

    This processes one element per window; the gather variant visits all windows of every element.

    An image has `nbytes` bytes, a height and a width. `tops` and `lefts` have the start of each row
    and column of windows. For each position in a window, `downs` and `rights` have its offset in
    rows and columns, with `reach_down` and `reach_right` as their maxima, and `flat` its offset in
    elements.
    """
    with k.loop(*k.part_range(images)) as image:
        k.clear_bytes(out.memory.at(image * out.of_image).place, nbytes)
        with k.loop(0, rows) as row, k.loop(0, columns) as column:
            top, left = tops.load(row), lefts.load(column)
            line, names = given.line(image, row), index.line(image, row)
            corner = out.line(image, top) + left * out.of_column
            low = (top >= 0) & (left >= 0)
            whole = low & (top + reach_down < height) & (left + reach_right < width)

            def add(channel: RegisterValue, *, checked: bool) -> None:
                winner = index.memory.load(index.at(names, column, channel))
                position = k.convert(winner, I64)
                added = given.memory.load(given.at(line, column, channel))
                if not checked:
                    place = corner + flat.load(position) + channel * out.of_channel
                    out.memory.store(place, out.memory.load(place) + added)
                    return
                position = k.maximum(position, 0)
                y, x = downs.load(position), rights.load(position)
                place = out.at(out.line(image, top + y), left + x, channel)
                inside = (top + y >= 0) & (top + y < height) & (left + x >= 0) & (left + x < width)
                with k.if_then((winner >= 0) & inside):
                    out.memory.store(place, out.memory.load(place) + added)

            with k.if_else(whole) as (all_of_it, some):
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
            taps(
                length,
                attrs["size"][i],
                attrs["stride"][i],
                attrs["padding"][i],
                dilation[i],
                adjoint=adjoint,
            )
            for i, length in enumerate((height, width))
        ]
        (read, *positions), (written, *winners) = call.inputs, call.outputs
        index = next(iter([*positions, *winners]), None)
        arrays = [read, written, *positions, *winners]
        dense = all(array.strides[1] == array.itemsize for array in arrays)
        rows, columns = attrs["size"]
        down, across = tables
        count, channels, out_rows, out_columns = written.shape
        return NativeRunner(
            [
                _pool.call(
                    read=image_memory(read),
                    written=image_memory(written),
                    index=None if index is None else image_memory(index),
                    images=count,
                    channels=channels,
                    rows=out_rows,
                    columns=out_columns,
                    width=columns,
                    whole=rows * columns if attrs.get("count_padding") else 0,
                    row_begin=down.begin,
                    row_taps=down.entries,
                    column_begin=across.begin,
                    column_taps=across.entries,
                    mode=mode,
                    **_vectors(read.dtype.name, channels if dense else 1),
                    parts=thread_count() if max(read.size, written.size) >= WORTH_SPLITTING else 1,
                )
            ]
        )

    return bind


def _bind_average(mode: str, *, adjoint: bool) -> Callable[[Call], Runner]:
    in_general = _bind(mode, adjoint=adjoint)

    def bind(call: Call) -> Runner:
        if not tiles_image(call):
            return in_general(call)
        (read,), (written,) = call.inputs, call.outputs
        windows, pixels = (read, written) if adjoint else (written, read)
        dense = all(array.strides[1] == array.itemsize for array in (read, written))
        count, channels, rows, columns = windows.shape
        return NativeRunner(
            [
                average_windows.call(
                    windows=image_memory(windows),
                    pixels=image_memory(pixels),
                    images=count,
                    channels=channels,
                    rows=rows,
                    columns=columns,
                    size=call.node.attrs["size"],
                    spreads=adjoint,
                    **_vectors(read.dtype.name, channels if dense else 1),
                    parts=thread_count() if pixels.size >= WORTH_SPLITTING else 1,
                )
            ]
        )

    return bind


def _bind_scatter(call: Call) -> Runner:
    (out,), (given, index) = call.outputs, call.inputs
    image = out[:1]
    whole = image.size and sorted(image.strides[1:])[0] == out.itemsize
    dense = whole and out.strides[0] == image.nbytes and image.nbytes == _extent(image)
    if not dense or given.dtype.name not in _FLOATS or len(out) < thread_count():
        return _bind("scatter", adjoint=True)(call)
    attrs = call.node.attrs
    starts = [
        np.arange(given.shape[2 + i]) * attrs["stride"][i] - attrs["padding"][i][0] for i in (0, 1)
    ]
    down, across = (np.arange(attrs["size"][i]) * attrs["dilation"][i] for i in (0, 1))
    *_, row_step, column_step = (step // out.itemsize for step in out.strides)
    images, channels, rows, columns = given.shape
    return NativeRunner(
        [
            _scatter.call(
                given=image_memory(given),
                index=image_memory(index),
                out=image_memory(out),
                images=images,
                channels=channels,
                rows=rows,
                columns=columns,
                nbytes=image.nbytes,
                height=out.shape[2],
                width=out.shape[3],
                tops=starts[0],
                lefts=starts[1],
                downs=np.repeat(down, len(across)),
                rights=np.tile(across, len(down)),
                reach_down=down[-1],
                reach_right=across[-1],
                flat=(down[:, None] * row_step + across * column_step).ravel(),
                parts=thread_count() if out.size >= WORTH_SPLITTING else 1,
            )
        ]
    )


def _extent(array: np.ndarray) -> int:
    """Return the bytes from the first to the last element of an array."""
    steps = zip(array.shape, array.strides, strict=True)
    return int(sum((n - 1) * step for n, step in steps)) + array.itemsize


def _vectors(dtype: str, channels: int) -> dict[str, tuple[int, ...] | bool]:
    """Return the widths of the vectors in which `channels` adjacent channels are processed."""
    lanes = natural_lanes(computed_type(dtype))
    if channels == 1:
        return {"lanes": (1,), "is_masked": False}
    if channels % lanes > 1 and channels < 4 * lanes and host_target().has_masks:
        return {"lanes": (lanes,), "is_masked": True}
    # Several registers at a time: looking up a tap costs as much as a register's arithmetic.
    return {"lanes": (4 * lanes, lanes, 1), "is_masked": False}


for _op, _mode, _adjoint in (
    ("max_pool2d", "max", False),
    ("pool_gather", "gather", False),
):
    offer(_op, "native", _bind(_mode, adjoint=_adjoint), priority=10)
for _op, _mode, _adjoint in (
    ("avg_pool2d", "mean", False),
    ("avg_pool2d_input", "spread", True),
):
    offer(_op, "native", _bind_average(_mode, adjoint=_adjoint), priority=10)
offer("pool_scatter", "native", _bind_scatter, priority=10)
