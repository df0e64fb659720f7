"""Skip-gram with negative sampling: rows are read where they are and written where they are.

First each pair has its scores, its loss, and the sum of its contexts' vectors that its word will be
moved by. Then contexts are moved, and words after them, each part with columns of its own: so
the order of sums is that of the pairs, whatever the number of threads.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np
from llvmlite import ir

from caldera.graph.node import Node
from caldera.kernels.native.codegen.emitter import I1, I64, Emitter, Pointer, Value, natural_lanes
from caldera.kernels.native.codegen.kernel import Integer, NativeCall, address_of, native_kernel
from caldera.kernels.native.codegen.math import exp_of_negative, log1p, maximum
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.codegen.strides import any_layout
from caldera.kernels.native.codegen.values import shrinking, vector
from caldera.kernels.native.movement import copy_calls
from caldera.kernels.native.softmax.operands import lane_of
from caldera.kernels.reference.indexing import check_range
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.dtype import float32, float64, int32, int64
from caldera.threads import thread_count

_AT_ONCE = 8
"""Contexts whose scores are summed up side by side: they and a few more fit into registers."""
_WORTH_SPLITTING = 1 << 14
"""Elements read from which on a second thread pays."""


def _row(k: Emitter, table: Pointer, index: Value, count: Value, width: Value) -> Pointer:
    """The row with this index; negative ones count from the end."""
    return table.at(k.select(index < 0, index + count, index) * width)


def _index(k: Emitter, indices: Pointer, place: Value) -> Value:
    return k.convert(indices.load(place), I64)


@native_kernel
def _check_rows(
    k: Emitter, words: Pointer, contexts: Pointer, status: Pointer, pairs: Integer, many: int,
    count: Integer,
) -> None:  # fmt: skip
    """Before any row is read or written."""
    for indices, amount in ((words, pairs), (contexts, pairs * many)):
        with k.loop(0, amount) as place:
            index = _index(k, indices, place)
            with k.if_then((index < -count) | (index >= count)):
                status.store(0, 1)


def _dots(k: Emitter, word: Pointer, contexts: Sequence[Pointer], width: Value) -> list[Value]:
    """The word's vector times that of each context, all sums in registers."""
    lanes = natural_lanes(word.type)
    whole = width // lanes * lanes
    sums = [k.variable(k.constant(0.0, vector(word.type, lanes))) for _ in contexts]
    with k.loop(0, whole, lanes) as place:
        given = word.load(place, lanes)
        for each, context in zip(sums, contexts, strict=True):
            each.value = k.fma(given, context.load(place, lanes), each.value)
    totals = [k.variable(k.reduce_lanes(each.value, operator.add)) for each in sums]
    with k.loop(whole, width) as place:
        given = word.load(place)
        for each, context in zip(totals, contexts, strict=True):
            each.value = k.fma(given, context.load(place), each.value)
    return [each.value for each in totals]


def _loss(k: Emitter, wrong: Value) -> tuple[Value, Value]:
    """log(1 + exp(wrong)), and its derivative, without overflow."""
    small = exp_of_negative(k, k.minimum(wrong, -wrong))
    likely = k.select(wrong > 0.0, 1.0, small) / (small + 1.0)
    return maximum(k, wrong, 0.0) + log1p(k, small), likely


def _signs(k: Emitter, kind: ir.Type, first: int, count: int) -> Value:
    """By which scores are multiplied: they are to be high for a pair's own context alone."""
    return k.vector_of([k.constant(1.0 if i == 0 else -1.0, kind) for i in range(first, count)])


@native_kernel
def _score(
    k: Emitter, vectors: Pointer, words: Pointer, contexts: Pointer, rate: Pointer,
    losses: Pointer, slopes: Pointer, moves: Pointer, pairs: Integer, many: int, count: Integer,
    width: Integer,
) -> None:  # fmt: skip
    """Losses of pairs, the slopes of their scores times the rate, and what moves their words."""
    kind = vectors.type
    of_contexts = vectors.at(count * width)
    speed = rate.load(0)
    first, last = k.part_range(pairs)
    with k.loop(first, last) as pair:
        word = _row(k, vectors, _index(k, words, pair), count, width)
        move = moves.at(pair * width)
        loss = k.variable(k.constant(0.0, kind))
        own = _index(k, contexts, pair * many)
        for begin in range(0, many, _AT_ONCE):
            numbers = range(begin, min(begin + _AT_ONCE, many))
            indices = [_index(k, contexts, pair * many + number) for number in numbers]
            rows = [_row(k, of_contexts, index, count, width) for index in indices]
            signs = _signs(k, kind, begin, numbers.stop)
            added, likely = _loss(k, -signs * k.vector_of(_dots(k, word, rows, width)))
            for number, index in zip(numbers, indices, strict=True):
                lane = number - begin
                says_nothing = index.equals(own) if number else k.constant(0, I1)
                its_loss, slope = lane_of(added, lane), lane_of(signs * likely, lane) * speed
                loss.value = loss.value + k.select(says_nothing, 0.0, its_loss)
                slopes.store(pair * many + number, k.select(says_nothing, 0.0, slope))
            shares = [slopes.load(pair * many + number) for number in numbers]

            def add(
                place: Value, lanes: int, is_first: bool = begin == 0, move: Pointer = move,
                rows: list[Pointer] = rows, shares: list[Value] = shares,
            ) -> None:  # fmt: skip
                total = (
                    k.constant(0.0, vector(kind, lanes)) if is_first else move.load(place, lanes)
                )
                for row, share in zip(rows, shares, strict=True):
                    total = k.fma(row.load(place, lanes), k.splat(share, lanes), total)
                move.store(place, total)

            k.vector_loops(0, width, shrinking(natural_lanes(kind)), add)
        losses.store(pair, loss.value)


@native_kernel
def _move(
    k: Emitter, vectors: Pointer, words: Pointer, contexts: Pointer, slopes: Pointer,
    moves: Pointer, pairs: Integer, many: int, count: Integer, width: Integer,
) -> None:  # fmt: skip
    """Contexts by the words they stand with, then words. Shared out by column."""
    of_contexts = vectors.at(count * width)
    widths = shrinking(natural_lanes(vectors.type))
    first, last = k.part_range(width, widths[0])
    with k.loop(0, pairs) as pair:
        word = _row(k, vectors, _index(k, words, pair), count, width)
        for begin in range(0, many, _AT_ONCE):
            places = [pair * many + n for n in range(begin, min(begin + _AT_ONCE, many))]
            rows = [_row(k, of_contexts, _index(k, contexts, n), count, width) for n in places]
            shares = [slopes.load(n) for n in places]

            def add(
                place: Value, lanes: int, word: Pointer = word, rows: list[Pointer] = rows,
                shares: list[Value] = shares,
            ) -> None:  # fmt: skip
                given = word.load(place, lanes)
                for row, share in zip(rows, shares, strict=True):
                    row.store(place, k.fma(given, k.splat(share, lanes), row.load(place, lanes)))

            k.vector_loops(first, last, widths, add)
    with k.loop(0, pairs) as pair:
        word = _row(k, vectors, _index(k, words, pair), count, width)
        move = moves.at(pair * width)

        def follow(place: Value, lanes: int, word: Pointer = word, move: Pointer = move) -> None:
            word.store(place, word.load(place, lanes) + move.load(place, lanes))

        k.vector_loops(first, last, widths, follow)


def _refusal(words: np.ndarray, contexts: np.ndarray, count: int) -> Callable[[], NoReturn]:
    def refuse() -> NoReturn:
        check_range("skip_gram", words, count)
        check_range("skip_gram", contexts, count)
        raise AssertionError("a row was refused that is there")

    return refuse


def _bind(call: Call) -> Runner | None:
    (after, losses), (vectors, words, contexts, rate) = call.outputs, call.inputs
    dense = all(each.flags.c_contiguous for each in (after, losses, words, contexts))
    in_place = address_of(after) == address_of(vectors)
    copy = [] if in_place else copy_calls(after, vectors)
    if not dense or copy is None:
        return None
    count = vectors.shape[1]
    batch, status = call.node.attrs["batch"], np.zeros(1, np.int64)
    check = _check_rows.call(
        words=words, contexts=contexts, status=status, pairs=len(words), many=contexts.shape[1],
        count=count,
    )  # fmt: skip
    calls = [replace(check, refuse=_refusal(words, contexts, count)), *copy]
    for first in range(0, len(words), batch):
        part = slice(first, first + batch)
        calls += _batch_calls(call, after, words[part], contexts[part], rate, losses[part])
    return NativeRunner(calls)


def _batch_calls(
    call: Call, vectors: np.ndarray, words: np.ndarray, contexts: np.ndarray, rate: np.ndarray,
    losses: np.ndarray,
) -> list[NativeCall]:  # fmt: skip
    (_, count, width), (pairs, many) = vectors.shape, contexts.shape
    workspace = call.workspace.view(vectors.dtype)
    moves, slopes = workspace[: pairs * width], workspace[pairs * width :]
    arrays = {
        "vectors": vectors, "words": words, "contexts": contexts, "slopes": slopes, "moves": moves,
    }  # fmt: skip
    sizes = {"pairs": pairs, "many": many, "count": count, "width": width}
    parts = thread_count() if pairs * many * width >= _WORTH_SPLITTING else 1
    return [
        _score.call(**arrays, **sizes, rate=rate, losses=losses, parts=parts),
        _move.call(**arrays, **sizes, parts=parts),
    ]


def _workspace(node: Node) -> int:
    vectors, words, contexts, _ = (each.spec for each in node.inputs)
    pairs = min(words.shape[0], node.attrs["batch"])
    return pairs * (vectors.shape[2] + contexts.shape[1]) * vectors.dtype.itemsize


def _supports(node: Node) -> bool:
    vectors, words, contexts, _ = node.inputs
    known = all(each.dtype in (int32, int64) for each in (words, contexts))
    return vectors.dtype in (float32, float64) and known


TABLE.add(
    Kernel(
        "skip_gram", "cpu", "native", any_layout(_bind), _supports, priority=10,
        workspace=_workspace, in_place=lambda node: True, measured=False,
    )
)  # fmt: skip
