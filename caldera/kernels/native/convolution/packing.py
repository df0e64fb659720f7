"""Copies with another order of axes: filters packed for the kernels, gradients written back, images
that do not lie channels last or are stored in half precision.

`gather` writes blocks of neighbours that it collects from anywhere; `scatter` reads neighbours and
spreads them, and adds partial sums up on the way. Both go by the strides of their arrays, so any
layout will do, and both convert between what is stored and what is computed with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from caldera.base.threads import thread_count
from caldera.kernels.native.codegen.dtypes import ElementPointer
from caldera.kernels.native.codegen.emitter import Emitter, Pointer, Value, natural_lanes, vector
from caldera.kernels.native.codegen.kernel import Integer, NativeCall, native_kernel
from caldera.kernels.native.movement import LoopArgument

WORTH_SPLITTING = 1 << 14
"""Elements from which on a second thread pays."""


@dataclass(frozen=True)
class Loop:
    """One axis of a copy: its length, and the elements from one to the next on both sides."""

    count: int
    source: int
    target: int


ONCE = Loop(1, 0, 0)


def _parts(elements: int) -> int:
    return thread_count() if elements >= WORTH_SPLITTING else 1


def gather(
    source: np.ndarray,
    target: np.ndarray,
    loops: tuple[Loop, Loop, Loop, Loop],
    *,
    length: int,
    neighbour: int,
    width: int,
    block_step: int,
    padded: bool,
) -> NativeCall:
    """Write `length` elements, `neighbour` apart in the source, side by side in blocks of `width`,
    `block_step` apart; the last block is filled up with zeros if it is `padded`."""
    return _gather.call(
        source=source,
        target=target,
        loops=[vars(loop) for loop in loops],
        length=length,
        neighbour=neighbour,
        blocks=-(-length // width),
        block_step=block_step,
        padded=padded,
        width=width,
        dense=neighbour == 1,
        parts=_parts(target.size),
    )


@native_kernel
def _gather(
    k: Emitter,
    source: ElementPointer,
    target: Pointer,
    loops: list[LoopArgument],
    length: Integer,
    neighbour: Integer,
    blocks: Integer,
    block_step: Integer,
    padded: Integer,
    width: int,
    dense: bool,
) -> None:
    lanes = min(natural_lanes(target.type), width)
    outermost, *inner = loops
    begin, end = k.part_range(outermost.count * blocks)
    with k.loop(begin, end) as index:
        outer, block = index // blocks, index % blocks
        first = source.at(outer * outermost.source + block * width * neighbour)
        place = target.at(outer * outermost.target + block * block_step)
        valid = k.minimum(length - block * width, width)
        whole = valid.equals(width)
        with _nested(k, inner) as (source_offset, target_offset):
            read, write = first.at(source_offset), place.at(target_offset)
            with k.if_else(whole) as (all_of_it, a_part):
                with all_of_it:
                    for start in range(0, width, lanes):
                        step = None if dense else neighbour
                        write.store(start, _collect(k, read, start, step, lanes))
                with a_part:
                    with k.loop(0, valid) as e:
                        write.store(e, read.load(e * neighbour))
                    with k.if_then(padded.differs(0)), k.loop(valid, width) as e:
                        write.store(e, 0.0)


@contextmanager
def _nested(k: Emitter, loops: Sequence[LoopArgument]) -> Iterator[tuple[Value, Value]]:
    """The three inner loops: how far on they are in the source and in the target."""
    a, b, c = loops
    with k.loop(0, a.count) as i, k.loop(0, b.count) as j, k.loop(0, c.count) as m:
        yield (
            i * a.source + j * b.source + m * c.source,
            i * a.target + j * b.target + m * c.target,
        )


def _collect(k: Emitter, read: ElementPointer, start: int, step: Value | None, count: int) -> Value:
    """Elements `start`, `start + 1`, ... of those that are `step` apart (None: neighbours)."""
    if step is None:
        return read.load(start, count)
    return k.vector_of([read.load(step * (start + lane)) for lane in range(count)])


def scatter(
    source: np.ndarray,
    target: np.ndarray,
    loops: tuple[Loop, Loop, Loop, Loop],
    *,
    length: int,
    neighbour: int,
    width: int,
    block_step: int,
    sums: int = 1,
    sum_step: int = 0,
) -> NativeCall:
    """Spread `length` elements, which lie side by side in blocks of `width` (whole vectors),
    `block_step` apart, over the target, `neighbour` apart. Each is the sum of as many as `sums`
    says, `sum_step` apart, added in their order."""
    return _scatter.call(
        source=source,
        target=target,
        loops=[vars(loop) for loop in loops],
        length=length,
        neighbour=neighbour,
        width=width,
        block_step=block_step,
        sums=sums,
        sum_step=sum_step,
        parts=_parts(target.size),
    )


@native_kernel
def _scatter(
    k: Emitter,
    source: Pointer,
    target: ElementPointer,
    loops: list[LoopArgument],
    length: Integer,
    neighbour: Integer,
    width: Integer,
    block_step: Integer,
    sums: Integer,
    sum_step: Integer,
) -> None:
    lanes = natural_lanes(source.type)
    outermost, *inner = loops
    blocks = (length + (lanes - 1)) // lanes

    def total(read: Pointer, count: int) -> Value:
        """The sum of vectors of `count` elements."""
        value = k.variable(k.constant(0.0, vector(read.type, count)))
        with k.loop(0, sums) as term:
            value.value = value.value + read.load(term * sum_step, count)
        return value.value

    begin, end = k.part_range(outermost.count * blocks)
    with k.loop(begin, end) as index:
        outer, start = index // blocks, index % blocks * lanes
        block = start // width * block_step + start % width
        first = source.at(outer * outermost.source + block)
        place = target.at(outer * outermost.target + start * neighbour)
        valid = k.minimum(length - start, lanes)
        with _nested(k, inner) as (source_offset, target_offset):
            read, write = first.at(source_offset), place.at(target_offset)
            with k.if_else(valid.equals(lanes)) as (all_of_it, a_part):
                with all_of_it:
                    values = total(read, lanes)
                    for lane in range(lanes):
                        write.store(neighbour * lane, values.lane(lane))
                with a_part, k.loop(0, valid) as e:
                    write.store(neighbour * e, total(read.at(e), 1))
