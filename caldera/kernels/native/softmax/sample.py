"""Ops along one axis, the classes: code shared by softmax and cross entropy.

An op is written once for a `Sample`, with loops, sums and maxima over its classes. Two kernels are
built from it. If the classes of a sample are contiguous and numerous, a vector contains several
classes of the same sample. Otherwise, it contains the same class of several samples, at any
distance from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llvmlite import ir

from caldera.core.tensor.shape import size
from caldera.kernels.native.codegen import (
    F64,
    I64,
    ElementPointer,
    Emitter,
    Integer,
    NativeRunner,
    Number,
    RegisterValue,
    collapse_axes,
    computed_type,
    line_lanes,
    native_kernel,
    natural_lanes,
    parts_for,
    shrinking,
    vector,
)
from caldera.kernels.native.codegen.math import exp_of_negative, maximum
from caldera.kernels.table import Array, Runner


@dataclass(frozen=True)
class ClassOperand:
    """Numbers for each class of a sample, or of several samples in the lanes.

    `step` is the distance between classes, `apart` the distance between samples; None if
    contiguous.
    """

    k: Emitter
    base: ElementPointer
    step: RegisterValue | None
    apart: RegisterValue | None

    def load(self, index: Number, count: int) -> RegisterValue:
        """Load a class of `count` samples, or `count` classes of a sample."""
        place = self._place(index)
        if self.apart is None:
            return self.base.load(place, count)
        lanes = range(count)
        return self.k.vector_of([self.base.load(place + self._offset(lane)) for lane in lanes])

    def store(self, index: Number, value: RegisterValue) -> None:
        """Write what `load` would read."""
        place = self._place(index)
        if self.apart is None:
            self.base.store(place, value)
            return
        for lane in range(value.lanes):
            self.base.store(place + self._offset(lane), value.lane(lane))

    def load_at(self, index: RegisterValue) -> RegisterValue:
        """Return the class that `index` names for each sample."""
        places = [self._element(index.lane(lane), lane) for lane in range(index.lanes)]
        return self.k.vector_of([self.base.load(place) for place in places])

    def store_at(
        self, index: RegisterValue, value: RegisterValue, condition: RegisterValue
    ) -> None:
        """Write the class that `index` names for each sample, where the condition holds."""
        for lane in range(index.lanes):
            with self.k.if_then(condition.lane(lane)):
                self.base.store(self._element(index.lane(lane), lane), value.lane(lane))

    def _element(self, index: RegisterValue, lane: int) -> RegisterValue:
        place = self._place(index)
        return place + lane if self.apart is None else place + self._offset(lane)

    def _place(self, index: Number) -> RegisterValue:
        found = self.k.constant(index, I64)
        return found if self.step is None else found * self.step

    def _offset(self, lane: int) -> RegisterValue:
        assert self.apart is not None
        return self.apart * lane


@dataclass(frozen=True)
class Single:
    """Address of the single number of each sample: a label, a loss, a loss's gradient."""

    k: Emitter
    base: ElementPointer
    apart: RegisterValue

    def load(self, count: int) -> RegisterValue:
        """Load the number of this sample, or of the `count` samples in the lanes."""
        return self.k.vector_of([self.base.load(self.apart * lane) for lane in range(count)])

    def load_index(self, count: int) -> RegisterValue:
        """Load the number, as `load` does, and convert it to int64."""
        return self.k.convert(self.load(count), I64, unsigned=self.base.name.startswith("u"))

    def store(self, value: RegisterValue) -> None:
        """Write it."""
        for lane in range(value.lanes):
            self.base.store(self.apart * lane, value.lane(lane))


_BLOCK = 1024
"""Classes that are added up in the type of computation; between blocks, float64 is used."""
_FEW = 64
"""Maximum number of classes of several samples buffered on the stack."""

Place = Callable[[RegisterValue, int], RegisterValue]
"""Function that returns the values at a class, for a number of lanes."""


class WeightBuffer(Protocol):
    """Buffer for weights until their sum is known."""

    def load(self, index: RegisterValue, count: int) -> RegisterValue:
        """Load the weights of a class."""

    def store(self, index: RegisterValue, value: RegisterValue) -> None:
        """Keep the weights of a class."""


class Sample:
    """One sample (or several in the lanes of vectors) while a kernel is written."""

    def __init__(
        self,
        k: Emitter,
        kind: ir.Type,
        classes: RegisterValue,
        together: int,
        *,
        across: bool,
        buffer: WeightBuffer | None,
    ) -> None:
        self.k = k
        self.kind = kind
        self.classes = classes
        self.together = together
        self.across = across
        self.buffer = buffer

    @property
    def samples(self) -> int:
        """Number of samples in the lanes."""
        return self.together if self.across else 1

    # --- loops over the classes

    def each(
        self, begin: Number = 0, end: Number | None = None
    ) -> Iterator[tuple[RegisterValue, int]]:
        """Yield loops over the classes for a `for` statement: (class, lanes)."""
        end = self.classes if end is None else end
        if self.across:
            with self.k.loop(begin, end) as index:
                yield index, self.together
        else:
            yield from self.k.vectors(begin, end, *shrinking(self.together))

    def largest(self, value: Place) -> RegisterValue:
        """Return the maximum over the classes; a nan among them is the maximum."""
        k = self.k
        found = k.variable(-float("inf"), vector(self.kind, self.together))
        for index, count in self.each():
            new = value(index, count)
            if count < self.together:
                new = k.reduce_lanes(new, lambda a, b: maximum(k, a, b))
            found.value = maximum(k, k.constant(new, found.type), found.value)
        return (
            found.value
            if self.across
            else k.reduce_lanes(found.value, lambda a, b: maximum(k, a, b))
        )

    def sum(self, value: Place) -> RegisterValue:
        """Return the sum over the classes."""
        k = self.k
        total = k.variable(0.0, vector(F64, self.samples))
        block = k.variable(0.0, vector(self.kind, self.together))
        rest = k.variable(0.0, self.kind)
        with k.loop(0, self.classes, _BLOCK) as begin:
            block.value = 0.0
            rest.value = 0.0
            for index, count in self.each(begin, k.minimum(begin + _BLOCK, self.classes)):
                new = value(index, count)
                if count == self.together:
                    block.value = block.value + new
                else:
                    rest.value = rest.value + k.reduce_lanes(new, lambda a, b: a + b)
            found = block.value
            if not self.across:
                found = k.reduce_lanes(found, lambda a, b: a + b) + rest.value
            total.value = total.value + k.convert(found, F64)
        return k.convert(total.value, self.kind)

    # --- softmax

    def below(self, x: ClassOperand, largest: RegisterValue) -> Place:
        """x less the largest, and 0 where x is +inf."""
        k = self.k

        def value(index: RegisterValue, count: int) -> RegisterValue:
            given = x.load(index, count)
            return k.select(given.equals(float("inf")), 0.0, given - largest)

        return value

    def weights(
        self, x: ClassOperand, *, again: bool
    ) -> tuple[Place, RegisterValue, RegisterValue]:
        """exp(below(x)), their sum, and the largest x; `again`: the weights are needed later."""
        k = self.k
        largest = self.largest(x.load)
        below = self.below(x, largest)

        def weight(index: RegisterValue, count: int) -> RegisterValue:
            return exp_of_negative(k, below(index, count))

        buffer = self.buffer
        if buffer is None or not again:
            return weight, self.sum(weight), largest

        def computed_once(index: RegisterValue, count: int) -> RegisterValue:
            found = weight(index, count)
            buffer.store(index, found)
            return found

        return buffer.load, self.sum(computed_once), largest


class _Stack:
    """Vectors that are buffer on the stack, one for each class."""

    def __init__(self, k: Emitter, kind: ir.Type, together: int) -> None:
        self.together = together
        self.memory = k.alloca(kind, _FEW * together)

    def load(self, index: RegisterValue, count: int) -> RegisterValue:
        return self.memory.load(index * self.together, count)

    def store(self, index: RegisterValue, value: RegisterValue) -> None:
        self.memory.store(index * self.together, value)


# --- the two kernels

Write = Callable[[Sample, list[ClassOperand], list[Single]], None]
"""Function that writes an op for a sample, from operands with and without classes."""
WRITERS: dict[str, Write] = {}
"""Writers by name of the op. An output with classes is the last operand with classes."""


@dataclass(frozen=True)
class _Full:
    """An array with classes: its strides from block to block, class to class, sample to sample."""

    base: ElementPointer
    far: Integer
    step: Integer
    apart: Integer

    def at(
        self, k: Emitter, block: RegisterValue, sample: RegisterValue, dense: bool | None
    ) -> ClassOperand:
        """Return the operand of a sample; `dense` is None where vectors hold classes."""
        base = self.base.at(block * self.far + sample * self.apart)
        if dense is None:
            return ClassOperand(k, base, None, None)
        return ClassOperand(k, base, self.step, None if dense else self.apart)


@dataclass(frozen=True)
class _Single:
    """An array with one number a sample."""

    base: ElementPointer
    far: Integer
    apart: Integer

    def at(self, k: Emitter, block: RegisterValue, sample: RegisterValue) -> Single:
        """Return the address of the number of a sample."""
        return Single(k, self.base.at(block * self.far + sample * self.apart), self.apart)


@native_kernel
def _along(
    k: Emitter,
    full: list[_Full],
    singles: list[_Single],
    outer: Integer,
    classes: Integer,
    inner: Integer,
    op: str,
) -> None:
    """Run an op with several classes of the same sample in each vector."""
    kind = full[0].base.computed
    with k.loop(*k.part_range(inner)) as sample:
        block = k.constant(0, I64)
        operands = [each.at(k, block, sample, None) for each in full]
        # In the output itself, unless they would be rounded there.
        buffer = None if full[-1].base.is_half else operands[-1]
        writer = Sample(k, kind, classes, line_lanes(kind), across=False, buffer=buffer)
        WRITERS[op](writer, operands, [each.at(k, block, sample) for each in singles])


@native_kernel
def _across(
    k: Emitter,
    full: list[_Full],
    singles: list[_Single],
    outer: Integer,
    classes: Integer,
    inner: Integer,
    op: str,
    dense: bool,
    few: bool,
) -> None:
    """Vectors hold one class of several samples: `dense` if these lie side by side."""
    kind = full[0].base.computed
    widest = line_lanes(kind) if dense else natural_lanes(kind)
    buffer = _Stack(k, kind, widest) if few else None
    blocks = (inner + (widest - 1)) // widest
    with k.loop(*k.part_range(outer * blocks)) as index:
        block, first = index // blocks, index % blocks * widest
        end = k.minimum(first + widest, inner)
        for sample, count in k.vectors(first, end, *shrinking(widest)):
            operands = [each.at(k, block, sample, dense) for each in full]
            writer = Sample(k, kind, classes, count, across=True, buffer=buffer)
            WRITERS[op](writer, operands, [each.at(k, block, sample) for each in singles])


# --- tying them to arrays


def bind_classes(
    op: str, axis: int, full: Sequence[Array], singles: Sequence[Array]
) -> Runner | None:
    """Return the op on arrays with classes along `axis` (the first decides) and arrays without.

    None if their layouts do not fit together.
    """
    first = full[0]
    arrays = [*full, *(np.expand_dims(each, axis) for each in singles)]
    others = tuple(a for a in range(first.ndim) if a != axis)
    classes = first.shape[axis]
    outer, inner = 1, size(tuple(first.shape[a] for a in others))
    found = collapse_axes(arrays, [(), (axis,), others])
    if found is None:
        far = tuple(a for a in others if abs(first.strides[a]) > abs(first.strides[axis]))
        near = tuple(a for a in others if a not in far)
        outer, inner = (size(tuple(first.shape[a] for a in group)) for group in (far, near))
        found = collapse_axes(arrays, [far, (axis,), near])
    if found is None:
        return None
    strides = found[: len(full)]
    given = {
        "full": [
            {"base": array, "far": far_step, "step": step, "apart": apart}
            for array, (far_step, step, apart) in zip(full, strides, strict=True)
        ],
        "singles": [
            {"base": array, "far": far_step, "apart": apart}
            for array, (far_step, _, apart) in zip(singles, found[len(full) :], strict=True)
        ],
        "outer": outer,
        "classes": classes,
        "inner": inner,
        "op": op,
        "parts": min(parts_for(first.size, costly=True), outer * inner),
    }
    many = 4 * natural_lanes(computed_type(first.dtype.name))
    if outer == 1 and classes >= many and all(step == 1 for _, step, _ in strides):
        return NativeRunner([_along.call(**given)])
    dense = inner > 1 and all(apart == 1 for _, _, apart in strides)
    return NativeRunner([_across.call(**given, dense=dense, few=classes <= _FEW)])
