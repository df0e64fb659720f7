"""Copies with another order of axes: filters packed for the kernels, gradients written back, images
that do not lie channels last or are stored in half precision.

`gather` writes blocks of neighbours that it collects from anywhere; `scatter` reads neighbours and
spreads them, and adds partial sums up on the way. Both go by the strides of their arrays, so any
layout will do, and both convert between what is stored and what is computed with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.config import settings
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import (
    I16,
    Emitter,
    Pointer,
    Value,
    natural_lanes,
    vector,
)
from caldera.kernels.native.codegen.half import HALF_NAMES, load_wide, store_narrow
from caldera.kernels.native.codegen.program import NativeCall, native_call
from caldera.kernels.native.convolution.slots import Integers, in_order

WORTH_SPLITTING = 1 << 14
"""Elements from which on a second thread pays."""


@dataclass(frozen=True)
class Loop:
    """One axis of a copy: its length, and the elements from one to the next on both sides."""

    count: int
    source: int
    target: int


ONCE = Loop(1, 0, 0)
_LOOPS = tuple(
    f"{what}{axis}" for axis in range(4) for what in ("count", "source", "target")
)  # fmt: skip
_GATHER = (*_LOOPS, "length", "neighbour", "blocks", "block_step", "padded")
_SCATTER = (*_LOOPS, "length", "neighbour", "width", "block_step", "sums", "sum_step")


def _loop_values(loops: tuple[Loop, Loop, Loop, Loop]) -> dict[str, int]:
    values: dict[str, int] = {}
    for axis, loop in enumerate(loops):
        values |= {
            f"count{axis}": loop.count, f"source{axis}": loop.source, f"target{axis}": loop.target
        }  # fmt: skip
    return values


def _parts(elements: int) -> int:
    return settings.threads if elements >= WORTH_SPLITTING else 1


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
    address = compiled(
        _gather, stored=source.dtype.name, kind=target.dtype.name, width=width,
        dense=neighbour == 1,
    )  # fmt: skip
    values = _loop_values(loops) | {
        "length": length, "neighbour": neighbour, "blocks": -(-length // width),
        "block_step": block_step, "padded": padded,
    }  # fmt: skip
    return native_call(
        address, source, target, *in_order(values, _GATHER), parts=_parts(target.size)
    )


def _gather(k: Emitter, stored: str, kind: str, width: int, dense: bool) -> None:
    wide = computed_type(kind)
    source = k.pointer(0, I16 if stored in HALF_NAMES else wide)
    target = k.pointer(1, wide)
    n = Integers(k, 2, _GATHER)
    lanes = min(natural_lanes(wide), width)
    begin, end = k.share(n.count0 * n.blocks)
    with k.loop(begin, end) as index:
        outer, block = index // n.blocks, index % n.blocks
        first = source.at(outer * n.source0 + block * width * n.neighbour)
        place = target.at(outer * n.target0 + block * n.block_step)
        valid = k.minimum(n.length - block * width, width)
        whole = valid.equals(width)
        with k.loop(0, n.count1) as i, k.loop(0, n.count2) as j, k.loop(0, n.count3) as m:
            read = first.at(i * n.source1 + j * n.source2 + m * n.source3)
            write = place.at(i * n.target1 + j * n.target2 + m * n.target3)

            with k.either(whole) as (all_of_it, a_part):
                with all_of_it:
                    for start in range(0, width, lanes):
                        step = None if dense else n.neighbour
                        write.store(start, _collect(k, read, start, step, lanes, stored))
                with a_part:
                    with k.loop(0, valid) as e:
                        write.store(e, load_wide(k, read, e * n.neighbour, 1, stored))
                    with k.when(n.padded.differs(0)), k.loop(valid, width) as e:
                        write.store(e, 0.0)


def _collect(
    k: Emitter, read: Pointer, start: int, step: Value | None, count: int, stored: str
) -> Value:
    """Elements `start`, `start + 1`, ... of those that are `step` apart (None: neighbours)."""
    if step is None:
        return load_wide(k, read, start, count, stored)
    places = [step * (start + lane) for lane in range(count)]
    return k.vector_of([load_wide(k, read, place, 1, stored) for place in places])


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
    address = compiled(_scatter, kind=source.dtype.name, stored=target.dtype.name)
    values = _loop_values(loops) | {
        "length": length, "neighbour": neighbour, "width": width, "block_step": block_step,
        "sums": sums, "sum_step": sum_step,
    }  # fmt: skip
    return native_call(
        address, source, target, *in_order(values, _SCATTER), parts=_parts(target.size)
    )


def _scatter(k: Emitter, kind: str, stored: str) -> None:
    wide = computed_type(kind)
    source = k.pointer(0, wide)
    target = k.pointer(1, I16 if stored in HALF_NAMES else wide)
    n = Integers(k, 2, _SCATTER)
    lanes = natural_lanes(wide)
    blocks = (n.length + (lanes - 1)) // lanes
    begin, end = k.share(n.count0 * blocks)
    with k.loop(begin, end) as index:
        outer, start = index // blocks, index % blocks * lanes
        block = start // n.width * n.block_step + start % n.width
        first = source.at(outer * n.source0 + block)
        place = target.at(outer * n.target0 + start * n.neighbour)
        valid = k.minimum(n.length - start, lanes)
        with k.loop(0, n.count1) as i, k.loop(0, n.count2) as j, k.loop(0, n.count3) as m:
            read = first.at(i * n.source1 + j * n.source2 + m * n.source3)
            write = place.at(i * n.target1 + j * n.target2 + m * n.target3)
            with k.either(valid.equals(lanes)) as (all_of_it, a_part):
                with all_of_it:
                    values = _total(k, n, read, lanes)
                    for lane in range(lanes):
                        store_narrow(k, write, n.neighbour * lane, values.lane(lane), stored)
                with a_part, k.loop(0, valid) as e:
                    store_narrow(k, write, n.neighbour * e, _total(k, n, read.at(e), 1), stored)


def _total(k: Emitter, n: Integers, read: Pointer, count: int) -> Value:
    """The sum of vectors of `count` elements."""
    value = k.variable(k.constant(0.0, vector(read.type, count)))
    with k.loop(0, n.sums) as term:
        value.value = value.value + read.load(term * n.sum_step, count)
    return value.value
