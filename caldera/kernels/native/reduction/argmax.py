"""The positions of largest and smallest elements along an axis: the first among equals, and a nan
counts as larger and smaller than anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopAxes, LoopBody, axes_of, identity
from caldera.kernels.native.codegen import (
    I32,
    I64,
    MEMORY_TYPES,
    UNSIGNED,
    Emitter,
    Integer,
    NativeRunner,
    RegisterValue,
    constant,
    from_memory,
    is_floating,
    native_kernel,
    offer,
    to_memory,
)
from caldera.kernels.native.elementwise.loop import (
    InnerArray,
    OuterAxis,
    StridedOperand,
    at_row,
    outer_axes,
    strided_arrays,
    vector_lanes,
    workers,
)
from caldera.kernels.native.elementwise.operations import combine
from caldera.kernels.table import Call, Runner

LONGEST = 1 << 31
"""Positions are kept in 32 bits while columns are searched."""
COLUMNS = 512
"""Columns that are searched together."""


@dataclass(frozen=True)
class _Search:
    """Comparison that selects the winner of two elements."""

    k: Emitter
    dtype: str
    sign: str

    def beats(self, value: RegisterValue, best: RegisterValue) -> RegisterValue:
        """Return true if a value is better than the best so far."""
        better = self.k.compare(self.sign, value, best, unsigned=self.dtype in UNSIGNED)
        if is_floating(value.type):
            better = better | (self.k.is_nan(value) & ~self.k.is_nan(best))
        return better

    def equals(self, value: RegisterValue, best: RegisterValue) -> RegisterValue:
        """Return true if neither is better."""
        same = value.equals(best)
        if is_floating(value.type):
            same = same | (self.k.is_nan(value) & self.k.is_nan(best))
        return same


@native_kernel
def along(
    k: Emitter,
    operands: list[InnerArray],
    outer: list[OuterAxis],
    rows: Integer,
    inner: Integer,
    sign: str,
    modes: str,
    lanes: int,
) -> None:
    """Search the innermost axis: find the best value first, then its index."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    search = _Search(k, operands[0].base.name, sign)
    with k.loop(*k.part_range(rows)) as row:
        x, result = at_row(outer, arrays, row)
        x = x.settled()
        winner = _best_of_row(search, x, inner, lanes)
        middle = inner // lanes * lanes
        start = k.variable(0, I64)
        # A vector is loaded before the bounds check, so the first one must be inside the row.
        with (
            k.if_then(inner >= lanes),
            k.while_loop(
                lambda: (
                    (start.value < middle)
                    & _is_absent(search, x, start.value, lanes, winner, inner)
                )
            ),
        ):
            start.value = start.value + lanes
        with k.while_loop(lambda: ~search.equals(x.load(start.value, 1), winner)):
            start.value = start.value + 1
        result.store(k.constant(0, I64), start.value)


def _best_of_row(
    search: _Search, x: StridedOperand, inner: RegisterValue, lanes: int
) -> RegisterValue:
    k = search.k
    op = "max" if search.sign == ">" else "min"
    nothing = identity(op, search.dtype)

    def combined(a: RegisterValue, b: RegisterValue) -> RegisterValue:
        return combine(k, op, search.dtype, a, b)

    winner = k.variable(constant(k, nothing, search.dtype, 1))
    begin = k.constant(0, I64)
    for count in (4 * lanes, 1):
        middle = inner if count == 1 else inner // count * count
        best = k.variable(constant(k, nothing, search.dtype, count))
        with k.loop(begin, middle, count) as index:
            best.value = combined(best.value, x.load(index, count))
        winner.value = combined(winner.value, k.reduce_lanes(best.value, combined))
        begin = middle
    return winner.value


def _is_absent(
    search: _Search,
    x: StridedOperand,
    index: RegisterValue,
    lanes: int,
    winner: RegisterValue,
    inner: RegisterValue,
) -> RegisterValue:
    """Return true if no element of a vector is the best one.

    Beyond the end of the row, the first vector is tested.
    """
    k = search.k
    inside = k.select(index + lanes <= inner, index, k.constant(0, I64))
    value = x.load(inside, lanes)
    found = search.equals(value, k.splat(winner, lanes))
    return ~k.reduce_lanes(found, lambda a, b: a | b)


@native_kernel
def across(
    k: Emitter,
    operands: list[InnerArray],
    outer: list[OuterAxis],
    rows: Integer,
    columns: Integer,
    length: Integer,
    stride: Integer,
    sign: str,
    modes: str,
    lanes: int,
) -> None:
    """Search another axis, with a length and a stride, row by row for a group of columns."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    dtype = operands[0].base.name
    search = _Search(k, operands[0].base.name, sign)
    groups = (columns + (COLUMNS - 1)) // COLUMNS
    begin, end = k.part_range(rows * groups)
    best, place = k.alloca(MEMORY_TYPES[dtype], COLUMNS), k.alloca(I32, COLUMNS)
    with k.loop(begin, end) as task:
        row = task // groups
        left = (task - row * groups) * COLUMNS
        right = k.minimum(left + COLUMNS, columns)
        x, result = at_row(outer, arrays, row)
        with k.loop(0, length) as index:
            here = x.moved(stride * index).settled()
            number = k.convert(index, I32)
            for column, count in k.vectors(left, right, lanes, 1):
                value = here.load(column, count)
                before = from_memory(k, best.load(column - left, count), dtype)
                better = search.beats(value, before) | k.splat(index.equals(0), count)
                chosen = k.select(better, value, before)
                best.store(column - left, to_memory(k, chosen, dtype))
                where = place.load(column - left, count)
                place.store(column - left, k.select(better, k.splat(number, count), where))
        with k.loop(left, right) as column:
            result.store(column, k.convert(place.load(column - left), I64))


def _bind(call: Call) -> Runner:
    (x,), (out,) = call.inputs, call.outputs
    if not out.size:
        return NativeRunner([])
    axis = call.node.attrs["axis"]
    result = out if out.ndim == x.ndim else np.expand_dims(out, axis)
    loop = axes_of(x.shape, [x, result], (axis,))
    sign = ">" if call.node.op.name == "argmax" else "<"
    loop_body = LoopBody((x.dtype.name,), (), ())
    lanes = vector_lanes(loop_body)
    parts = workers(loop_body, x.size)
    sizes = (x.itemsize, 8)
    if not any(loop.reduced):
        loop = LoopAxes(
            (*loop.lengths, 1), (*loop.reduced, True), tuple((*s, 0) for s in loop.strides)
        )
    operands = strided_arrays([x, result], loop.strides)
    if loop.reduced[-1]:
        *outer, inner = loop.lengths
        mode = loop.modes(sizes)[0] if inner > 1 else "1"
        rows = size(tuple(outer))
        return NativeRunner(
            [
                along.call(
                    operands=operands,
                    outer=outer_axes(range(len(outer)), loop.lengths, loop.strides),
                    rows=rows,
                    inner=inner,
                    sign=sign,
                    modes=mode + "1",
                    lanes=lanes,
                    parts=min(parts, rows),
                )
            ]
        )
    chosen = loop.reduced.index(True)
    others = [each for each in range(len(loop.lengths) - 1) if each != chosen]
    return NativeRunner(
        [
            across.call(
                operands=operands,
                outer=outer_axes(others, loop.lengths, loop.strides),
                rows=size(tuple(loop.lengths[each] for each in others)),
                columns=loop.lengths[-1],
                length=loop.lengths[chosen],
                stride=loop.strides[0][chosen],
                sign=sign,
                modes=loop.modes(sizes),
                lanes=lanes,
                parts=parts,
            )
        ]
    )


offer(
    ("argmax", "argmin"),
    "native",
    _bind,
    supports=lambda node: node.inputs[0].shape[node.attrs["axis"]] < LONGEST,
    priority=10,
)
