"""Ops along one axis, the classes: what softmax and cross entropy share.

An op is written once, over a `Sample`: loops over its classes, sums and maxima over them. Two
kernels come from that. Where the classes of a sample lie side by side and are many, a vector holds
classes of one sample. Else it holds one class of several samples, which lie side by side or at any
distance from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from llvmlite import ir

from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.dtypes import computed_type, stored
from caldera.kernels.native.codegen.emitter import (
    F64,
    I8,
    I16,
    I32,
    I64,
    Emitter,
    Number,
    Value,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.math import at_least, exp_of_negative
from caldera.kernels.native.codegen.program import NativeRunner, native_call
from caldera.kernels.native.codegen.strides import Strides, collapse_axes, parts_for
from caldera.kernels.native.normalisation.statistics import in_powers, line
from caldera.kernels.native.softmax.operands import Operand, Single
from caldera.kernels.table import Array, Runner
from caldera.tensor.shape import size

_BLOCK = 1024
"""Classes that are added up in the type of computation; between blocks, float64 is used."""
_FEW = 64
"""Classes of several samples that are kept on the stack."""
_INTEGERS = {f"{sign}int{kind.width}": kind for sign in ("", "u") for kind in (I8, I16, I32, I64)}

Place = Callable[[Value, int], Value]
"""From (class, lanes) to the values there."""


class Room(Protocol):
    """Where weights wait for their sum."""

    def load(self, index: Value, count: int) -> Value:
        """What was stored for a class."""

    def store(self, index: Value, value: Value) -> None:
        """Keep the weights of a class."""


class Sample:
    """One sample (or several in the lanes of vectors) while a kernel is written."""

    def __init__(
        self,
        k: Emitter,
        kind: ir.Type,
        classes: Value,
        together: int,
        *,
        across: bool,
        kept: Room | None,
    ) -> None:
        self.k = k
        self.kind = kind
        self.classes = classes
        self.together = together
        self.across = across
        self.kept = kept

    @property
    def samples(self) -> int:
        """How many samples are at hand."""
        return self.together if self.across else 1

    # --- loops over the classes

    def each(self, body: Callable[[Value, int], None]) -> None:
        """`body(class, lanes)` for all classes."""
        self._each(0, self.classes, body)

    def _each(self, begin: Number, end: Number, body: Callable[[Value, int], None]) -> None:
        if self.across:
            with self.k.loop(begin, end) as index:
                body(index, self.together)
        else:
            in_powers(self.k, begin, end, self.together, body)

    def largest(self, value: Place) -> Value:
        """The maximum over the classes; a nan among them is the maximum."""
        k = self.k
        found = k.variable(-float("inf"), vector(self.kind, self.together))

        def visit(index: Value, count: int) -> None:
            new = value(index, count)
            if count < self.together:
                new = k.total(new, lambda a, b: at_least(k, a, b))
            found.value = at_least(k, k.constant(new, found.type), found.value)

        self.each(visit)
        return found.value if self.across else k.total(found.value, lambda a, b: at_least(k, a, b))

    def sum(self, value: Place) -> Value:
        """The sum over the classes."""
        k = self.k
        total = k.variable(0.0, vector(F64, self.samples))
        block = k.variable(0.0, vector(self.kind, self.together))
        rest = k.variable(0.0, self.kind)

        def visit(index: Value, count: int) -> None:
            new = value(index, count)
            if count == self.together:
                block.value = block.value + new
            else:
                rest.value = rest.value + k.total(new, lambda a, b: a + b)

        with k.loop(0, self.classes, _BLOCK) as begin:
            block.value = 0.0
            rest.value = 0.0
            self._each(begin, k.minimum(begin + _BLOCK, self.classes), visit)
            found = block.value
            if not self.across:
                found = k.total(found, lambda a, b: a + b) + rest.value
            total.value = total.value + k.convert(found, F64)
        return k.convert(total.value, self.kind)

    # --- softmax

    def below(self, x: Operand, largest: Value) -> Place:
        """x less the largest, and 0 where x is +inf."""
        k = self.k

        def value(index: Value, count: int) -> Value:
            given = x.load(index, count)
            return k.select(given.equals(float("inf")), 0.0, given - largest)

        return value

    def weights(self, x: Operand, *, again: bool) -> tuple[Place, Value, Value]:
        """exp(below(x)), their sum, and the largest x; `again`: the weights are needed later."""
        k = self.k
        largest = self.largest(x.load)
        below = self.below(x, largest)

        def weight(index: Value, count: int) -> Value:
            return exp_of_negative(k, below(index, count))

        kept = self.kept
        if kept is None or not again:
            return weight, self.sum(weight), largest

        def computed_once(index: Value, count: int) -> Value:
            found = weight(index, count)
            kept.store(index, found)
            return found

        total = self.sum(computed_once)
        return kept.load, total, largest


class _Stack:
    """Vectors that are kept on the stack, one for each class."""

    def __init__(self, k: Emitter, kind: ir.Type, together: int) -> None:
        self.together = together
        self.room = k.stack(kind, _FEW * together)

    def load(self, index: Value, count: int) -> Value:
        return self.room.load(index * self.together, count)

    def store(self, index: Value, value: Value) -> None:
        self.room.store(index * self.together, value)


# --- the two kernels

Write = Callable[[Sample, list[Operand], list[Single]], None]
"""Writes an op for one sample, from the operands that have classes and those that have not."""
WRITERS: dict[str, Write] = {}
"""By the name of the op. If the output has classes, it is the last of those that have."""
_SLOTS, _SINGLE_SLOTS, _FIRST = 4, 3, 3
"""Slots of an operand (address, strides of blocks, classes and samples), of one without classes
(address, strides of blocks and samples), and those before them (blocks, classes, samples)."""


def _build_along(k: Emitter, op: str, dtypes: tuple[str, ...], singles: tuple[str, ...]) -> None:
    """Vectors hold classes of one sample."""
    kind = computed_type(dtypes[0])
    classes, samples = k.integer(1), k.integer(2)
    together = line(kind)
    with k.loop(*k.share(samples)) as sample:
        operands, numbers = _operands(k, dtypes, singles, k.constant(0, I64), sample, None)
        # In the output itself, unless they would be rounded there.
        is_wide = dtypes[-1] in ("float32", "float64")
        kept = operands[-1] if is_wide else None
        writer = Sample(k, kind, classes, together, across=False, kept=kept)
        WRITERS[op](writer, operands, numbers)


def _build_across(
    k: Emitter, op: str, dtypes: tuple[str, ...], singles: tuple[str, ...], dense: bool, few: bool
) -> None:
    """Vectors hold one class of several samples: `dense` if these lie side by side."""
    kind = computed_type(dtypes[0])
    outer, classes, inner = k.integer(0), k.integer(1), k.integer(2)
    widest = line(kind) if dense else natural_lanes(kind)
    room = _Stack(k, kind, widest) if few else None

    def write(block: Value, sample: Value, count: int) -> None:
        operands, numbers = _operands(k, dtypes, singles, block, sample, dense)
        writer = Sample(k, kind, classes, count, across=True, kept=room)
        WRITERS[op](writer, operands, numbers)

    blocks = (inner + (widest - 1)) // widest
    with k.loop(*k.share(outer * blocks)) as index:
        block, first = index // blocks, index % blocks * widest
        end = k.minimum(first + widest, inner)
        in_powers(k, first, end, widest, lambda sample, count: write(block, sample, count))


def _operands(
    k: Emitter,
    dtypes: tuple[str, ...],
    singles: tuple[str, ...],
    block: Value,
    sample: Value,
    dense: bool | None,
) -> tuple[list[Operand], list[Single]]:
    """The operands of a sample; `dense` is None where vectors hold classes."""
    operands = []
    slot = _FIRST
    for name in dtypes:
        far, step, apart = (k.integer(slot + i) for i in (1, 2, 3))
        base = stored(k, slot, name).at(block * far + sample * apart)
        along = dense is None
        operands.append(
            Operand(k, base, None if along else step, None if along or dense else apart)
        )
        slot += _SLOTS
    numbers = []
    for name in singles:
        far, apart = k.integer(slot + 1), k.integer(slot + 2)
        place = block * far + sample * apart
        of_int = _INTEGERS.get(name)
        single = k.pointer(slot, of_int) if of_int is not None else stored(k, slot, name)
        numbers.append(Single(k, single.at(place), apart, unsigned=name.startswith("u")))
        slot += _SINGLE_SLOTS
    return operands, numbers


# --- tying them to arrays


def bind_classes(
    op: str, axis: int, full: Sequence[Array], singles: Sequence[Array]
) -> Runner | None:
    """The op on arrays with classes along `axis` (the first decides) and arrays without.

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
    address = _address(op, full, singles, found[: len(full)], (outer, classes, inner))
    slots: list[Array | int] = [outer, classes, inner]
    for array, (far_step, step, apart) in zip(full, found[: len(full)], strict=True):
        slots += [array, far_step, step, apart]
    for array, (far_step, _, apart) in zip(singles, found[len(full) :], strict=True):
        slots += [array, far_step, apart]
    parts = min(parts_for(first.size, costly=True), outer * inner)
    return NativeRunner([native_call(address, *slots, parts=parts)])


def _address(
    op: str,
    full: Sequence[Array],
    singles: Sequence[Array],
    strides: Sequence[Strides],
    sizes: tuple[int, int, int],
) -> int:
    outer, classes, inner = sizes
    names = {
        "op": op,
        "dtypes": tuple(each.dtype.name for each in full),
        "singles": tuple(each.dtype.name for each in singles),
    }
    many = 4 * natural_lanes(computed_type(full[0].dtype.name))
    if outer == 1 and classes >= many and all(step == 1 for _, step, _ in strides):
        return compiled(_build_along, **names)
    dense = inner > 1 and all(apart == 1 for _, _, apart in strides)
    return compiled(_build_across, **names, dense=dense, few=classes <= _FEW)
