"""The operands of a loop in memory: reading and writing blocks of them along the innermost axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llvmlite import ir

from caldera.kernels.native.codegen.dtypes import ElementPointer, from_memory, to_memory
from caldera.kernels.native.codegen.emitter import I32, Emitter, Number, Pointer, Value, vector
from caldera.kernels.native.codegen.kernel import Integer


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
            single = raw.lane(lane)
            self.element(index + lane).store(0, single)


# --- as kernels are given them


@dataclass(frozen=True)
class StridedArray:
    """An array, and the bytes between its elements along the innermost axis."""

    base: ElementPointer
    step: Integer

    def operand(self, mode: str) -> Operand:
        """The array at the first row."""
        return Operand(self.base.k, self.base.place, self.base.name, mode, self.step)


@dataclass(frozen=True)
class OuterAxis:
    """An axis around the innermost one: its length, and each operand's stride in bytes."""

    length: Integer
    strides: list[Integer]


def strided_arrays(
    arrays: Sequence[np.ndarray], strides: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Arrays as a kernel is given them, with their strides from the outermost axis inwards."""
    return [{"base": array, "step": each[-1]} for array, each in zip(arrays, strides, strict=True)]


def outer_axes(
    axes: Iterable[int], lengths: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """Some axes as a kernel is given them."""
    return [{"length": lengths[axis], "strides": [each[axis] for each in strides]} for axis in axes]


def at_row(axes: Sequence[OuterAxis], operands: Sequence[Operand], row: Value) -> list[Operand]:
    """The operands at the row with this number."""
    if not axes:
        return list(operands)
    offsets: list[Value | None] = [None] * len(operands)
    rest = row
    for position in reversed(range(len(axes))):
        index = rest
        if position:
            length = axes[position].length
            quotient = rest // length
            index = rest - quotient * length
            rest = quotient
        for which, stride in enumerate(axes[position].strides):
            part = index * stride
            before = offsets[which]
            offsets[which] = part if before is None else before + part
    return [
        operand if offset is None else operand.moved(offset)
        for operand, offset in zip(operands, offsets, strict=True)
    ]
