"""Ops that move elements, on a GPU: copies, concatenation, padding and other rearrangements.

A copy is reduced to its simplest form when it is bound. If the contiguous axes of the two arrays
differ, tiles pass through shared memory. All other copies are ordinary loops over elements treated
as bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from caldera.core.graph.memory_format import as_pairs
from caldera.core.memory.software import address_of
from caldera.kernels.common.loops import LoopAxes, LoopBody, axes_of
from caldera.kernels.cuda.codegen import (
    STORED,
    CudaRunner,
    KernelLaunch,
    KernelSignature,
    LaunchIntegers,
    LoopOperand,
    OffsetEmitter,
    const_pointer,
    i64,
    is_wide,
    lines,
    pointer,
    unless_empty,
)
from caldera.kernels.cuda.elementwise.loop import THREADS, ElementwiseLoop, launch_of, loop_over
from caldera.kernels.table import COPY, TABLE, Call, Kernel, Runner

BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
"""Dtype of the same size for each element size, to carry its bits."""
THINNEST = 8
"""Rows and columns below which a tile is mostly empty."""
MOST_TOGETHER = 8
"""Maximum number of copies per launch."""


def as_bits(array: np.ndarray) -> np.ndarray:
    """Return the same memory as integers, so that one kernel copies all dtypes of a size."""
    return array.view(BITS[array.itemsize])


def copy_calls(target: np.ndarray, source: np.ndarray) -> list[KernelLaunch]:
    """Return the launches for `target[...] = source`, with the same shape and dtype.

    The source may be repeated (strides of 0) or run backwards; the two must not overlap.
    """
    return copying([(target, source)])


def copying(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[KernelLaunch]:
    """Return the launches that copy each source to its target: (target, source), all of the same
    dtype.
    """
    calls: list[KernelLaunch] = []
    loops: list[ElementwiseLoop] = []
    for given in pairs:
        if not given[0].size:
            continue
        # No dtype has the bits of complex128; its parts have.
        target, source = map(as_bits, map(as_pairs, given) if given[0].itemsize == 16 else given)
        axes = axes_of(target.shape, [target, source])
        across = _lying_across(axes, target.itemsize)
        if across is not None:
            calls.append(_transposing(target, source, axes, across))
            continue
        name = target.dtype.name
        loop_body = LoopBody((name,), (), ((name, ("in", 0)),))
        loops.append(loop_over(loop_body, target.shape, [source], [target]))
    together = [loops[k : k + MOST_TOGETHER] for k in range(0, len(loops), MOST_TOGETHER)]
    return calls + [launch_of(some) for some in together]


def _lying_across(axes: LoopAxes, itemsize: int) -> int | None:
    """Return the axis that is innermost in the source, if another one is in the target."""
    target, source = axes.strides
    last = len(axes.lengths) - 1
    if target[last] != itemsize or source[last] in (0, itemsize) or axes.lengths[last] < THINNEST:
        return None
    found = [axis for axis in range(last) if source[axis] == itemsize]
    return found[0] if found and axes.lengths[found[0]] >= THINNEST else None


def _transposing(
    target: np.ndarray, source: np.ndarray, axes: LoopAxes, across: int
) -> KernelLaunch:
    size = target.itemsize
    to, given = (tuple(step // size for step in each) for each in axes.strides)
    last = len(axes.lengths) - 1
    rows, columns = axes.lengths[across], axes.lengths[last]
    others = [axis for axis in range(last) if axis != across]
    lengths = [axes.lengths[axis] for axis in others]
    name = target.dtype.name
    both = [LoopOperand(name, to, "s"), LoopOperand(name, given, "s")]
    numbers = LaunchIntegers(is_wide(prod(axes.lengths), both, axes.lengths))
    offsets_of = OffsetEmitter(
        numbers,
        lengths,
        [LoopOperand(name, tuple(each[axis] for axis in others), "s") for each in (to, given)],
        "",
    )
    split, offsets = offsets_of.statements("place", "a")
    side = 32 if size >= 4 else 64
    rows_at_once = THREADS // side
    down, right = -(-rows // side), -(-columns // side)
    counts = [numbers.add(each) for each in (rows, columns, given[last], to[across])]
    tiles, tiles_down = numbers.add(down * right), numbers.add(down)
    kind = STORED[name]
    at_target, at_source = (offsets[group] for group in offsets_of.group)
    signature = KernelSignature(
        {
            "n": numbers.parameter,
            "target": pointer(target, kind),
            "source": const_pointer(source, kind),
        }
    )
    text = f"""#include "vector_access.cuh"
#include "transpose.cuh"
{numbers.declaration}
extern "C" __global__ void transpose({signature.declaration}) {{
    const Index place = blockIdx.x / (Index){tiles};
    const Index tile = blockIdx.x - place * (Index){tiles};
    const Index column = tile / (Index){tiles_down}, row = tile - column * (Index){tiles_down};
    {lines(split, 4)}
    block_transposed<{side}, {rows_at_once}>(target + ({at_target}), source + ({at_source}),
        (Offset)row * {side}, (Offset)column * {side}, {", ".join(counts)});
}}
"""
    grid, block = prod(lengths) * down * right, (side, rows_at_once, 1)
    return KernelLaunch(text, "transpose", grid, block, signature)


def bind_copy(call: Call) -> Runner:
    """target = source."""
    return CudaRunner(copy_calls(call.outputs[0], call.inputs[0]))


TABLE.add(Kernel(COPY, "cuda", "copy", bind_copy))


# --- reshape


@unless_empty
def _bind_reshape(call: Call) -> Runner:
    (target,), (source,) = call.outputs, call.inputs
    try:
        return CudaRunner(copy_calls(target.reshape(source.shape, copy=False), source))
    except ValueError:
        # Neither array can be reshaped to match the second one without a copy.
        return CudaRunner([_by_number(target, source)])


def _by_number(target: np.ndarray, source: np.ndarray) -> KernelLaunch:
    """Copy element number i to element number i."""
    name = as_bits(target).dtype.name
    places = [
        LoopOperand(name, tuple(step // each.itemsize for step in each.strides), "s")
        for each in (target, source)
    ]
    shapes = (target.shape, source.shape)
    wide = any(
        is_wide(target.size, [place], shape) for place, shape in zip(places, shapes, strict=True)
    )
    numbers = LaunchIntegers(wide)
    emitters = [
        OffsetEmitter(numbers, shape, [place], "")
        for place, shape in zip(places, shapes, strict=True)
    ]
    to, given = (
        offsets_of.statements("item", prefix)
        for offsets_of, prefix in zip(emitters, "ab", strict=True)
    )
    count = numbers.add(target.size)
    kind = STORED[name]
    signature = KernelSignature(
        {
            "n": numbers.parameter,
            "target": pointer(target, kind),
            "source": const_pointer(source, kind),
        }
    )
    text = f"""#include "vector_access.cuh"
{numbers.declaration}
extern "C" __global__ void reshape({signature.declaration}) {{
    const Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= (Index){count}) return;
    {lines(to[0] + given[0], 4)}
    target[{to[1][0]}] = source[{given[1][0]}];
}}
"""
    return KernelLaunch(text, "reshape", -(-target.size // THREADS), THREADS, signature)


# --- parts side by side


def _stretches(array: np.ndarray, lengths: Sequence[int], axis: int) -> list[np.ndarray]:
    """Return the array cut along an axis."""
    found = []
    start = 0
    for length in lengths:
        found.append(array[(slice(None),) * axis + (slice(start, start + length),)])
        start += length
    return found


def _bind_concat(call: Call) -> Runner:
    axis = call.node.attrs["axis"]
    places = _stretches(call.outputs[0], [part.shape[axis] for part in call.inputs], axis)
    return CudaRunner(copying(list(zip(places, call.inputs, strict=True))))


def _bind_split(call: Call) -> Runner:
    axis = call.node.attrs["axis"]
    pieces = _stretches(call.inputs[0], [piece.shape[axis] for piece in call.outputs], axis)
    return CudaRunner(copying(list(zip(call.outputs, pieces, strict=True))))


def _bind_complex(call: Call) -> Runner:
    pairs = as_pairs(call.outputs[0])
    places = [pairs[..., which] for which in (0, 1)]
    return CudaRunner(copying(list(zip(places, call.inputs, strict=True))))


# --- an array with something around it


@dataclass(frozen=True)
class _Axis:
    """Axis of the target: its length, the source's start on it, and element count and step of the
    source.

    `target` and `source` are the strides of neighbours in either array.
    """

    length: int
    start: int
    count: int
    step: int
    target: int
    source: int

    @property
    def is_whole(self) -> bool:
        """True if the source fills the axis."""
        return self.count == self.length

    def joined(self, inner: _Axis) -> _Axis:
        """Return this axis and one inside it that the source fills, as one."""
        n = inner.length
        return _Axis(self.length * n, self.start * n, self.count * n, 1, inner.target, inner.source)

    def joins(self, inner: _Axis) -> bool:
        """Return True if the two axes can be joined."""
        return (
            inner.is_whole
            and self.step == 1
            and self.target == inner.target * inner.length
            and (self.source == inner.source * inner.length or self.count == 1)
        )

    def in_items(self, lanes: int) -> _Axis:
        """Return the axis in items of several elements."""
        return _Axis(
            self.length // lanes, self.start // lanes, self.count // lanes, 1, lanes, lanes
        )


def _simplest(axes: Sequence[_Axis]) -> list[_Axis]:
    """Return axes in the order of the target's memory, joined where that is possible."""
    found: list[_Axis] = []
    for axis in sorted(axes, key=lambda each: -abs(each.target)):
        if axis.length == 1 and axis.count == 1:
            continue
        if found and found[-1].joins(axis):
            found[-1] = found[-1].joined(axis)
        else:
            found.append(axis)
    return found or [_Axis(1, 0, 1, 1, 1, 1)]


def _lanes(axes: Sequence[_Axis], target: np.ndarray, source: np.ndarray) -> int:
    """Return the number of neighbours per copy: all inside the source, or none."""
    *outer, inner = axes
    if (inner.step, inner.target, inner.source) != (1, 1, 1):
        return 1
    lanes = 16 // target.itemsize
    numbers = [inner.length, inner.start, inner.count]
    numbers += [step for axis in outer for step in (axis.target, axis.source)]
    while lanes > 1:
        borders = [address_of(each) % (lanes * each.itemsize) for each in (target, source)]
        if not any(borders) and all(number % lanes == 0 for number in numbers):
            return lanes
        lanes //= 2
    return 1


def placing_calls(
    target: np.ndarray, source: np.ndarray, starts: Sequence[int], steps: Sequence[int], fill: float
) -> list[KernelLaunch]:
    """Return launches that copy the source to a strided part of the target and fill the rest."""
    if not target.size:
        return []
    number = int(as_bits(np.full((1,), fill, target.dtype))[0])
    size = target.itemsize
    axes = _simplest(
        [
            _Axis(n, start, count, step if count > 1 else 1, to // size, given // size)
            for n, start, count, step, to, given in zip(
                target.shape,
                starts,
                source.shape,
                steps,
                target.strides,
                source.strides,
                strict=True,
            )
        ]
    )
    lanes = _lanes(axes, target, source)
    name = as_bits(target).dtype.name
    both = [
        LoopOperand(name, tuple(axis.target for axis in axes), "s"),
        LoopOperand(name, tuple(axis.source for axis in axes), "s"),
    ]
    wide = is_wide(target.size, both, [axis.length for axis in axes])
    if lanes > 1:
        axes = [*axes[:-1], axes[-1].in_items(lanes)]
    numbers = LaunchIntegers(wide)
    items = target.size // lanes
    kind = STORED[name]
    body = _placing(axes, numbers, kind, lanes, items)
    signature = KernelSignature(
        {
            "n": numbers.parameter,
            "fill": i64(number),
            "target": pointer(target, kind),
            "source": const_pointer(source, kind),
        }
    )
    text = f"""#include "vector_access.cuh"
{numbers.declaration}
extern "C" __global__ void place({signature.declaration}) {{
{body}
}}
"""
    return [KernelLaunch(text, "place", -(-items // THREADS), THREADS, signature)]


def _placing(
    axes: Sequence[_Axis], numbers: LaunchIntegers, kind: str, lanes: int, items: int
) -> str:
    """Return the body of the kernel."""
    body: list[str] = []
    rest = "item"
    to, given, inside = [], [], []
    for k in reversed(range(len(axes))):
        axis = axes[k]
        place = rest
        if k:
            place = f"c{k}"
            body += [
                f"const auto d{k} = {numbers.divisor(axis.length)};",
                f"const Index q{k} = d{k}.quotient({rest});",
                f"const Index c{k} = {rest} - q{k} * d{k}.by;",
            ]
            rest = f"q{k}"
        # Before the start the difference is huge, which is outside as well.
        body += [
            f"const Index s{k} = {place} - (Index){numbers.add(axis.start)};",
            f"const auto e{k} = {numbers.divisor(axis.step)};",
            f"const Index i{k} = e{k}.quotient(s{k});",
        ]
        inside.append(f"{place} >= (Index){numbers.add(axis.start)}")
        inside += [f"i{k} < (Index){numbers.add(axis.count)}", f"i{k} * e{k}.by == s{k}"]
        to.append(f"(Offset){place} * {numbers.add(axis.target)}")
        given.append(f"(Offset)i{k} * {numbers.add(axis.source)}")
    count = numbers.add(items)
    return f"""    const Index item = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= (Index){count}) return;
    {lines(body, 4)}
    Pack<{kind}, {lanes}> value;
#pragma unroll
    for (int k = 0; k < {lanes}; k++) value.v[k] = ({kind})fill;
    if ({" && ".join(inside)})
        value = dense<{lanes}>(source + ({" + ".join(given)}));
    put(target + ({" + ".join(to)}), value);"""


def _bind_pad(call: Call) -> Runner:
    widths = call.node.attrs["widths"]
    starts, steps = [before for before, _ in widths], [1] * len(widths)
    value = call.node.attrs["value"]
    return CudaRunner(placing_calls(call.outputs[0], call.inputs[0], starts, steps, value))


def _bind_unslice(call: Call) -> Runner:
    starts = [start for start, _, _ in call.node.attrs["bounds"]]
    steps = [step for _, _, step in call.node.attrs["bounds"]]
    return CudaRunner(placing_calls(call.outputs[0], call.inputs[0], starts, steps, 0))


# --- numbers in a row


@unless_empty
def _bind_iota(call: Call) -> Runner:
    (target,), node = call.outputs, call.node
    name = node.dtype.name
    # Strides say how the number of an element grows: by 1 along one axis.
    memory = np.empty(1, np.int64)
    strides = [8 if axis == node.attrs["axis"] else 0 for axis in range(target.ndim)]
    counted = np.lib.stride_tricks.as_strided(memory, target.shape, strides)
    step = ("cast", name, ("int64",), (("in", 0),))
    loop_body = LoopBody(("int64",), (step,), ((name, ("step", 0)),))
    return CudaRunner(
        [launch_of([loop_over(loop_body, target.shape, [counted], [target], counted=True)])]
    )


for _op, _bind in (
    ("arrange", bind_copy),
    ("reshape", _bind_reshape),
    ("concat", _bind_concat),
    ("complex", _bind_complex),
    ("split", _bind_split),
    ("pad", _bind_pad),
    ("unslice", _bind_unslice),
    ("iota", _bind_iota),
):
    TABLE.add(Kernel(_op, "cuda", "loop", _bind))
