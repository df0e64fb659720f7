"""Ranks of one machine leave what they have for each other in memory: nothing else is different."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.comm.algorithms import shared_exchange, shared_post
from caldera.comm.virtual import VirtualRank
from caldera.compiler.sharding.algorithms import product
from caldera.compiler.sharding.algorithms.panels import Posting, RowMessages, carrier
from caldera.compiler.sharding.algorithms.process_grid import even_cuts, process_grid
from caldera.compiler.sharding.algorithms.product import Factors, multiply_in_memory
from caldera.compiler.sharding.algorithms.product_variants import STATIONARY_C, product_cost
from caldera.compiler.sharding.distributions import BlockCyclic, Columns, Rows
from caldera.compiler.sharding.layout import ShardLayout
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import Links, volume
from tests.unit.compiler.sharding.algorithm_cases import random_layout, run_case


@pytest.fixture(autouse=True)
def _on_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualRank, "shares_memory", True)
    for module in (shared_exchange, shared_post):
        monkeypatch.setattr(module, "ROOM_BYTES", 1 << 15)


def _move(
    whole: np.ndarray, source: ShardLayout, target: ShardLayout, ranks: int
) -> tuple[int, int]:
    """Bytes and messages that all ranks sent there and back."""

    def work(comm: Communicator) -> tuple[int, int]:
        part = source.part_of(whole, comm.rank)
        made = redistributed(part, source, target, comm, rank=comm.rank)
        assert np.array_equal(made, target.part_of(whole, comm.rank))
        back = redistributed(made, target, source, comm, rank=comm.rank)
        assert back.tobytes() == part.tobytes()
        counts = comm.traffic.mark()
        return counts.total.bytes_sent - counts["tuning"].bytes_sent, counts["Alltoall"].calls

    done = run_virtual_ranks(ranks, work)
    return sum(sent for sent, _ in done), done[0][1]


def test_moves_are_bitwise_the_same_and_bytes_are_counted() -> None:
    rng = np.random.default_rng(0)
    shared = 0
    for _ in range(25):
        ranks = int(rng.integers(2, 6))
        shape = tuple(int(n) for n in rng.integers(1, 30, 2))
        source, target = (random_layout(rng, shape, ranks) for _ in range(2))
        dtype = (np.float32, np.float64, np.complex128, np.int8)[rng.integers(4)]
        whole = rng.integers(-100, 100, shape).astype(dtype)
        sent, calls = _move(whole, source, target, ranks)
        there, back = volume(source, target), volume(target, source)
        assert sent == (there.elements + back.elements) * whole.itemsize
        shared += calls
    assert shared > 5


def test_who_has_nothing_for_others_need_not_come() -> None:
    some, everybody = Rows(ranks=(1, 2)).of((8, 8), range(3)), Columns().of((8, 8), range(3))
    assert _move(np.arange(64.0).reshape(8, 8), some, everybody, 3)[1] == 0


def test_what_there_is_no_room_for_is_sent() -> None:
    rows, columns = (each.of((100, 100), range(2)) for each in (Rows(), Columns()))
    assert volume(rows, columns).sent * 8 < 1 << 15 < volume(rows, columns).sent * 16
    assert _move(np.ones((100, 100)), rows, columns, 2)[1] == 2
    assert _move(np.ones((100, 100), complex), rows, columns, 2)[1] == 0


def test_what_is_shared_has_a_time_of_its_own() -> None:
    moved = volume(Rows().of((8, 8), range(2)), Columns().of((8, 8), range(2)))
    links = Links(latency=1.0, bandwidth=1.0, meeting=2.0, shared=16.0)
    assert moved.seconds(8, links) == 2.0 + 16 * 8 / 16.0
    assert moved.seconds(8, Links(latency=1.0, bandwidth=1.0)) == 1.0 + 16 * 8
    cyclic = BlockCyclic(1, grid=(2,)).of((8, 8), range(2))
    assert volume(cyclic, cyclic).seconds(8, links) == 0.0


def test_cholesky_reads_panels_where_they_were_found() -> None:
    for seed in range(2000, 2012):
        run_case(seed, "cholesky")

    def kinds(comm: Communicator) -> tuple[bool, bool]:
        return isinstance(carrier(comm, 1 << 15), Posting), isinstance(
            carrier(comm, (1 << 15) + 1), RowMessages
        )

    assert run_virtual_ranks(2, kinds) == [(True, True)] * 2


def test_products_multiply_slices_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "NARROWEST", 1)
    for room in (1 << 15, 512):
        monkeypatch.setattr(shared_exchange, "ROOM_BYTES", room)
        for seed in range(3000, 3012):
            run_case(seed, "matmul")


def test_a_product_sends_what_its_cost_says_through_memory_too() -> None:
    cuts = even_cuts(24, 2)
    a = np.arange(24.0 * 24).reshape(24, 24)
    cost = product_cost(STATIONARY_C, (1, 2, 2), [cuts] * 4, 8)
    assert cost.posted == cost.bytes

    def work(comm: Communicator) -> int:
        grid = process_grid(comm, 2, 2)
        rows, columns = (slice(*cuts[at : at + 2]) for at in (grid.row, grid.column))
        part, made = np.ascontiguousarray(a[rows, columns]), np.empty((12, 12))
        multiply_in_memory(made, Factors(part, part, grid, cuts, cuts, cuts, cuts), 3)
        assert np.array_equal(made, (a @ a)[rows, columns])
        return comm.traffic.mark()["post"].bytes_sent

    assert run_virtual_ranks(4, work) == [cost.bytes] * 4


def test_a_rank_that_waits_for_the_others_says_in_what() -> None:
    """Who is late is named with the collective that the others are in."""

    def work(comm: Communicator) -> list[str]:
        said: list[str] = []

        def write(numbers: np.ndarray) -> None:
            said.append(comm.operation)
            numbers[comm.rank] = comm.rank

        exchange, dtype = shared_exchange.shared_exchange(comm), np.dtype(np.int64)
        exchange.run([1, 1], [1, 1], dtype, write)
        assert exchange.together(dtype, write)[:2].tolist() == [0, 1]
        return said

    assert run_virtual_ranks(2, work) == [["Alltoall", "Allgather"]] * 2


def test_a_panel_counts_as_sent_to_each_who_reads_it() -> None:
    def work(comm: Communicator) -> int:
        carried = carrier(comm, 1 << 10)
        if comm.rank == 0:
            rows = carried.place((4, 2), np.dtype(float))
            rows[:] = np.arange(8.0).reshape(4, 2)
            before = comm.traffic.total.bytes_sent
            carried.send(rows, np.array([1, 3]), 1, 7)
            carried.finish()
            sent = comm.traffic.total.bytes_sent - before
        else:
            arriving = carried.receive((4, 2), np.dtype(float), np.array([1, 3]), 0, 7)
            assert arriving().tolist() == [[2.0, 3.0], [6.0, 7.0]]
            sent = 0
        return sent

    # Two rows.
    assert run_virtual_ranks(2, work) == [2 * 2 * 8, 0]
