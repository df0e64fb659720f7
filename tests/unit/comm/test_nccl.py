"""Buffers on a card: staged through the host where a communicator cannot reach them, through NCCL
where it can; the results are those of buffers on the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from caldera.comm import Communicator, NcclCommunicator, SingleProcess, nccl, run_virtual_ranks
from caldera.comm.mpi_library import reports_gpu_support
from caldera.comm.nccl import GpuEvidence, reason_against_nccl
from caldera.errors import CommError
from caldera.testing.communicators import CONTRACT, Check
from tests.unit.comm.fake_card import Runtime, fake_card, on_card, seen_from_card

__all__ = ["fake_card"]
Make = Callable[[Communicator], Communicator]
KINDS: dict[str, Make] = {
    "through the host": lambda comm: comm,
    "NCCL": lambda comm: NcclCommunicator(comm, card=0),
}
DTYPES = [np.dtype(name) for name in ("float32", "float64", "int64", "float16")]
DTYPES.append(np.dtype(ml_dtypes.bfloat16))


def numbers(rank: int, size: int, dtype: np.dtype) -> np.ndarray:
    return np.random.default_rng([rank, size]).integers(-9, 9, size).astype(dtype)


def both(
    ranks: int, make: Make, work: Callable[[Communicator, Callable], np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a piece of work gives with buffers on cards, and with buffers on the host."""
    there = run_virtual_ranks(ranks, lambda comm: seen_from_card(work(make(comm), on_card)))
    here = run_virtual_ranks(ranks, lambda comm: work(comm, np.array))
    return there, here


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
class TestCollectives:
    def check(self, ranks: int, kind: str, work: Callable) -> None:
        there, here = both(ranks, KINDS[kind], work)
        for a, b in zip(there, here, strict=True):
            np.testing.assert_array_equal(a, b)

    def test_allreduce(self, ranks: int, kind: str, dtype: np.dtype) -> None:
        for op in ("sum", "max", "min", *(["mean"] if dtype.kind != "i" else [])):

            def work(comm: Communicator, place: Callable, op: str = op) -> np.ndarray:
                send = place(numbers(comm.rank, 7, dtype))
                receive = place(np.zeros(7, dtype))
                comm.Allreduce(send, receive, op)
                comm.Allreduce(send, send, op)
                return np.concatenate([receive.view(np.ndarray), send.view(np.ndarray)])

            there = run_virtual_ranks(ranks, lambda comm: work(KINDS[kind](comm), on_card))
            here = run_virtual_ranks(ranks, lambda comm: work(comm, np.array))
            for a, b in zip(there, here, strict=True):
                np.testing.assert_allclose(a.astype(float), b.astype(float), rtol=1e-6)

    def test_reduce(self, ranks: int, kind: str, dtype: np.dtype) -> None:
        def work(comm: Communicator, place: Callable) -> np.ndarray:
            receive = place(np.zeros(5, dtype))
            at_root = receive if comm.rank == ranks - 1 else None
            comm.Reduce(place(numbers(comm.rank, 5, dtype)), at_root, ranks - 1)
            return receive

        self.check(ranks, kind, work)

    def test_broadcast(self, ranks: int, kind: str, dtype: np.dtype) -> None:
        def work(comm: Communicator, place: Callable) -> np.ndarray:
            buffer = place(numbers(comm.rank, 5, dtype))
            comm.Bcast(buffer, ranks - 1)
            return buffer

        self.check(ranks, kind, work)

    @pytest.mark.parametrize("even", [True, False])
    def test_parts(self, ranks: int, kind: str, dtype: np.dtype, even: bool) -> None:
        counts = [3] * ranks if even else [0 if rank == 1 else rank + 1 for rank in range(ranks)]

        def work(comm: Communicator, place: Callable) -> np.ndarray:
            part = place(np.zeros(counts[comm.rank], dtype))
            whole = place(np.zeros(sum(counts), dtype))
            comm.ReduceScatter(place(numbers(comm.rank, sum(counts), dtype)), part, counts)
            comm.Allgather(part, whole, counts)
            return whole

        self.check(ranks, kind, work)

    def test_alltoall(self, ranks: int, kind: str, dtype: np.dtype) -> None:
        def work(comm: Communicator, place: Callable) -> np.ndarray:
            counts = [comm.rank + other for other in range(ranks)]
            receive = place(np.zeros(sum(counts), dtype))
            comm.Alltoall(place(numbers(comm.rank, sum(counts), dtype)), receive, counts, counts)
            return receive

        self.check(ranks, kind, work)


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("kind", KINDS)
def test_messages_and_requests(kind: str) -> None:
    def work(comm: Communicator) -> list[float]:
        own = KINDS[kind](comm)
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        here, total = on_card(np.zeros(2)), on_card(np.zeros(2))
        arriving = own.Irecv(here, left, 3)
        own.Send(on_card(np.full(2, comm.rank + 1.0)), right, 3)
        arriving.wait()
        assert arriving.test()
        assert arriving.source == left
        own.Iallreduce(here, total).wait()
        return [*seen_from_card(here).tolist(), *seen_from_card(total).tolist()]

    assert run_virtual_ranks(3, work) == [[3, 3, 6, 6], [1, 1, 6, 6], [2, 2, 6, 6]]


def test_a_card_is_waited_for_before_its_memory_is_read(fake_card: Runtime) -> None:
    buffer = on_card(np.ones(1000, np.float32))
    SingleProcess().Allreduce(buffer, buffer)
    assert fake_card.copied == [("d2h", 4000), ("h2d", 4000)]
    assert fake_card.waits >= 2


@pytest.mark.usefixtures("fake_card")
@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__)
def test_nccl_keeps_the_contract_for_buffers_on_the_host(check: Check) -> None:
    run_virtual_ranks(2, lambda comm: check(NcclCommunicator(comm, card=0)))


@pytest.mark.usefixtures("fake_card")
def test_nccl_counts_and_makes_groups() -> None:
    def work(comm: Communicator) -> tuple[int, float]:
        own = NcclCommunicator(comm, card=0)
        buffer = on_card(np.ones(1000, np.float32))
        before = own.traffic.mark()
        own.Allreduce(buffer, buffer)
        pair = own.Split(comm.rank // 2)
        assert isinstance(pair, NcclCommunicator)
        pair.Allreduce(buffer, buffer)
        return own.traffic.since(before)["Allreduce"].bytes_sent, seen_from_card(buffer)[0].item()

    assert run_virtual_ranks(4, work) == [(6000, 8.0)] * 4


@pytest.mark.usefixtures("fake_card")
def test_nccl_refuses_buffers_in_two_places() -> None:
    own = NcclCommunicator(SingleProcess(), card=0)
    with pytest.raises(CommError, match="one on each"):
        own.Allreduce(on_card(np.ones(2)), np.ones(2))


@pytest.mark.parametrize(
    ("cards", "found", "carried_by"),
    [
        ([0, 1, 2], True, "NCCL"),
        ([0, 1, 0], True, "threads"),
        ([0, 1, 2], False, "threads"),
    ],
    ids=["a card each", "a shared card", "no NCCL"],
)
def test_ranks_with_a_card_each_take_nccl(
    cards: list[int],
    found: bool,
    carried_by: str,
    fake_card: Runtime,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = threading.local()
    monkeypatch.setattr(nccl, "card_count", lambda: 3)
    monkeypatch.setattr(nccl, "own_card", lambda: taken.card)
    monkeypatch.setattr(nccl, "find_spec", lambda name: object() if found else None)

    def work(comm: Communicator) -> tuple[str, list[float]]:
        taken.card = cards[comm.rank]
        chosen = nccl.with_nccl(comm)
        total = on_card(np.zeros(2))
        chosen.Allreduce(on_card(np.array([1.0, comm.rank])), total)
        return chosen.name, seen_from_card(total).tolist()

    assert run_virtual_ranks(3, work) == [(carried_by, [3.0, 3.0])] * 3


def test_who_cannot_go_on_without_a_rank_says_so() -> None:
    with pytest.raises(CommError, match="survives the death of a rank"):
        SingleProcess().Shrink()


@pytest.mark.usefixtures("fake_card")
def test_the_route_of_messages_is_told() -> None:
    def work(comm: Communicator) -> list[str]:
        own = NcclCommunicator(comm, card=0)
        return [each.route(device) for each in (own, comm) for device in ("cuda:0", "cpu")]

    routes = ["NCCL", "threads", "threads, through the host", "threads"]
    assert run_virtual_ranks(2, work) == [routes] * 2


HERE, THERE = GpuEvidence("4f1c", True), GpuEvidence("9ab0", True)


@pytest.mark.parametrize(
    ("everyone", "reason"),
    [
        ([HERE], ""),
        ([HERE, THERE], ""),
        ([HERE, THERE, HERE], "ranks 0 and 2 share a GPU"),
        ([HERE, GpuEvidence()], "rank 1 has no GPU"),
        ([HERE, GpuEvidence("9ab0", False)], "rank 1 lacks NCCL"),
        ([GpuEvidence(), GpuEvidence()], "rank 0 has no GPU"),
    ],
)
def test_the_reason_against_nccl_is_named(everyone: list[GpuEvidence], reason: str) -> None:
    assert reason_against_nccl(everyone) == reason


def _of_mpich(kind: int, found: Any, value: int = 1, failed: int = 0) -> int:
    assert kind == 0
    found._obj.value = value
    return failed


@pytest.mark.parametrize(
    ("library", "supported"),
    [
        (SimpleNamespace(), False),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 1), True),
        (SimpleNamespace(MPIX_Query_cuda_support=lambda: 0), False),
        (SimpleNamespace(MPIX_GPU_query_support=_of_mpich), True),
        (SimpleNamespace(MPIX_GPU_query_support=lambda *given: _of_mpich(*given, 0)), False),
        (SimpleNamespace(MPIX_GPU_query_support=lambda *given: _of_mpich(*given, 1, 1)), False),
    ],
)
def test_mpi_is_asked_for_gpu_support(library: Any, supported: bool) -> None:
    assert reports_gpu_support(library) is supported


@pytest.mark.usefixtures("fake_card")
def test_the_reason_is_part_of_the_route_of_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "card_count", lambda: 1)
    monkeypatch.setattr(nccl, "find_spec", lambda name: object())

    def work(comm: Communicator) -> list[str]:
        chosen = nccl.with_nccl(comm, 0)
        pair = chosen.Split(comm.rank // 2)
        assert pair is not None
        return [each.route("cuda:0") for each in (chosen, pair)]

    route = "threads, through the host (ranks 0 and 1 share a GPU)"
    assert run_virtual_ranks(4, work) == [[route] * 2] * 4
