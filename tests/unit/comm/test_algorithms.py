"""The allreduce algorithms at numbers of ranks, sizes and nodes that fit nothing evenly."""

from __future__ import annotations

import time

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.algorithms import ALLREDUCE
from caldera.comm.algorithms.allreduce import ROOM_BYTES
from caldera.comm.algorithms.segments import SEGMENT_BYTES, allreduce_volume
from caldera.errors import CommError


@pytest.mark.parametrize("ranks", [5, 6, 7, 9, 12])
@pytest.mark.parametrize("name", ALLREDUCE)
def test_sums_are_right_and_the_same_bits_everywhere(name: str, ranks: int) -> None:
    for size in (1, ranks - 1, ranks + 1, 1003):
        parts = np.random.default_rng(size).normal(size=(ranks, size))

        def work(comm: Communicator, parts: np.ndarray = parts) -> np.ndarray:
            comm.algorithm = name
            total = np.empty(parts.shape[1])
            comm.Allreduce(parts[comm.rank], total)
            return total

        found = run_virtual_ranks(ranks, work)
        np.testing.assert_allclose(found[0], parts.sum(0), rtol=1e-12, atol=1e-12)
        assert all(np.array_equal(other, found[0]) for other in found)


@pytest.mark.parametrize("nodes", [[0, 0, 1, 1], [0, 1, 0, 1, 2], [0, 1, 2], [1, 1, 0, 0, 0, 2]])
@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_only_one_rank_of_a_node_talks_to_others(nodes: list[int], op: str) -> None:
    ranks, size = len(nodes), 50
    parts = np.random.default_rng(0).integers(0, 9, (ranks, size)).astype(float)

    def work(comm: Communicator) -> tuple[np.ndarray, int]:
        comm.algorithm = "hierarchical"
        total = np.empty(size)
        before = comm.traffic.mark()
        comm.Allreduce(parts[comm.rank], total, op)
        return total, comm.traffic.since(before)["Allreduce"].bytes_sent

    found = run_virtual_ranks(ranks, work, nodes)
    expected = {"sum": parts.sum(0), "mean": parts.mean(0), "max": parts.max(0)}[op]
    for rank, (total, sent) in enumerate(found):
        np.testing.assert_allclose(total, expected)
        if nodes.index(nodes[rank]) != rank:
            assert sent == size * 8


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_a_ring_moves_what_the_formula_says_also_when_parts_are_uneven(ranks: int) -> None:
    for size in (ranks * 1000, ranks * 1000 + 1, SEGMENT_BYTES // 8 * ranks + 3):

        def work(comm: Communicator, size: int = size) -> tuple[int, int]:
            comm.algorithm = "ring"
            buffer = np.zeros(size)
            before = comm.traffic.mark()
            comm.Allreduce(buffer, buffer)
            count = comm.traffic.since(before)["Allreduce"]
            return count.bytes_sent, count.bytes_received

        expected = [allreduce_volume(rank, ranks, size) for rank in range(ranks)]
        found = run_virtual_ranks(ranks, work)
        assert found == [(8 * volume.sent, 8 * volume.received) for volume in expected]
        # Over all ranks it is the formula of the books, whatever the remainder.
        assert sum(sent for sent, _ in found) == 2 * (ranks - 1) * size * 8


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("halving", 2 * 7 / 8),
        ("torus", 2 * 7 / 8),
        ("direct", 2 * 7 / 8),
        ("window", 2 * 7 / 8),
        ("doubling", 3),
    ],
)
def test_bytes_of_the_others_at_eight_ranks(name: str, factor: float) -> None:
    def work(comm: Communicator) -> int:
        comm.algorithm = name
        buffer = np.zeros(8000)
        comm.Allreduce(buffer, buffer)
        return comm.traffic.mark()["Allreduce"].bytes_sent

    assert run_virtual_ranks(8, work) == [round(factor * 64000)] * 8


def test_a_nan_is_the_same_everywhere() -> None:
    """Two ranks that combine each other's numbers must not keep each its own payload."""

    def work(comm: Communicator) -> bytes:
        comm.algorithm = "doubling"
        buffer = np.array([0x7FC00000 + comm.rank + 1], np.uint32).view(np.float32)
        comm.Allreduce(buffer, buffer)
        return buffer.tobytes()

    assert len(set(run_virtual_ranks(4, work))) == 1


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_window_takes_buffers_that_are_longer_than_its_rooms(op: str) -> None:
    """Several times in a row, by ranks that are not equally quick."""
    size = 2 * ROOM_BYTES // 4 + 7
    parts = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)

    def work(comm: Communicator) -> list[bytes]:
        comm.algorithm = "window"
        found = []
        for turn in range(3):
            time.sleep(0.002 * ((comm.rank + turn) % 3))
            buffer = parts[comm.rank] * (turn + 1)
            comm.Allreduce(buffer, buffer, op)
            expected = {"sum": parts.sum(0), "mean": parts.mean(0), "max": parts.max(0)}[op]
            np.testing.assert_allclose(buffer, expected * (turn + 1), rtol=1e-4, atol=1e-5)
            found.append(buffer.tobytes())
        return found

    first, *others = run_virtual_ranks(3, work)
    assert all(other == first for other in others)


def test_ranks_of_several_machines_have_no_window() -> None:
    def work(comm: Communicator) -> None:
        with pytest.raises(CommError, match=r"expected one of auto, ring.*got 'window'"):
            comm.algorithm = "window"
        inside = comm.Split(comm.nodes[comm.rank])
        assert inside is not None
        assert "window" in inside.algorithms()

    run_virtual_ranks(3, work, [0, 0, 1])
