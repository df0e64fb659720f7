"""Copies between arrays of different layouts, and the movement ops based on these copies.

A copy is simplified when it is bound: axes of length 1 are dropped, and axes that are adjacent in
both arrays are merged. One of three loops handles the two innermost remaining axes: contiguous
rows, small blocks transposed in registers, or single elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod

import numpy as np

from caldera.base.threads import thread_count
from caldera.kernels.native.codegen import (
    I64,
    INTEGERS,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Pointer,
    RegisterValue,
    as_integers,
    in_sequence,
    native_kernel,
    natural_lanes,
    offer,
)
from caldera.kernels.table import COPY, Array, Call, Runner

_OUTER = 4
"""Maximum number of axes of a copy in addition to the two innermost."""
_WORTH_SPLITTING = 1 << 16
"""Bytes from which on a second thread pays."""
_LONGEST_ROW = 4096
"""Maximum number of elements in a row: longer rows are split between workers."""


@dataclass(frozen=True)
class CopyAxis:
    """A loop: its number of iterations, and its stride in either array (in elements)."""

    count: int
    target: int
    source: int


@dataclass(frozen=True)
class LoopArgument:
    """The same in a kernel, given as the fields of an `CopyAxis`."""

    count: Integer
    target: Integer
    source: Integer


def simplest(target: np.ndarray, source: np.ndarray) -> list[CopyAxis]:
    """Return the loops of a copy, with the smallest stride in the target innermost."""
    axes = [
        CopyAxis(n, t // target.itemsize, s // target.itemsize)
        for n, t, s in zip(target.shape, target.strides, source.strides, strict=True)
        if n != 1
    ]
    axes.sort(key=lambda axis: -abs(axis.target))
    merged: list[CopyAxis] = []
    for axis in axes:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.target == axis.target * axis.count
            and last.source == axis.source * axis.count
        ):
            merged[-1] = CopyAxis(last.count * axis.count, axis.target, axis.source)
        else:
            merged.append(axis)
    return merged or [CopyAxis(1, 1, 1)]


def copy_calls(target: np.ndarray, source: np.ndarray) -> list[NativeCall] | None:
    """Return native calls for `target[...] = source`, or None if there are too many axes.

    Both arrays have the same shape and dtype and must not overlap. The source may have strides of 0
    or negative strides.
    """
    if target.size == 0:
        return []
    axes = _cut_long_row(simplest(target, source))
    columns = axes.pop()
    mode = "single"
    rows = CopyAxis(1, 0, 0)
    across = next((axis for axis in axes if axis.source == 1), None)
    if columns.target == 1 and columns.source in (0, 1):
        mode = "rows" if columns.source else "fill"
        rows = axes.pop() if axes else rows
    elif columns.target == 1 and across is not None:
        mode = "transposed"
        axes.remove(across)
        rows = across
    elif axes:
        rows = axes.pop()
    if len(axes) > _OUTER:
        return None
    axes = [CopyAxis(1, 0, 0)] * (_OUTER - len(axes)) + axes
    units = prod(axis.count for axis in axes)
    chunks = 1 if units >= 4 * thread_count() else min(4 * thread_count(), rows.count)
    busy = target.nbytes >= _WORTH_SPLITTING
    return [
        _copy.call(
            target=as_integers(target),
            source=as_integers(source),
            outer=list(map(vars, axes)),
            rows=vars(rows),
            columns=vars(columns),
            chunks=chunks,
            mode=mode,
            parts=thread_count() if busy else 1,
        )
    ]


def _cut_long_row(axes: list[CopyAxis]) -> list[CopyAxis]:
    """Return a row that is the whole copy, as several rows if they come out even."""
    if len(axes) > 1 or axes[0].count <= _LONGEST_ROW:
        return axes
    (row,) = axes
    length = next((n for n in range(_LONGEST_ROW, 63, -1) if row.count % n == 0), row.count)
    outer = CopyAxis(row.count // length, row.target * length, row.source * length)
    return [outer, CopyAxis(length, row.target, row.source)]


@native_kernel
def _copy(
    k: Emitter,
    target: Pointer,
    source: Pointer,
    outer: list[LoopArgument],
    rows: LoopArgument,
    columns: LoopArgument,
    chunks: Integer,
    mode: str,
) -> None:
    """Rows are shared out in chunks."""
    units = chunks
    for axis in outer:
        units = units * axis.count
    with k.loop(*k.part_range(units)) as unit:
        rest, chunk = unit // chunks, unit % chunks
        to, start = k.constant(0, I64), k.constant(0, I64)
        for axis in reversed(outer):
            index = rest % axis.count
            rest = rest // axis.count
            to = to + index * axis.target
            start = start + index * axis.source
        begin, end = rows.count * chunk // chunks, rows.count * (chunk + 1) // chunks
        block = _Block(k, target.at(to), source.at(start), rows, columns)
        if mode == "transposed":
            block.transpose(begin, end)
        else:
            with k.loop(begin, end) as row:
                block.line(row, mode)


class _Block:
    """The two innermost loops of a copy."""

    def __init__(
        self,
        k: Emitter,
        target: Pointer,
        source: Pointer,
        rows: LoopArgument,
        columns: LoopArgument,
    ) -> None:
        self.k = k
        self.target = target
        self.source = source
        self.row_step, self.row_source = rows.target, rows.source
        self.count, self.step, self.source_step = columns.count, columns.target, columns.source
        self.lanes = natural_lanes(target.type)

    def line(self, row: RegisterValue, mode: str) -> None:
        k = self.k
        target = self.target.at(row * self.row_step)
        source = self.source.at(row * self.row_source)
        if mode == "rows":
            wide = 4 * self.lanes
            for i, count in k.vectors(0, self.count, wide, 1):
                for part in range(0, count, self.lanes):
                    target.store(i + part, source.load(i + part, min(self.lanes, count)))
        elif mode == "fill":
            value = source.load()
            for i, count in k.vectors(0, self.count, self.lanes, 1):
                target.store(i, k.splat(value, count))
        else:
            with k.loop(0, self.count) as i:
                target.store(i * self.step, source.load(i * self.source_step))

    def transpose(self, begin: RegisterValue, end: RegisterValue) -> None:
        """Rows lie side by side in the source, columns in the target: in square blocks."""
        k, lanes = self.k, self.lanes
        whole_rows = begin + (end - begin) // lanes * lanes
        whole_columns = self.count // lanes * lanes
        with k.loop(begin, whole_rows, lanes) as row:
            with k.loop(0, whole_columns, lanes) as column:
                start = row + column * self.source_step
                block = [
                    self.source.load(start + self.source_step * i, lanes) for i in range(lanes)
                ]
                for i, line in enumerate(transposed(k, block)):
                    self.target.store((row + i) * self.row_step + column, line)
            with k.loop(whole_columns, self.count) as column:
                line = self.source.load(row + column * self.source_step, lanes)
                for i in range(lanes):
                    self.target.store((row + i) * self.row_step + column, line.lane(i))
        with k.loop(whole_rows, end) as row, k.loop(0, self.count) as column:
            value = self.source.load(row + column * self.source_step)
            self.target.store(row * self.row_step + column, value)


def transposed(k: Emitter, block: Sequence[RegisterValue]) -> list[RegisterValue]:
    """Return a square block, a vector a row, with rows and columns exchanged."""
    lines = list(block)
    lanes = len(lines)
    half = 1
    while half < lanes:
        low = [i if not i & half else lanes + i - half for i in range(lanes)]
        high = [i + half if not i & half else lanes + i for i in range(lanes)]
        for i in range(lanes):
            if not i & half:
                a, b = lines[i], lines[i + half]
                lines[i], lines[i + half] = k.shuffle(a, b, low), k.shuffle(a, b, high)
        half *= 2
    return lines


# --- movement ops


def copying(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Runner:
    """Return a runner that copies arrays, given (target, source) pairs of equal dtype."""
    calls: list[NativeCall] = []
    for target, source in pairs:
        made = copy_calls(target, source) if target.itemsize in INTEGERS else None
        if made is None:
            return partial(_copy_all, pairs)
        calls += made
    return NativeRunner(calls)


def _copy_all(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    for target, source in pairs:
        np.copyto(target, source)


def bind_copy(call: Call) -> Runner:
    """target = source."""
    return copying([(call.outputs[0], call.inputs[0])])


def _bind_reshape(call: Call) -> Runner:
    (target,), (source,) = call.outputs, call.inputs
    if target.flags.c_contiguous:
        return copying([(target.reshape(source.shape), source)])
    aside = np.empty(target.shape, target.dtype)
    flat = copying([(aside.reshape(source.shape), source)])
    return in_sequence([flat, copying([(target, aside)])])


def _bind_concat(call: Call) -> Runner:
    pieces = _pieces(call.outputs[0], call.inputs, call.node.attrs["axis"])
    return copying(list(zip(pieces, call.inputs, strict=True)))


def _bind_split(call: Call) -> Runner:
    pieces = _pieces(call.inputs[0], call.outputs, call.node.attrs["axis"])
    return copying(list(zip(call.outputs, pieces, strict=True)))


def _pieces(whole: Array, parts: Sequence[Array], axis: int) -> list[Array]:
    """Return views of an array that lie along an axis, as long as these parts."""
    return np.split(whole, list(accumulate(part.shape[axis] for part in parts[:-1])), axis)


def _into(call: Call, place: tuple[slice, ...], around: float) -> Runner:
    """Return the input put at `place` of the output, with `around` everywhere else."""
    (target,), (source,) = call.outputs, call.inputs
    everywhere = np.broadcast_to(np.asarray(around, target.dtype), target.shape)
    return copying([(target, everywhere), (target[place], source)])


def _bind_pad(call: Call) -> Runner:
    lengths = call.inputs[0].shape
    widths = call.node.attrs["widths"]
    place = tuple(slice(a, a + n) for n, (a, _) in zip(lengths, widths, strict=True))
    return _into(call, place, call.node.attrs["value"])


for _op, _bind in (
    ("arrange", bind_copy),
    ("reshape", _bind_reshape),
    ("concat", _bind_concat),
    ("split", _bind_split),
    ("pad", _bind_pad),
    (
        "unslice",
        lambda call: _into(call, tuple(slice(*bound) for bound in call.node.attrs["bounds"]), 0),
    ),
):
    offer(_op, "native", _bind, priority=10)
offer(COPY, "copy", bind_copy)
