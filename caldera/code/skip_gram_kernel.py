"""Skip-gram with negative sampling, with rows read and written in place.

The columns of the vectors are divided among threads, so that a thread reads only sums from other
threads. Each thread adds up the scores of a batch over its columns. After a barrier it computes all
slopes, updates its columns of words and contexts, and continues with the next batch. There is a
single barrier per batch.

Columns are split into the same slices for any number of threads, and the sums are added in a fixed
order. Results are therefore bitwise identical on any number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import NoReturn

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node
from caldera.core.tensor import Shape, float32, float64, int32, int64
from caldera.kernels.native.codegen import (
    I1,
    I64,
    Emitter,
    Integer,
    NativeRunner,
    Pointer,
    RegisterValue,
    address_of,
    any_layout,
    host_target,
    native_kernel,
    natural_lanes,
    shrinking,
    vector,
)
from caldera.kernels.native.codegen.math import exp_of_negative, log1p, maximum
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.reference.arrays import check_range
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.kernels.tuning.threads import taking_turns

_AT_ONCE = 8
"""Contexts whose scores are summed up side by side: they and a few more fit into registers."""
_MOST_SLICES = 8
_WORTH_SPLITTING = 1 << 14
"""Elements read from which on a second thread pays."""


def _slices(width: int, lanes: int) -> int:
    """Return the number of column slices, each at least two vectors wide.

    It is a power of two, so that two threads and four have equal numbers of slices.
    """
    vectors, found = -(-width // lanes), 1
    while found < _MOST_SLICES and vectors >= 4 * found:
        found *= 2
    return found


def _index(k: Emitter, indices: Pointer, place: RegisterValue) -> RegisterValue:
    return k.convert(indices.load(place), I64)


@native_kernel
def _check_rows(
    k: Emitter,
    words: Pointer,
    contexts: Pointer,
    status: Pointer,
    pairs: Integer,
    many: int,
    count: Integer,
) -> None:
    """Report an error for a row index out of range, before any row is read or written."""
    for indices, amount in ((words, pairs), (contexts, pairs * many)):
        with k.loop(0, amount) as place:
            index = _index(k, indices, place)
            with k.if_then((index < -count) | (index >= count)):
                status.store(0, 1)


# --- what becomes of one pair


@dataclass
class _Tables:
    """The vectors of words and contexts, and which of their columns are a thread's own."""

    k: Emitter
    vectors: Pointer
    count: RegisterValue
    width: RegisterValue
    many: int
    slices: int

    @property
    def chunks(self) -> list[range]:
        """Ranges of a pair's contexts that fit into registers together."""
        firsts = range(0, self.many, _AT_ONCE)
        return [range(first, min(first + _AT_ONCE, self.many)) for first in firsts]

    def word(self, words: Pointer, pair: RegisterValue) -> Pointer:
        """Return the address of the vector of a pair's word."""
        return self._row(self.vectors, _index(self.k, words, pair))

    def contexts(self, contexts: Pointer, pair: RegisterValue, numbers: range) -> list[Pointer]:
        """Return the addresses of the vectors of a pair's contexts."""
        base = self.vectors.at(self.count * self.width)
        places = [pair * self.many + number for number in numbers]
        return [self._row(base, _index(self.k, contexts, place)) for place in places]

    def _row(self, table: Pointer, index: RegisterValue) -> Pointer:
        """Return the row with this index; negative ones count from the end."""
        return table.at(self.k.select(index < 0, index + self.count, index) * self.width)

    def edge(self, number: RegisterValue) -> RegisterValue:
        """Return the first column of a slice."""
        lanes = natural_lanes(self.vectors.type)
        blocks = (self.width + (lanes - 1)) // lanes
        return self.k.minimum(blocks * number // self.slices * lanes, self.width)

    def scores(
        self, word: Pointer, rows: Sequence[Pointer], number: RegisterValue
    ) -> RegisterValue:
        """Compute dot products of the word with each context over the columns of a slice."""
        k, kind = self.k, word.type
        lanes = natural_lanes(kind)
        first, last = self.edge(number), self.edge(number + 1)
        whole = first + (last - first) // lanes * lanes
        sums = [k.variable(k.constant(0.0, vector(kind, lanes))) for _ in rows]
        with k.loop(first, whole, lanes) as place:
            given = word.load(place, lanes)
            for each, row in zip(sums, rows, strict=True):
                each.value = k.fma(given, row.load(place, lanes), each.value)
        total = k.variable(_lane_sums(k, [each.value for each in sums]))
        with k.loop(whole, last) as place:
            given = k.vector_of([row.load(place) for row in rows])
            total.value = k.fma(given, word.load(place), total.value)
        return total.value

    def says_nothing(self, contexts: Pointer, pair: RegisterValue, numbers: range) -> RegisterValue:
        """Return a mask of drawn contexts that equal the pair's true context."""
        k = self.k
        drawn = k.vector_of([k.constant(int(number > 0), I1) for number in numbers])
        given = contexts.load(pair * self.many + numbers.start, len(numbers))
        return given.equals(contexts.load(pair * self.many)) & drawn

    def gather(
        self,
        rows: Sequence[Pointer],
        shares: Sequence[RegisterValue],
        move: Pointer,
        first: RegisterValue,
        last: RegisterValue,
        *,
        anew: bool,
    ) -> None:
        """Accumulate the word's update from its contexts."""
        k, kind = self.k, self.vectors.type
        for place, lanes in k.vectors(first, last, *shrinking(natural_lanes(kind))):
            total = k.constant(0.0, vector(kind, lanes)) if anew else move.load(place, lanes)
            for row, share in zip(rows, shares, strict=True):
                total = k.fma(row.load(place, lanes), k.splat(share, lanes), total)
            move.store(place, total)

    def scatter(
        self,
        word: Pointer,
        rows: Sequence[Pointer],
        shares: Sequence[RegisterValue],
        first: RegisterValue,
        last: RegisterValue,
    ) -> None:
        """Move contexts by the word."""
        k = self.k
        for place, lanes in k.vectors(first, last, *shrinking(natural_lanes(word.type))):
            given = word.load(place, lanes)
            for row, share in zip(rows, shares, strict=True):
                row.store(place, k.fma(given, k.splat(share, lanes), row.load(place, lanes)))

    def shares(self, slopes: Pointer, pair: RegisterValue, numbers: range) -> list[RegisterValue]:
        """Return each context's factor in the word's update: positive only for the true context."""
        found = [slopes.load(pair * self.many + number) for number in numbers]
        return [-each if number else each for number, each in zip(numbers, found, strict=True)]


def _lane_sums(k: Emitter, given: Sequence[RegisterValue]) -> RegisterValue:
    """Return the lane sum of each vector, as the lanes of a new vector."""
    lanes, count = given[0].lanes, len(given)
    rows = list(given)
    while len(rows) & (len(rows) - 1):
        rows.append(k.constant(0.0, given[0].type))
    segment = lanes
    # Two vectors become one: of each the sums of halves, side by side.
    while segment > 1 and len(rows) > 1:
        segment //= 2
        low = [first + i for first in range(0, 2 * lanes, 2 * segment) for i in range(segment)]
        high = [pick + segment for pick in low]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [k.shuffle(a, b, low) + k.shuffle(a, b, high) for a, b in pairs]
    while segment > 1:
        segment //= 2
        low = [first + i for first in range(0, rows[0].lanes, 2 * segment) for i in range(segment)]
        high = [pick + segment for pick in low]
        rows = [k.shuffle(row, None, low) + k.shuffle(row, None, high) for row in rows]
    return k.vector_of([row.lane(lane) for row in rows for lane in range(row.lanes)][:count])


# --- all pairs of a batch


@dataclass
class _Batch:
    """Pairs, and how wrong each score is, in sums over slices: (slices, stride), in a row a pair's
    contexts are side by side."""

    words: Pointer
    contexts: Pointer
    sums: Pointer
    pairs: Integer


def _wrong(
    k: Emitter, batch: _Batch, place: RegisterValue, slices: int, stride: RegisterValue
) -> RegisterValue:
    """Load a vector of the scores' errors, summed over the slices."""
    lanes = natural_lanes(batch.sums.type)
    more = (batch.sums.load(stride * number + place, lanes) for number in range(1, slices))
    return sum(more, start=batch.sums.load(place, lanes))


def _slopes(
    k: Emitter,
    batch: _Batch,
    slopes: Pointer,
    speed: RegisterValue,
    many: int,
    slices: int,
    stride: RegisterValue,
) -> None:
    """The derivative of log(1 + exp(wrong)) times the rate."""
    with k.loop(0, batch.pairs * many, natural_lanes(slopes.type)) as place:
        wrong = _wrong(k, batch, place, slices, stride)
        small = exp_of_negative(k, k.minimum(wrong, -wrong))
        likely = k.select(wrong > 0.0, 1.0, small) / (small + 1.0)
        slopes.store(place, k.select(wrong.equals(-inf), 0.0, likely * speed))


def _losses(
    k: Emitter,
    batch: _Batch,
    losses: Pointer,
    terms: Pointer,
    many: int,
    slices: int,
    stride: RegisterValue,
) -> None:
    """Compute the losses of this part's pairs: sums of log(1 + exp(wrong)), without overflow."""
    first, last = k.part_range(batch.pairs)
    with k.loop(first * many, last * many, natural_lanes(terms.type)) as place:
        wrong = _wrong(k, batch, place, slices, stride)
        small = exp_of_negative(k, k.minimum(wrong, -wrong))
        term = maximum(k, wrong, 0.0) + log1p(k, small)
        terms.store(place, k.select(wrong.equals(-inf), 0.0, term))
    with k.loop(first, last) as pair:
        total = terms.load(pair * many)
        for number in range(1, many):
            total = total + terms.load(pair * many + number)
        losses.store(pair, total)


def _move(
    k: Emitter,
    tables: _Tables,
    batch: _Batch,
    slopes: Pointer,
    moves: Pointer,
    columns: tuple[RegisterValue, RegisterValue],
) -> None:
    """Update contexts by their words, then words by the contexts' earlier values."""
    with k.loop(0, batch.pairs) as pair:
        move = moves.at(pair * tables.width)
        for numbers in tables.chunks:
            rows = tables.contexts(batch.contexts, pair, numbers)
            shares = tables.shares(slopes, pair, numbers)
            tables.gather(rows, shares, move, *columns, anew=numbers.start == 0)
    with k.loop(0, batch.pairs) as pair:
        word = tables.word(batch.words, pair)
        for numbers in tables.chunks:
            rows = tables.contexts(batch.contexts, pair, numbers)
            tables.scatter(word, rows, tables.shares(slopes, pair, numbers), *columns)
    with k.loop(0, batch.pairs) as pair:
        word, move = tables.word(batch.words, pair), moves.at(pair * tables.width)
        for place, lanes in k.vectors(*columns, *shrinking(natural_lanes(word.type))):
            word.store(place, word.load(place, lanes) + move.load(place, lanes))


@native_kernel
def _step(
    k: Emitter,
    vectors: Pointer,
    last: _Batch,
    following: _Batch,
    rate: Pointer,
    losses: Pointer,
    slopes: Pointer,
    moves: Pointer,
    stride: Integer,
    many: int,
    slices: int,
    count: Integer,
    width: Integer,
) -> None:
    """Apply the updates of a batch and compute the next scores, in the columns of a part."""
    tables = _Tables(k, vectors, count, width, many, slices)
    own = k.part_range(slices)
    columns = tables.edge(own[0]), tables.edge(own[1])
    slopes = slopes.at(k.part * 2 * stride)
    _slopes(k, last, slopes, rate.load(0), many, slices, stride)
    _losses(k, last, losses, slopes.at(stride), many, slices, stride)
    _move(k, tables, last, slopes, moves, columns)
    with k.loop(0, following.pairs) as pair:
        word = tables.word(following.words, pair)
        for numbers in tables.chunks:
            rows = tables.contexts(following.contexts, pair, numbers)
            ones = [k.constant(1.0 if number else -1.0, vectors.type) for number in numbers]
            signs = k.vector_of(ones)
            nothing = tables.says_nothing(following.contexts, pair, numbers)
            place = pair * many + numbers.start
            with k.loop(*own) as number:
                scores = k.select(nothing, -inf, signs * tables.scores(word, rows, number))
                following.sums.store(stride * number + place, scores)


def _refuse(words: np.ndarray, contexts: np.ndarray, count: int) -> NoReturn:
    for rows in (words, contexts):
        check_range("skip_gram", rows, count)
    raise AssertionError("a valid row was rejected")


def _bind(call: Call) -> Runner | None:
    (after, losses), (vectors, words, contexts, rate) = call.outputs, call.inputs
    dense = all(each.flags.c_contiguous for each in (after, losses, words, contexts))
    in_place = address_of(after) == address_of(vectors)
    copy = [] if in_place else copy_calls(after, vectors)
    if not dense or copy is None:
        return None
    (_, count, width), (pairs, many) = vectors.shape, contexts.shape
    status = np.zeros(1, np.int64)
    check = _check_rows.call(
        words=words, contexts=contexts, status=status, pairs=pairs, many=many, count=count
    )
    calls = [replace(check, refuse=partial(_refuse, words, contexts, count)), *copy]
    batch = max(1, min(call.node.attrs["batch"], pairs))
    slices, stride = _sizes(vectors.shape, vectors.itemsize, batch * many)
    moves, rest = np.split(call.workspace.view(vectors.dtype), [batch * width])
    first, second, slopes = np.split(rest, [slices * stride, 2 * slices * stride])
    given = {
        "vectors": after,
        "rate": rate,
        "slopes": slopes,
        "moves": moves,
        "stride": stride,
        "many": many,
        "slices": slices,
        "count": count,
        "width": width,
    }
    parts = min(thread_count(), slices) if batch * many * width >= _WORTH_SPLITTING else 1
    nothing = {"words": words[:0], "contexts": contexts[:0], "sums": second, "pairs": 0}
    last, its_losses = nothing, losses
    for number in range(-(-pairs // batch) + 1):
        part = slice(number * batch, (number + 1) * batch)
        here = words[part]
        following = {
            "words": here,
            "contexts": contexts[part],
            "pairs": len(here),
            "sums": second if number % 2 else first,
        }
        calls.append(
            _step.call(**given, last=last, following=following, losses=its_losses, parts=parts)
        )
        last, its_losses = following, losses[part]
    return NativeRunner(calls)


def _sizes(shape: Shape, itemsize: int, scores: int) -> tuple[int, int]:
    """Return the number of slices, and the stride between a batch's scores in each slice.

    The stride is a whole number of vectors, plus an extra one that is computed and not used.
    """
    lanes = host_target().lanes(itemsize)
    return _slices(shape[2], lanes), -(-scores // lanes) * lanes + lanes


def _workspace(node: Node) -> int:
    """Return the workspace size: word updates, sums of two batches, slopes and losses per part."""
    vectors, words, contexts, _ = (each.spec for each in node.inputs)
    pairs = max(1, min(words.shape[0], node.attrs["batch"]))
    size = vectors.dtype.itemsize
    slices, stride = _sizes(vectors.shape, size, pairs * contexts.shape[1])
    return (pairs * vectors.shape[2] + 4 * slices * stride) * size


def _supports(node: Node) -> bool:
    vectors, words, contexts, _ = node.inputs
    known = all(each.dtype in (int32, int64) for each in (words, contexts))
    return vectors.dtype in (float32, float64) and known


TABLE.add(
    Kernel(
        "skip_gram",
        "cpu",
        "native",
        taking_turns(any_layout(_bind)),
        _supports,
        priority=10,
        workspace=_workspace,
        in_place=lambda node: True,
        measured=False,
    )
)
