"""Native loops of element-wise ops over operands of any layout and dtype.

Operands are read and written in blocks along the innermost axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from llvmlite import ir

from caldera.base.threads import thread_count
from caldera.core.graph.opdef import OPS
from caldera.core.tensor.dtype import NAMES
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import LoopAxes, LoopBody, axes_of, loop_body_of, loop_shape
from caldera.kernels.native.codegen import (
    CACHE_LINE,
    I32,
    I64,
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Number,
    Pointer,
    RegisterValue,
    computed_type,
    from_memory,
    host_target,
    itemsize,
    native_kernel,
    offer,
    to_memory,
    vector,
)
from caldera.kernels.native.elementwise.operations import computed_values, is_known
from caldera.kernels.table import Call, Runner


@dataclass(frozen=True)
class StridedOperand:
    """An array seen from one place in the outer axes. `step` is the bytes between elements, if
    they are neither dense nor all the same; `fixed` is the element that is the same for all."""

    k: Emitter
    place: Pointer
    dtype: str
    mode: str
    step: RegisterValue
    fixed: RegisterValue | None = None

    def moved(self, count: RegisterValue) -> StridedOperand:
        """Return the operand moved by `count` bytes."""
        return replace(self, place=self.place.bytes_on(count))

    def settled(self) -> StridedOperand:
        """The operand with its element loaded, if that is the same along the innermost axis."""
        if self.mode != "0":
            return self
        return replace(self, fixed=from_memory(self.k, self.place.load(0), self.dtype))

    def element(self, index: Number) -> Pointer:
        """Return the address of an element."""
        if self.mode == "s":
            return self.place.bytes_on(self.step * index)
        return self.place.at(index if self.mode == "1" else 0)

    def load(self, index: RegisterValue, lanes: int) -> RegisterValue:
        """Load elements from an index on, in the computed type."""
        if self.fixed is not None:
            return self.k.splat(self.fixed, lanes)
        if self.mode == "1":
            return from_memory(self.k, self.place.load(index, lanes), self.dtype)
        kind = vector(self.place.type, lanes)
        raw = ir.Constant(kind, ir.Undefined)
        for lane in range(lanes):
            single = self.element(index + lane).load(0).raw
            raw = self.k.ir.insert_element(raw, single, I32(lane)) if lanes > 1 else single
        return from_memory(self.k, RegisterValue(self.k, raw), self.dtype)

    def store(self, index: RegisterValue, value: RegisterValue) -> None:
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
class InnerArray:
    """An array, and the bytes between its elements along the innermost axis."""

    base: ElementPointer
    step: Integer

    def operand(self, mode: str) -> StridedOperand:
        """Return the array at the first row."""
        return StridedOperand(self.base.k, self.base.place, self.base.name, mode, self.step)


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
    """Return the kernel argument for outer axes."""
    return [{"length": lengths[axis], "strides": [each[axis] for each in strides]} for axis in axes]


def at_row(
    axes: Sequence[OuterAxis], operands: Sequence[StridedOperand], row: RegisterValue
) -> list[StridedOperand]:
    """Return the operands at the row with this number."""
    if not axes:
        return list(operands)
    offsets: list[RegisterValue | None] = [None] * len(operands)
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


LIGHT_SHARE, HEAVY_SHARE = 1 << 14, 1 << 12
"""Minimum number of elements per worker, for light and for heavy loops."""
MANY_STEPS = 24
"""Maximum number of steps of a loop that handles several vectors together."""
FEW_HEAVY, WIDE = 2, 64
"""Maximum number of heavy steps for several vectors together, and the register bytes required.

Heavy steps have tens of instructions. A single vector stalls on its own dependency chain. Measured
with AVX-512, cycles for 16 elements: GELU with its derivative 117 -> 85, tanh 50 -> 39, exp 30 ->
23.
"""
GRAIN = 64
"""Elements in multiples of which a flat loop is shared: workers write no cache line together."""
SHORT_ROW, LONG_ROW = 64, 2048
"""Elements: rows shorter than the first are laid end to end, up to as many as the second."""
WORTH_JOINING = 1 << 13
"""Minimum number of elements of a loop for which joining short rows pays."""


def vector_lanes(loop_body: LoopBody) -> int:
    """Return elements in a register of the widest type that is computed with."""
    kinds = [computed_type(dtype) for dtype in loop_body.inputs]
    kinds += [computed_type(dtype) for _, dtype, *_ in loop_body.steps]
    widest = max((itemsize(kind) for kind in kinds), default=4)
    return host_target().lanes(max(widest, 4))


def widths(loop_body: LoopBody, longest: int, modes: str = "") -> tuple[int, ...]:
    """Return the widths in which rows of at most `longest` elements are processed.

    The widths are several vectors, so that short chains of instructions overlap and whole cache
    lines are written, then one vector, then single elements. Widths longer than every row are not
    compiled, as the first is the slowest to compile.
    """
    lanes = vector_lanes(loop_body)
    most_heavy = FEW_HEAVY if host_target().width >= WIDE else 0
    if "s" in modes or loop_body.heavy > most_heavy or len(loop_body.steps) > MANY_STEPS:
        # Many chains overlap without this, and so do strided elements, which are read one by one.
        # Both take long to compile.
        wanted: tuple[int, ...] = (lanes, 1)
    else:
        wanted = (4 * lanes, lanes, 1)
    return tuple(each for each in wanted if each <= max(longest, 1))


def workers(loop_body: LoopBody, elements: int) -> int:
    """Return the number of workers for a loop over `elements` elements."""
    share = HEAVY_SHARE if loop_body.heavy else LIGHT_SHARE
    if len(loop_body.steps) > MANY_STEPS // 2:
        share = HEAVY_SHARE
    return max(1, min(thread_count(), elements // share))


# --- the kernel


@native_kernel
def _loop(
    k: Emitter,
    operands: list[InnerArray],
    outer: list[OuterAxis],
    total: Integer,
    inner: Integer,
    grain: Integer,
    loop_body: LoopBody,
    modes: str,
    widths: tuple[int, ...],
) -> None:
    """All elements, in rows of a length; workers share them in multiples of the grain."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    shares = (total + (grain - 1)) // grain
    begin = shares * k.part // k.parts * grain
    end = k.minimum(shares * (k.part + 1) // k.parts * grain, total)

    def row(here: Sequence[StridedOperand], begin: RegisterValue, end: RegisterValue) -> None:
        inputs = [each.settled() for each in here[: len(loop_body.inputs)]]
        outputs = here[len(loop_body.inputs) :]
        for index, lanes in k.vectors(begin, end, *widths):
            written, _ = computed_values(
                loop_body, k, [each.load(index, lanes) for each in inputs], lanes
            )
            for operand, value in zip(outputs, written, strict=True):
                operand.store(index, value)

    if not outer:
        row(arrays, begin, end)
        return
    with k.loop(begin // inner, (end + (inner - 1)) // inner) as number:
        start = number * inner
        first = k.maximum(begin - start, k.constant(0, I64))
        row(at_row(outer, arrays, number), first, k.minimum(end - start, inner))


def loop_calls(
    loop_body: LoopBody, shape: Shape, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[NativeCall]:
    """Return the calls that compute a loop body without reductions."""
    total = size(shape)
    if not total or not outputs:
        return []
    arrays = [*outputs, *inputs]
    axes = axes_of(shape, arrays)
    # Outputs come first when the order of axes is chosen, inputs in the kernel.
    count = len(outputs)
    arrays = [*inputs, *outputs]
    axes = replace(axes, strides=(*axes.strides[count:], *axes.strides[:count]))
    copies: list[NativeCall] = []
    if total >= WORTH_JOINING and (rows := _rows_together(axes, arrays, len(inputs))):
        axes, arrays, copies = _in_long_rows(axes, arrays, rows)
    return [*copies, _call(loop_body, axes, arrays)]


def _call(loop_body: LoopBody, axes: LoopAxes, arrays: Sequence[np.ndarray]) -> NativeCall:
    """Return the call for a loop over these axes; inputs come first."""
    total, inner = size(axes.lengths), axes.lengths[-1]
    inputs = len(loop_body.inputs)
    modes = "".join(
        "0"
        if each[-1] == 0 and index < inputs and inner > 1
        else "1"
        if each[-1] == array.itemsize or inner == 1
        else "s"
        for index, (each, array) in enumerate(zip(axes.strides, arrays, strict=True))
    )
    parts = workers(loop_body, total)
    return _loop.call(
        operands=strided_arrays(arrays, axes.strides),
        outer=outer_axes(range(len(axes.lengths) - 1), axes.lengths, axes.strides),
        total=total,
        inner=inner,
        grain=inner if total // inner >= 4 * parts else GRAIN,
        loop_body=loop_body,
        modes=modes,
        widths=_widths(loop_body, inner, modes, arrays),
        parts=parts,
    )


def _widths(
    loop_body: LoopBody, longest: int, modes: str, arrays: Sequence[np.ndarray]
) -> tuple[int, ...]:
    """Return the widths for a loop without reductions.

    A few quick operations wait for memory, not for each other. Processing more than a cache line
    per step is slower (relu of 16 MB 1.08 to 1.17 times).
    """
    lanes = vector_lanes(loop_body)
    found = widths(loop_body, longest, modes)
    if loop_body.heavy or found[0] <= lanes:
        return found
    # Operands that are constant over all elements do not count.
    sizes = [each.itemsize for each, mode in zip(arrays, modes, strict=True) if mode != "0"]
    line = max(lanes, CACHE_LINE // min(sizes))
    return tuple(dict.fromkeys((min(found[0], line), *found[1:])))


# --- short rows, as those of a bias for each of a few channels that are last in memory


def _goes_on(axes: LoopAxes, strides: Sequence[int]) -> bool:
    """Return True if an operand continues from the end of a row to the next one."""
    return strides[-2] == strides[-1] * axes.lengths[-1]


def _rows_together(axes: LoopAxes, arrays: Sequence[np.ndarray], inputs: int) -> int:
    """Return the number of short rows to join into a long one; 0 if impossible or unnecessary.

    Every operand must continue from row to row, or be an input with identical rows.
    """
    if len(axes.lengths) < 2 or axes.lengths[-1] >= SHORT_ROW:
        return 0
    for index, (array, strides) in enumerate(zip(arrays, axes.strides, strict=True)):
        is_same_row = index < inputs and not any(strides[:-1])
        dense = strides[-1] == array.itemsize
        if not ((dense and is_same_row) or (_goes_on(axes, strides) and (dense or is_same_row))):
            return 0
    number, length = axes.lengths[-2:]
    together = max(n for n in range(1, LONG_ROW // length + 1) if number % n == 0)
    return together if together * length >= SHORT_ROW else 0


def _in_long_rows(
    axes: LoopAxes, arrays: Sequence[np.ndarray], together: int
) -> tuple[LoopAxes, list[np.ndarray], list[NativeCall]]:
    """Join every `together` rows of a loop into one; vectors then span the ends of the old rows.

    An input whose rows are identical is read from a copy with repeated rows. The calls that are
    also returned fill these copies.
    """
    *outer, number, length = axes.lengths
    calls: list[NativeCall] = []
    found: list[np.ndarray] = []
    strides: list[tuple[int, ...]] = []
    for array, old in zip(arrays, axes.strides, strict=True):
        if old[-1] and not any(old[:-1]):
            row, array = array, np.empty((together, length), array.dtype)
            rows = LoopAxes((together, length), (False, False), ((0, old[-1]), array.strides))
            calls.append(_call(_copy_of(NAMES[array.dtype]), rows, [row, array]))
        found.append(array)
        strides.append((*old[:-2], old[-2] * together, old[-1]))
    lengths = (*outer, number // together, together * length)
    return LoopAxes(lengths, (False,) * len(lengths), tuple(strides)), found, calls


def _copy_of(dtype: str) -> LoopBody:
    return LoopBody((dtype,), (), ((dtype, ("in", 0)),))


def _bind(call: Call) -> Runner:
    shape = loop_shape(call.node)
    return NativeRunner(loop_calls(loop_body_of(call.node), shape, call.inputs, call.outputs))


for _op in OPS.values():
    if _op.kind == "elementwise" and _op.decompose is None:
        offer(_op.name, "native", _bind, supports=is_known, priority=10, in_place=lambda node: True)
