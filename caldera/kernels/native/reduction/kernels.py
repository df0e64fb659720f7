"""Kernels of loops with reductions, which may also write element-wise results.

`along` reduces the innermost axis: a row, or a stretch of fixed length, becomes a single number.
`across` reduces another axis: rows, or a fixed number of rows, are combined column by column. The
partial results are stored in a small array, which the same kernels reduce further.

Sums are accumulated in short blocks in the computed type and in float64 beyond, so they are at
least as accurate as pairwise sums. Stretches depend only on lengths, so the number of workers does
not change a result.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.kernels.common.loops import LoopBody, Reduction, accumulator_dtype, identity
from caldera.kernels.native.codegen import (
    HALF_NAMES,
    I64,
    MEMORY_TYPES,
    Emitter,
    Integer,
    RegisterValue,
    cast,
    computed_type,
    constant,
    from_memory,
    native_kernel,
    natural_lanes,
    to_memory,
    vector,
)
from caldera.kernels.native.elementwise.loop import InnerArray, OuterAxis, StridedOperand, at_row
from caldera.kernels.native.elementwise.operations import combine, computed_values

DEPTH = 16
"""Vectors that are added up in the computed type before float64 takes over."""
COLUMNS = 512
"""Columns that `across` takes together."""


class _Total:
    """Accumulator of a reduction in a row."""

    def __init__(self, k: Emitter, reduction: Reduction) -> None:
        self.k = k
        self.op, dtype, _ = reduction
        self.wide = accumulator_dtype(self.op, dtype)
        self.value = k.variable(constant(k, identity(self.op, self.wide), self.wide, 1))

    def add(self, gathered: _Gathered) -> None:
        """Add all lanes of gathered values to the accumulator."""
        value = self.k.reduce_lanes(gathered.value.value, gathered.combined)
        value = cast(self.k, value, gathered.dtype, self.wide)
        self.value.value = combine(self.k, self.op, self.wide, self.value.value, value)

    def result(self, dtype: str) -> RegisterValue:
        """Return the result as a value of a dtype."""
        return cast(self.k, self.value.value, self.wide, dtype)


class _Gathered:
    """A few vectors of a reduction taken together in the computed type."""

    def __init__(self, k: Emitter, reduction: Reduction, lanes: int) -> None:
        self.k = k
        self.op, dtype, _ = reduction
        self.dtype = "float32" if dtype in HALF_NAMES else dtype
        self.lanes = lanes
        self.value = k.variable(0, vector(computed_type(self.dtype), lanes))
        self.forget()

    def forget(self) -> None:
        """Reset the accumulator."""
        nothing = identity(self.op, self.dtype)
        self.value.value = constant(self.k, nothing, self.dtype, self.lanes)

    def add(self, value: RegisterValue) -> None:
        """Add a vector to the partial result."""
        self.value.value = self.combined(self.value.value, value)

    def combined(self, a: RegisterValue, b: RegisterValue) -> RegisterValue:
        """Combine two partial results."""
        return combine(self.k, self.op, self.dtype, a, b)


def _split(
    loop_body: LoopBody, operands: Sequence[StridedOperand]
) -> tuple[list[StridedOperand], ...]:
    first, second = len(loop_body.inputs), len(loop_body.inputs) + len(loop_body.outputs)
    return list(operands[:first]), list(operands[first:second]), list(operands[second:])


@native_kernel
def along(
    k: Emitter,
    operands: list[InnerArray],
    outer: list[OuterAxis],
    rows: Integer,
    inner: Integer,
    stretch: Integer,
    loop_body: LoopBody,
    modes: str,
    widths: tuple[int, ...],
) -> None:
    """Rows of a length, in stretches. The results' inner stride is that from one stretch of a row
    to the next."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    stretches = (inner + (stretch - 1)) // stretch
    with k.loop(*k.part_range(rows * stretches)) as task:
        row = task // stretches
        number = task - row * stretches
        inputs, outputs, places = _split(loop_body, at_row(outer, arrays, row))
        first = number * stretch
        last = k.minimum(first + stretch, inner)
        totals = _row_totals(k, loop_body, inputs, outputs, (first, last), widths)
        for total, place in zip(totals, places, strict=True):
            target = place.moved(place.step * number)
            target.store(k.constant(0, I64), total.result(place.dtype))


def _row_totals(
    k: Emitter,
    loop_body: LoopBody,
    inputs: Sequence[StridedOperand],
    outputs: Sequence[StridedOperand],
    bounds: tuple[RegisterValue, RegisterValue],
    widths: tuple[int, ...],
) -> list[_Total]:
    """Return the totals of part of a row."""
    inputs = [each.settled() for each in inputs]
    totals = [_Total(k, each) for each in loop_body.reductions]
    begin, end = bounds
    for lanes in widths:
        middle = end if lanes == 1 else begin + (end - begin) // lanes * lanes
        gathered = [_Gathered(k, each, lanes) for each in loop_body.reductions]
        with k.loop(begin, middle, lanes * DEPTH) as start:
            for each in gathered:
                each.forget()
            with k.loop(start, k.minimum(start + lanes * DEPTH, middle), lanes) as index:
                _compute(k, loop_body, inputs, outputs, gathered, index, lanes)
            for total, each in zip(totals, gathered, strict=True):
                total.add(each)
        begin = middle
    return totals


def _compute(
    k: Emitter,
    loop_body: LoopBody,
    inputs: Sequence[StridedOperand],
    outputs: Sequence[StridedOperand],
    gathered: Sequence[_Gathered],
    index: RegisterValue,
    lanes: int,
) -> None:
    values = [each.load(index, lanes) for each in inputs]
    written, reduced = computed_values(loop_body, k, values, lanes)
    for operand, value in zip(outputs, written, strict=True):
        operand.store(index, value)
    for each, value in zip(gathered, reduced, strict=True):
        each.add(value)


@native_kernel
def across(
    k: Emitter,
    operands: list[InnerArray],
    outer: list[OuterAxis],
    rows: Integer,
    columns: Integer,
    length: Integer,
    stretch: Integer,
    width: Integer,
    strides: list[Integer],
    loop_body: LoopBody,
    modes: str,
    widths: tuple[int, ...],
) -> None:
    """Rows of a length along the reduced axis, in stretches, and groups of columns of a width (at
    most COLUMNS); `strides` are the operands' along that axis. The results' is that from one
    stretch to the next."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    stretches = (length + (stretch - 1)) // stretch
    groups = (columns + (width - 1)) // width
    begin, end = k.part_range(rows * stretches * groups)
    places = [_Buffer(k, each) for each in loop_body.reductions]
    with k.loop(begin, end) as task:
        place = task // groups
        left = (task - place * groups) * width
        right = k.minimum(left + width, columns)
        row = place // stretches
        number = place - row * stretches
        first = number * stretch
        last = k.minimum(first + stretch, length)
        here = at_row(outer, arrays, row)
        for each in places:
            each.clear()
        # A few rows at a time, so that memory is read along the rows.
        with k.loop(first, last, DEPTH) as start:
            end_of_rows = k.minimum(start + DEPTH, last)
            for column, lanes in k.vectors(left, right, *widths):
                gathered = _column_totals(
                    k, loop_body, (here, strides), (start, end_of_rows), column, lanes
                )
                for buffer, found in zip(places, gathered, strict=True):
                    buffer.add(column - left, found)
        count = len(loop_body.reductions)
        for buffer, operand, stride in zip(places, here[-count:], strides[-count:], strict=True):
            buffer.write(operand.moved(stride * number), left, right, widths)


class _Buffer:
    """Accumulators of a reduction for each of a group of columns."""

    def __init__(self, k: Emitter, reduction: Reduction) -> None:
        self.k = k
        self.op, dtype, _ = reduction
        self.dtype = accumulator_dtype(self.op, dtype)
        self.place = k.alloca(MEMORY_TYPES[self.dtype], COLUMNS)

    def clear(self) -> None:
        """Reset the accumulators."""
        lanes = natural_lanes(self.place.type)
        nothing = constant(self.k, identity(self.op, self.dtype), self.dtype, lanes)
        with self.k.loop(0, COLUMNS, lanes) as column:
            self.place.store(column, to_memory(self.k, nothing, self.dtype))

    def add(self, column: RegisterValue, gathered: _Gathered) -> None:
        """Add gathered values to the accumulators of adjacent columns."""
        value = cast(self.k, gathered.value.value, gathered.dtype, self.dtype)
        before = from_memory(self.k, self.place.load(column, value.lanes), self.dtype)
        after = combine(self.k, self.op, self.dtype, before, value)
        self.place.store(column, to_memory(self.k, after, self.dtype))

    def write(
        self,
        target: StridedOperand,
        left: RegisterValue,
        right: RegisterValue,
        widths: tuple[int, ...],
    ) -> None:
        """Write the results of the columns from `left` to `right`."""
        for column, lanes in self.k.vectors(left, right, *widths[-2:]):
            value = from_memory(self.k, self.place.load(column - left, lanes), self.dtype)
            target.store(column, cast(self.k, value, self.dtype, target.dtype))


def _column_totals(
    k: Emitter,
    loop_body: LoopBody,
    operands: tuple[Sequence[StridedOperand], Sequence[RegisterValue]],
    rows: tuple[RegisterValue, RegisterValue],
    column: RegisterValue,
    lanes: int,
) -> list[_Gathered]:
    """A few rows taken together, for columns side by side. Operands come with their strides."""
    gathered = [_Gathered(k, each, lanes) for each in loop_body.reductions]
    with k.loop(*rows) as row:
        here = [each.moved(stride * row) for each, stride in zip(*operands, strict=True)]
        inputs, outputs, _ = _split(loop_body, here)
        inputs = [each.settled() for each in inputs]
        _compute(k, loop_body, inputs, outputs, gathered, column, lanes)
    return gathered
