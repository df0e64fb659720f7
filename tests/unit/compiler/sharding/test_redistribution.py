"""From any layout to any other: bitwise, and no byte more than owners change."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera.comm import run_virtual_ranks
from caldera.compiler.sharding import transfer
from caldera.compiler.sharding.axis_split import even_split
from caldera.compiler.sharding.distributions import BlockCyclic, Columns, Grid, Replicated, Rows
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import Links, moves, volume
from tests.unit.compiler.sharding.layouts import MOST_RANKS, cartesian, layouts, shapes

few = settings(max_examples=50, deadline=None)


def owner_changes(source: ShardLayout, target: ShardLayout) -> int:
    """Element by element: who has it then and did not before."""
    return sum(len(set(target.owners(i)) - set(source.owners(i))) for i in np.ndindex(source.shape))


def move(
    parts: list[np.ndarray], source: ShardLayout, target: ShardLayout, **options: Any
) -> tuple[list[np.ndarray], int]:
    """The new parts of all ranks, and the bytes that were sent."""

    def work(comm: Any) -> tuple[np.ndarray, int]:
        made = redistributed(parts[comm.rank], source, target, comm, rank=comm.rank, **options)
        return made, comm.traffic.total.bytes_sent

    done = run_virtual_ranks(MOST_RANKS, work)
    return [part for part, _ in done], sum(sent for _, sent in done)


@few
@given(st.data())
def test_there_and_back_bitwise_and_bytes_are_owner_changes(data: Any) -> None:
    shape = data.draw(shapes())
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    whole = np.random.default_rng(0).random(shape)
    parts = [source.part_of(whole, rank) for rank in range(MOST_RANKS)]
    there, sent = move(parts, source, target)
    for rank, part in enumerate(there):
        assert np.array_equal(part, target.part_of(whole, rank))
    changes = owner_changes(source, target)
    assert sent == 8 * changes
    assert volume(source, target).elements == changes
    back, _ = move(there, target, source)
    for rank, part in enumerate(back):
        assert part.tobytes() == parts[rank].tobytes()


@few
@given(st.data())
def test_terms_are_added_in_order(data: Any) -> None:
    shape = data.draw(shapes())
    source = data.draw(cartesian(shape))
    target = data.draw(layouts(shape))
    terms = data.draw(st.sampled_from([t for t in range(1, 7) if source.replicas % t == 0]))
    random = np.random.default_rng(0)
    values = [random.random(shape) for _ in range(terms)]
    parts = []
    for rank in range(MOST_RANKS):
        place = source.coordinates(rank)
        term = 0 if place is None else place[-1] // (source.replicas // terms)
        parts.append(source.part_of(values[term], rank))
    total = values[0]
    for value in values[1:]:
        total = total + value
    made, sent = move(parts, source, target, terms=terms)
    for rank in target.ranks:
        assert np.array_equal(made[rank], target.part_of(total, rank))
    counted = moves(source, target, terms)
    np.fill_diagonal(counted, 0)
    assert sent == 8 * counted.sum()


@pytest.mark.parametrize(
    ("before", "after", "width"),
    [("float64", "float32", 4), ("float32", "float64", 4), ("float64", "bfloat16", 2)],
)
def test_the_dtype_changes_on_the_way(before: str, after: str, width: int) -> None:
    source, target = Rows().of((6, 6), range(3)), Columns().of((6, 6), range(MOST_RANKS))
    old = np.dtype(before)
    new = np.dtype(ml_dtypes.bfloat16 if after == "bfloat16" else after)
    whole = np.random.default_rng(0).random((6, 6)).astype(old)
    parts = [source.part_of(whole, rank) for rank in range(MOST_RANKS)]
    made, sent = move(parts, source, target, dtype=new)
    assert sent == width * owner_changes(source, target)
    for rank, part in enumerate(made):
        assert part.dtype == new
        assert np.array_equal(part, target.part_of(whole.astype(new), rank))


def test_buffers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With messages of 64 bytes, one at a time, all is as it was."""
    monkeypatch.setattr(transfer, "MESSAGE_BYTES", 64)
    monkeypatch.setattr(transfer, "AT_ONCE_BYTES", 64)
    longest = []
    packed = transfer._packed

    def watched(*arguments: Any) -> np.ndarray:
        buffer = packed(*arguments)
        longest.append(buffer.nbytes)
        return buffer

    monkeypatch.setattr(transfer, "_packed", watched)
    transfer.exchange.cache_clear()
    pairs = [
        (Rows(), Columns()),
        (Grid(2, 3), BlockCyclic(2, grid=(3, 2))),
        (Replicated(ranks=(1, 4)), Rows()),
        (BlockCyclic(1, grid=(MOST_RANKS,)), Replicated()),
    ]
    whole = np.arange(13.0 * 11).reshape(13, 11)
    for first, second in pairs:
        source, target = (
            first.of((13, 11), range(MOST_RANKS)),
            second.of((13, 11), range(MOST_RANKS)),
        )
        parts = [source.part_of(whole, rank) for rank in range(MOST_RANKS)]
        made, sent = move(parts, source, target)
        assert sent == 8 * owner_changes(source, target)
        for rank, part in enumerate(made):
            assert np.array_equal(part, target.part_of(whole, rank))
    transfer.exchange.cache_clear()
    assert max(longest) <= 64


def test_replicas_share_the_sending() -> None:
    """Two ranks have everything and two need it: each sends once."""
    source, target = (
        Replicated(ranks=(0, 1)).of((8,), range(4)),
        Replicated(ranks=(2, 3)).of((8,), range(4)),
    )
    sent = moves(source, target).sum(1)
    assert sent.tolist() == [8, 8, 0, 0]


def test_what_moving_takes() -> None:
    rows = CartesianLayout((8, 8), (even_split(8, 2), None), (0, 1))
    moved = volume(rows, rows.transposed((1, 0)))
    assert (moved.elements, moved.most, moved.messages) == (32, 16, 1)
    assert moved.seconds(8, Links(latency=1.0, bandwidth=64.0)) == 1.0 + 2.0
    assert volume(rows, rows).seconds(8, Links()) == 0.0
