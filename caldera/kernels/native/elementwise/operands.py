"""The operands of a loop in memory: reading and writing blocks of them along the innermost axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llvmlite import ir

from caldera.kernels.native.codegen.dtypes import MEMORY_TYPES, from_memory, to_memory
from caldera.kernels.native.codegen.emitter import I32, Emitter, Number, Pointer, Value, vector


@dataclass(frozen=True)
class Operand:
    """An array seen from one place in the outer axes. `step` is the bytes between elements, if
    they are neither dense nor all the same; `fixed` is the element that is the same for all."""

    k: Emitter
    place: Pointer
    dtype: str
    mode: str
    step: Value
    fixed: Value | None = None

    def moved(self, count: Value) -> Operand:
        """The operand so many bytes further on."""
        return replace(self, place=self.place.bytes_on(count))

    def settled(self) -> Operand:
        """The operand with its element loaded, if that is the same along the innermost axis."""
        if self.mode != "0":
            return self
        return replace(self, fixed=from_memory(self.k, self.place.load(0), self.dtype))

    def element(self, index: Number) -> Pointer:
        """Where an element lies."""
        if self.mode == "s":
            return self.place.bytes_on(self.step * index)
        return self.place.at(index if self.mode == "1" else 0)

    def load(self, index: Value, lanes: int) -> Value:
        """Some elements from an index on, in the computed type."""
        if self.fixed is not None:
            return self.k.splat(self.fixed, lanes)
        if self.mode == "1":
            return from_memory(self.k, self.place.load(index, lanes), self.dtype)
        kind = vector(self.place.type, lanes)
        raw = ir.Constant(kind, ir.Undefined)
        for lane in range(lanes):
            single = self.element(index + lane).load(0).raw
            raw = self.k.ir.insert_element(raw, single, I32(lane)) if lanes > 1 else single
        return from_memory(self.k, Value(self.k, raw), self.dtype)

    def store(self, index: Value, value: Value) -> None:
        """Write elements from an index on."""
        raw = to_memory(self.k, value, self.dtype)
        if self.mode == "1":
            self.place.store(index, raw)
            return
        for lane in range(raw.lanes):
            single = raw.lane(lane) if raw.lanes > 1 else raw
            self.element(index + lane).store(0, single)


class Slots:
    """Reads a kernel's slots one after the other."""

    def __init__(self, k: Emitter) -> None:
        self.k = k
        self.next = 0

    def integer(self) -> Value:
        """The next slot as an integer."""
        self.next += 1
        return self.k.integer(self.next - 1)

    def integers(self, count: int) -> list[Value]:
        """The next slots as integers."""
        return [self.integer() for _ in range(count)]

    def operands(self, dtypes: Sequence[str], modes: str) -> list[Operand]:
        """Operands: their addresses, then their steps along the innermost axis."""
        places = []
        for dtype in dtypes:
            places.append(self.k.pointer(self.next, MEMORY_TYPES[dtype]))
            self.next += 1
        steps = self.integers(len(dtypes))
        return [Operand(self.k, *each) for each in zip(places, dtypes, modes, steps, strict=True)]


class Outer:
    """The axes around the innermost one: where each operand is for a row of given number."""

    def __init__(self, slots: Slots, axes: int, operands: int) -> None:
        self.lengths = []
        self.strides: list[list[Value]] = []
        for _ in range(axes):
            self.lengths.append(slots.integer())
            self.strides.append(slots.integers(operands))

    def at(self, operands: Sequence[Operand], row: Value) -> list[Operand]:
        """The operands at the row with this number."""
        if not self.lengths:
            return list(operands)
        offsets: list[Value | None] = [None] * len(operands)
        rest = row
        for position in reversed(range(len(self.lengths))):
            index = rest
            if position:
                length = self.lengths[position]
                quotient = rest // length
                index = rest - quotient * length
                rest = quotient
            for which, stride in enumerate(self.strides[position]):
                part = index * stride
                before = offsets[which]
                offsets[which] = part if before is None else before + part
        return [
            operand if offset is None else operand.moved(offset)
            for operand, offset in zip(operands, offsets, strict=True)
        ]


def in_widths(
    k: Emitter, begin: Value, end: Value, widths: Sequence[int], body: Callable[[Value, int], None]
) -> None:
    """`body(index, lanes)` for as many elements as go into the first width, then the next, ...

    The last width is 1.
    """
    for lanes in widths:
        middle = end if lanes == 1 else begin + (end - begin) // lanes * lanes
        with k.loop(begin, middle, lanes) as index:
            body(index, lanes)
        begin = middle
