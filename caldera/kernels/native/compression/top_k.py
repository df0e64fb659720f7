"""The k largest magnitudes of every block of a vector: the selection of block-wise top-k.

A block is read twice. The first pass computes the maxima of some groups of its elements. The k-th
largest of these is a lower bound of the k-th largest element, since k groups contain an element at
least that large. The second pass collects the few candidates that reach the bound, among which the
exact threshold is found. Magnitudes are compared as the integers of their bits. This orders them
like numbers and puts infinities and NaNs last, so those are selected first. Of equal magnitudes,
the first are selected. Zeros are never selected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from math import ceil
from typing import NamedTuple

import numpy as np

from caldera.base.threads import thread_count
from caldera.kernels.native.codegen import (
    F32,
    I1,
    I32,
    I64,
    Emitter,
    Integer,
    MutableRegister,
    Number,
    Pointer,
    RegisterValue,
    addresses_of,
    native_kernel,
    natural_lanes,
    run_now,
    vector,
)

_MAGNITUDE = 0x7FFFFFFF
_AT_ONCE = 64
"""Number of elements per mask of candidates; blocks are padded to a multiple of this."""
_USUAL = 4
"""Number of candidates per mask that is rarely exceeded."""
_WORTH_SPLITTING = 1 << 15
"""Elements from which on a second thread pays."""


def top_k_in_blocks(values: np.ndarray, count: int, block: int) -> np.ndarray:
    """Return the indices of the `count` largest magnitudes per block, in order, as int32.

    A shorter last block contributes a proportional number, rounded up. Zeros are left out, so there
    may be fewer.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import top_k_in_blocks
    >>> top_k_in_blocks(np.array([1, -5, 3, 0, 0, 0, 0, 2], np.float32), count=2, block=4)
    array([1, 2, 7], dtype=int32)
    """
    return _largest_of(values, [values.size], None, count, block)[0]


def take_top_k_in_blocks(
    values: np.ndarray, added: Sequence[np.ndarray], count: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Add concatenated vectors to float32 values and extract the largest of every block.

    Return the indices and the values of the extracted elements, which become zero in `values`.
    Blocks are formed within each vector, and both steps are done block by block, so that memory is
    read once.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression import take_top_k_in_blocks
    >>> values, added = np.ones(5, np.float32), [np.float32([0, 2, 0]), np.float32([0, 1])]
    >>> take_top_k_in_blocks(values, added, count=1, block=4)
    (array([1, 4], dtype=int32), array([3., 2.], dtype=float32))
    >>> values
    array([1., 0., 1., 1., 0.], dtype=float32)
    """
    places, taken = _largest_of(values, [each.size for each in added], added, count, block)
    assert taken is not None
    return places, taken


def _largest_of(
    values: np.ndarray,
    sizes: Sequence[int],
    added: Sequence[np.ndarray] | None,
    count: int,
    block: int,
) -> tuple[np.ndarray, np.ndarray | None]:
    parts = thread_count() if values.size >= _WORTH_SPLITTING else 1
    padded = -(-block // _AT_ONCE) * _AT_ONCE
    # Each part writes one index beyond its last, before testing whether that index is selected.
    most = sum(ceil(ceil(size / block) / parts) * count for size in sizes) + 1
    found = np.empty((parts, most), np.int32)
    taken = None if added is None else np.empty((parts, most), np.float32)
    ends = np.zeros((parts, len(sizes) + 1), np.int64)
    scratch = np.empty((parts, 3, padded + _AT_ONCE), np.int32)
    run_now(
        _select,
        values=values,
        edges=np.array([0, *accumulate(sizes)], np.int64),
        vectors=len(sizes),
        count=count,
        block=block,
        padded=padded,
        found=found,
        most=most,
        ends=ends,
        scratch=scratch,
        scratch_step=scratch[0].size,
        added=None if added is None else addresses_of(added),
        taken=taken,
        groups=_groups(count, padded),
        elements=values.size,
        worth=_WORTH_SPLITTING,
    )
    reach = [
        (part, slice(*span))
        for number in range(len(sizes))
        for part, span in enumerate(ends[:, number : number + 2].tolist())
    ]
    return _kept(found, reach), None if taken is None else _kept(taken, reach)


def _kept(array: np.ndarray, reach: Sequence[tuple[int, slice]]) -> np.ndarray:
    """Return the written elements, ordered by vector and then by part."""
    if len(array) == 1:
        return array[0, : reach[-1][1].stop]
    return np.concatenate([array[part, span] for part, span in reach])


def _groups(count: int, padded: int) -> int:
    """Return the number of groups whose maxima bound the threshold; 0 if not selective enough."""
    groups = 16
    while groups < 2 * count:
        groups *= 2
    return groups if groups <= 128 and 4 * groups <= padded and padded % groups == 0 else 0


@native_kernel
def _select(
    k: Emitter,
    values: Pointer,
    edges: Pointer,
    vectors: Integer,
    count: Integer,
    block: Integer,
    padded: Integer,
    found: Pointer,
    most: Integer,
    ends: Pointer,
    scratch: Pointer,
    scratch_step: Integer,
    added: Pointer | None,
    taken: Pointer | None,
    groups: int,
) -> None:
    """Select the largest magnitudes in the blocks of vectors, which start at `edges`.

    Each part writes to `most` elements of `found` (and `taken`), uses a section of `scratch`, and
    writes the end of its elements of each vector to `ends`. With `added`, the addresses of vectors,
    these are added first, and selected elements are extracted.
    """
    values = values.cast(I32)
    found = found.at(most * k.part)
    taken_out = None if taken is None else taken.cast(I32).at(most * k.part)
    ends = ends.at((vectors + 1) * k.part)
    scratch = scratch.at(scratch_step * k.part)
    whole = padded + _AT_ONCE
    aside, places, magnitudes = scratch, scratch.at(whole), scratch.at(whole * 2)
    maxima = k.alloca(I32, max(groups, 1))
    # The bound and the threshold of a block are often close to those in the next block.
    near, reached = k.variable(1, I32), k.variable(1, I32)
    out = k.variable(0, I64)

    def take(vector: RegisterValue, number: RegisterValue) -> None:
        first = edges.load(vector) + number * block
        length = k.minimum(edges.load(vector + 1) - first, block)
        # Equal to `count` for a whole block.
        wanted = (count * length + block - 1) // block
        mine, more = values.at(first), None
        if added is not None:
            more = k.int_to_pointer(added.load(vector), F32).at(number * block)
        source = _whole_block(k, mine, length, padded, aside, maxima, groups, more)
        if groups:
            least, surplus = k.maximum(_folded(k, maxima, groups, k.minimum), 1), groups // 8
            near.value = _threshold(k, maxima, groups, wanted, least, near.value, surplus=surplus)
        bound = near.value
        found_here = _candidates(k, source, padded, bound, places, magnitudes)
        candidates = _Candidates(places, magnitudes, found_here)
        keep = partial(_keep, k, values, found, taken_out, out, first)
        _keep_largest(k, candidates, wanted, bound, reached, keep)

    with k.loop(0, vectors) as vector:
        size = edges.load(vector + 1) - edges.load(vector)
        with k.loop(*k.part_range((size + block - 1) // block)) as number:
            take(vector, number)
        ends.store(vector + 1, out.value)


def _keep(
    k: Emitter,
    values: Pointer,
    found: Pointer,
    taken_out: Pointer | None,
    out: MutableRegister,
    first: RegisterValue,
    place: RegisterValue,
    taken: RegisterValue,
) -> None:
    """Write an element's index and value; if it is `taken`, keep them and zero the element."""
    at = first + k.convert(place, I64)
    found.store(out.value, k.convert(at, I32))
    if taken_out is not None:
        value = values.load(at)
        taken_out.store(out.value, value)
        values.store(at, k.select(taken, 0, value))
    out.value = out.value + k.convert(taken, I64)


def _whole_block(
    k: Emitter,
    mine: Pointer,
    length: RegisterValue,
    padded: RegisterValue,
    aside: Pointer,
    maxima: Pointer,
    groups: int,
    more: Pointer | None,
) -> Pointer:
    """The block itself, or a copy of a short one in whole vectors, once its maxima are found."""
    at = k.variable(k.pointer_to_int(mine))
    with k.if_else(length.equals(padded)) as (whole_block, short_block):
        with whole_block:
            _look(k, mine, padded, maxima, groups, more)
        with short_block:
            # It is not as long as its vectors: it is put aside, with zeros behind it.
            if more is not None:
                _add(k, mine.cast(F32), more, length)
            k.clear_bytes(aside, padded * 4)
            k.copy_bytes(aside, mine, length * 4)
            at.value = k.pointer_to_int(aside)
            _look(k, aside, padded, maxima, groups)
    return k.int_to_pointer(at.value, I32)


def _look(
    k: Emitter,
    source: Pointer,
    padded: RegisterValue,
    maxima: Pointer,
    groups: int,
    added: Pointer | None = None,
) -> None:
    """The largest magnitude of each group, after something was added to all elements."""
    lanes = natural_lanes(I32)
    highest = [k.variable(0, vector(I32, lanes)) for _ in range(groups // lanes)]
    with k.loop(0, padded, groups or _AT_ONCE) as start:
        for index in range((groups or _AT_ONCE) // lanes):
            place = start + index * lanes
            some = source.load(place, lanes)
            if added is not None:
                total = k.bitcast(some, vector(F32, lanes)) + added.load(place, lanes)
                some = k.bitcast(total, some.type)
                source.store(place, some)
            if groups:
                highest[index].value = k.maximum(highest[index].value, some & _MAGNITUDE)
    for index, maximum in enumerate(highest):
        maxima.store(index * lanes, maximum.value)


def _threshold(
    k: Emitter,
    magnitudes: Pointer,
    length: Number,
    wanted: RegisterValue,
    low: RegisterValue,
    first: RegisterValue,
    surplus: int = 0,
) -> RegisterValue:
    """Return a threshold for the `wanted` largest magnitudes, at least `low`.

    It is the `wanted`-th largest magnitude, or less if the same number of magnitudes reach it (or
    up to `surplus` more). The search bisects an interval until its lower end selects the right
    number or the interval is empty. `first` is tried first. `length` is a multiple of the vector's
    lanes.
    """
    # One less than the largest integer if there is something that is no number.
    largest = k.minimum(_folded(k, magnitudes, length, k.maximum), 0x7FFFFFFE)
    lower = k.variable(low)
    upper = k.variable(largest + 1)
    middle = k.variable(k.maximum(low, k.minimum(first, largest)))
    going = k.variable(1, I64)
    with k.while_loop(lambda: going.value.differs(0)):
        reach = _reaching(k, magnitudes, length, middle.value)
        enough = reach >= wanted
        lower.value = k.select(enough, middle.value, lower.value)
        upper.value = k.select(enough, upper.value, middle.value)
        apart = upper.value - lower.value
        middle.value = lower.value + k.shift_right(apart, 1)
        done = (enough & (reach <= wanted + surplus)) | (apart < 2)
        going.value = k.select(done, k.constant(0, I64), 1)
    return lower.value


def _folded(
    k: Emitter,
    magnitudes: Pointer,
    length: Number,
    combine: Callable[[RegisterValue, RegisterValue], RegisterValue],
) -> RegisterValue:
    """Return the largest or smallest of some magnitudes."""
    kept = k.variable(magnitudes.load(0, natural_lanes(I32)))
    for some in _vectors(k, magnitudes, length):
        kept.value = combine(kept.value, some)
    return k.reduce_lanes(kept.value, combine)


def _reaching(
    k: Emitter, magnitudes: Pointer, length: Number, least: RegisterValue
) -> RegisterValue:
    """Return the number of magnitudes that are at least `least`."""
    counts = k.variable(0, vector(I32, natural_lanes(I32)))
    for some in _vectors(k, magnitudes, length):
        counts.value = counts.value + k.convert(some >= least, I32)
    return k.convert(k.reduce_lanes(counts.value, lambda a, b: a + b), I64)


def _vectors(k: Emitter, magnitudes: Pointer, length: Number) -> Iterator[RegisterValue]:
    """Yield magnitudes in vectors: unrolled, or in a loop if `length` is not constant."""
    lanes = natural_lanes(I32)
    if isinstance(length, RegisterValue):
        with k.loop(0, length, lanes) as i:
            yield magnitudes.load(i, lanes)
    else:
        for start in range(0, int(length), lanes):
            yield magnitudes.load(start, lanes)


def _candidates(
    k: Emitter,
    source: Pointer,
    padded: RegisterValue,
    bound: RegisterValue,
    places: Pointer,
    magnitudes: Pointer,
) -> RegisterValue:
    """Collect the elements that reach the bound, in order, and return their number.

    Zeros follow up to a whole vector.
    """
    # All masks first: the processing of a mask depends on its content and would delay the next one.
    masks = magnitudes.cast(I64)
    with k.loop(0, padded, _AT_ONCE) as start:
        some = source.load(start, _AT_ONCE) & _MAGNITUDE
        masks.store(start // _AT_ONCE, k.bitcast(some >= bound, I64))
    found, left = k.variable(0, I64), k.variable(0, I64)

    def next_place(start: RegisterValue, number: Number) -> None:
        place = start + RegisterValue(k, k.ir.cttz(left.value.raw, I1(0)))
        places.store(found.value + number, k.convert(place, I32))
        left.value = left.value & (left.value - 1)

    with k.loop(0, padded, _AT_ONCE) as start:
        left.value = masks.load(start // _AT_ONCE)
        several = RegisterValue(k, k.ir.ctpop(left.value.raw))
        # A fixed small number is always written: faster than a loop over the actual number.
        for number in range(_USUAL):
            next_place(start, number)
        with k.loop(_USUAL, several) as one_more:
            next_place(start, one_more)
        found.value = found.value + several
    with k.loop(0, found.value) as i:
        magnitudes.store(i, source.load(k.convert(places.load(i), I64)) & _MAGNITUDE)
    magnitudes.store(found.value, k.constant(0, vector(I32, natural_lanes(I32))))
    return found.value


class _Candidates(NamedTuple):
    places: Pointer
    magnitudes: Pointer
    found: RegisterValue


def _keep_largest(
    k: Emitter,
    candidates: _Candidates,
    wanted: RegisterValue,
    bound: RegisterValue,
    reached: MutableRegister,
    keep: Callable[[RegisterValue, RegisterValue], None],
) -> None:
    """`keep(place, whether it is one of those that are wanted)` for all candidates, in order."""
    lanes = natural_lanes(I32)
    places, magnitudes, count = candidates
    whole = (count + lanes - 1) // lanes * lanes
    least = k.variable(bound)
    equal = k.variable(count)
    with k.if_then(count > wanted):
        least.value = _threshold(k, magnitudes, whole, wanted, bound, reached.value)
        reached.value = least.value
        equal.value = wanted - _reaching(k, magnitudes, whole, least.value + 1)
    with k.loop(0, count) as i:
        magnitude = magnitudes.load(i)
        above, same = magnitude > least.value, magnitude.equals(least.value)
        taken = above | (same & (equal.value > 0))
        equal.value = equal.value - k.convert(same, I64)
        keep(places.load(i), taken)


def _add(k: Emitter, target: Pointer, source: Pointer, length: RegisterValue) -> None:
    for i, lanes in k.vectors(0, length, natural_lanes(F32), 1):
        target.store(i, target.load(i, lanes) + source.load(i, lanes))
