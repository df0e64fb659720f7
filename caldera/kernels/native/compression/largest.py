"""The k largest magnitudes of every block of a vector: what block-wise top-k selects.

A block is read twice. The first time gives the maxima of some groups of its elements: the k-th
largest of these is a lower bound of the k-th largest of all, since k groups hold one that is not
smaller. The second time collects the few candidates that reach the bound; the exact threshold is
then found among these alone. Magnitudes are compared as the integers that their bits are, which
orders them like numbers and puts infinities and nans last, so those are selected first. Of equal
magnitudes those that come first are taken. Zeros never are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from caldera.config import settings
from caldera.kernels.native.compression.run import kernel, run
from caldera.kernels.native.emit import (
    F32,
    I1,
    I32,
    I64,
    Emitter,
    Pointer,
    Value,
    Variable,
    natural_lanes,
    vector,
)

_MAGNITUDE = 0x7FFFFFFF
_AT_ONCE = 64
"""Elements of which one mask tells the candidates; blocks are padded to a multiple of it."""
_NEAR = 4 << 23
"""Four powers of two, as a difference of bits."""
_WORTH_SPLITTING = 1 << 15
"""Elements from which on a second thread pays."""


def largest_in_blocks(values: np.ndarray, count: int, block: int) -> np.ndarray:
    """The places of the `count` largest magnitudes of every `block` elements, in order, as int32.

    A shorter last block gives its share, rounded up. Zeros are left out, so there may be fewer.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import largest_in_blocks
    >>> largest_in_blocks(np.array([1, -5, 3, 0, 0, 0, 0, 2], np.float32), count=2, block=4)
    array([1, 2, 7], dtype=int32)
    """
    return _largest_of(values, None, count, block)[0]


def take_largest_in_blocks(
    values: np.ndarray, added: np.ndarray, count: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add to float32 values, and take the largest of every block out: their places, and what they
    were; in `values` they are zero after that. Block by block, so that memory is read once.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import take_largest_in_blocks
    >>> values = np.array([1, 1, 1, 1], np.float32)
    >>> take_largest_in_blocks(values, np.array([0, 2, 0, 0], np.float32), count=1, block=4)
    (array([1], dtype=int32), array([3.], dtype=float32))
    >>> values
    array([1., 0., 1., 1.], dtype=float32)
    """
    places, taken = _largest_of(values, added, count, block)
    assert taken is not None
    return places, taken


def _largest_of(
    values: np.ndarray, added: np.ndarray | None, count: int, block: int
) -> tuple[np.ndarray, np.ndarray | None]:
    blocks = -(-values.size // block)
    parts = settings.threads if values.size >= _WORTH_SPLITTING else 1
    padded = -(-block // _AT_ONCE) * _AT_ONCE
    # Each part writes one place beyond its last, before it knows whether it is taken.
    found = np.empty(blocks * count + parts, np.int32)
    taken = None if added is None else np.empty(found.size, np.float32)
    ends = np.zeros(parts, np.int64)
    room = np.empty((parts, 3, padded + _AT_ONCE), np.int32)
    address = kernel(_build, groups=_groups(count, padded), takes=taken is not None)
    also = () if added is None or taken is None else (added, taken)
    run(
        address, values, values.size, count, block, padded, found, ends, room, room[0].size, *also,
        size=values.size, worth=_WORTH_SPLITTING,
    )  # fmt: skip
    starts = [blocks * part // parts * count + part for part in range(parts)]
    reach = [slice(start, end) for start, end in zip(starts, ends.tolist(), strict=True)]
    return _kept(found, reach), None if taken is None else _kept(taken, reach)


def _kept(array: np.ndarray, reach: list[slice]) -> np.ndarray:
    return array[reach[0]] if len(reach) == 1 else np.concatenate([array[each] for each in reach])


def _groups(count: int, padded: int) -> int:
    """How many groups' maxima bound the threshold; 0 where a bound would not leave much out."""
    groups = 16
    while groups < 2 * count:
        groups *= 2
    return groups if groups <= 128 and 4 * groups <= padded and padded % groups == 0 else 0


def _build(k: Emitter, groups: int, takes: bool) -> None:
    """Slots: values, size, count, block, padded, found, ends, room, room of a part; with `takes`
    also what is added, and where those go that are taken out."""
    values, found, ends = k.pointer(0, I32), k.pointer(5, I32), k.pointer(6, I64)
    size, count, block, padded = (k.integer(slot) for slot in (1, 2, 3, 4))
    room = k.pointer(7, I32).at(k.integer(8) * k.part)
    whole = padded + _AT_ONCE
    aside, places, magnitudes = room, room.at(whole), room.at(whole * 2)
    begin, end = k.share((size + block - 1) // block)
    out = k.variable(begin * count + k.part)
    with k.loop(begin, end) as number:
        first = number * block
        length = k.minimum(size - first, block)
        # Equal to `count` for a whole block.
        wanted = (count * length + block - 1) // block
        if takes:
            _add(k, values.at(first).cast(F32), k.pointer(9, F32).at(first), length)
        # A block that is not as long as its vectors is put aside, with zeros behind it.
        at = k.variable(k.address(values.at(first)))
        with k.when(length < padded):
            k.clear_bytes(aside, padded * 4)
            k.copy_bytes(aside, values.at(first), length * 4)
            at.value = k.address(aside)
        source = k.at_address(at.value, I32)
        bound = _bound(k, source, padded, wanted, groups)
        found_here = _candidates(k, source, padded, bound, places, magnitudes)
        candidates = _Candidates(places, magnitudes, found_here)

        def keep(place: Value, taken: Value, first: Value = first) -> None:
            at = first + k.convert(place, I64)
            found.store(out.value, k.convert(at, I32))
            if takes:
                value = values.load(at)
                k.pointer(10, I32).store(out.value, value)
                values.store(at, k.select(taken, 0, value))
            out.value = out.value + k.convert(taken, I64)

        _keep_largest(k, candidates, wanted, bound, keep)
    ends.store(k.part, out.value)


def _bound(k: Emitter, source: Pointer, padded: Value, wanted: Value, groups: int) -> Value:
    """A magnitude that at least `wanted` elements reach, or 1: the least that is not zero."""
    if groups == 0:
        return k.constant(1, I32)
    lanes = natural_lanes(I32)
    maxima = [k.variable(0, vector(I32, lanes)) for _ in range(groups // lanes)]
    with k.loop(0, padded, groups) as start:
        for index, maximum in enumerate(maxima):
            some = source.load(start + index * lanes, lanes) & _MAGNITUDE
            maximum.value = k.maximum(maximum.value, some)
    kept = k.stack(I32, groups)
    for index, maximum in enumerate(maxima):
        kept.store(index * lanes, maximum.value)
    return _threshold(k, kept, k.constant(groups, I64), wanted, k.constant(1, I32))


def _threshold(k: Emitter, magnitudes: Pointer, length: Value, wanted: Value, low: Value) -> Value:
    """The `wanted`-th largest of some magnitudes, or less if as many reach that; at least `low`.

    Halves the interval until exactly as many as wanted reach its lower end, or nothing is left
    of it. `length` is a multiple of the vector's lanes.
    """
    largest = _largest(k, magnitudes, length)
    lower = k.variable(low)
    upper = k.variable(largest + 1)
    # Most often the threshold is within a few powers of two of the largest: asked first.
    middle = k.variable(k.maximum(low, largest - _NEAR))
    going = k.variable(1, I64)
    with k.repeat_while(lambda: going.value.differs(0)):
        reach = _reaching(k, magnitudes, length, middle.value)
        enough = reach >= wanted
        lower.value = k.select(enough, middle.value, lower.value)
        upper.value = k.select(enough, upper.value, middle.value)
        apart = upper.value - lower.value
        middle.value = lower.value + k.shift_right(apart, 1)
        going.value = k.select(reach.equals(wanted) | (apart < 2), k.constant(0, I64), 1)
    return lower.value


def _largest(k: Emitter, magnitudes: Pointer, length: Value) -> Value:
    """The largest of some magnitudes; one less than the largest integer if there is no number."""
    lanes = natural_lanes(I32)
    maximum = k.variable(0, vector(I32, lanes))
    with k.loop(0, length, lanes) as i:
        maximum.value = k.maximum(maximum.value, magnitudes.load(i, lanes))
    return k.minimum(k.total(maximum.value, k.maximum), 0x7FFFFFFE)


def _reaching(k: Emitter, magnitudes: Pointer, length: Value, least: Value) -> Value:
    """How many magnitudes are at least that large."""
    lanes = natural_lanes(I32)
    counts = k.variable(0, vector(I32, lanes))
    with k.loop(0, length, lanes) as i:
        reached = magnitudes.load(i, lanes) >= least
        counts.value = counts.value + k.convert(reached, I32)
    total = k.total(counts.value, lambda a, b: a + b)
    return k.convert(total, I64)


def _candidates(
    k: Emitter, source: Pointer, padded: Value, bound: Value, places: Pointer, magnitudes: Pointer
) -> Value:
    """Elements that reach the bound, in order; how many. Zeros follow up to a whole vector."""
    found = k.variable(0, I64)
    with k.loop(0, padded, _AT_ONCE) as start:
        some = source.load(start, _AT_ONCE) & _MAGNITUDE
        left = k.variable(k.bitcast(some >= bound, I64))
        with k.repeat_while(partial(_is_not_zero, left)):
            lane = Value(k, k.ir.cttz(left.value.raw, I1(0)))
            left.value = left.value & (left.value - 1)
            place = start + lane
            places.store(found.value, k.convert(place, I32))
            magnitudes.store(found.value, source.load(place) & _MAGNITUDE)
            found.value = found.value + 1
    magnitudes.store(found.value, k.constant(0, vector(I32, natural_lanes(I32))))
    return found.value


def _is_not_zero(mask: Variable) -> Value:
    return mask.value.differs(0)


class _Candidates(NamedTuple):
    places: Pointer
    magnitudes: Pointer
    found: Value


def _keep_largest(
    k: Emitter,
    candidates: _Candidates,
    wanted: Value,
    bound: Value,
    keep: Callable[[Value, Value], None],
) -> None:
    """`keep(place, whether it is one of those that are wanted)` for all candidates, in order."""
    lanes = natural_lanes(I32)
    places, magnitudes, count = candidates
    whole = (count + lanes - 1) // lanes * lanes
    least = k.variable(bound)
    equal = k.variable(count)
    with k.when(count > wanted):
        least.value = _threshold(k, magnitudes, whole, wanted, bound)
        equal.value = wanted - _reaching(k, magnitudes, whole, least.value + 1)
    with k.loop(0, count) as i:
        magnitude = magnitudes.load(i)
        above, same = magnitude > least.value, magnitude.equals(least.value)
        taken = above | (same & (equal.value > 0))
        equal.value = equal.value - k.convert(same, I64)
        keep(places.load(i), taken)


def _add(k: Emitter, target: Pointer, source: Pointer, length: Value) -> None:
    def add(i: Value, lanes: int) -> None:
        target.store(i, target.load(i, lanes) + source.load(i, lanes))

    k.in_vectors(0, length, natural_lanes(F32), add)
