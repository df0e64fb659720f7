"""Requests, the background thread, and ranks that are missing."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from caldera.comm import Communicator, SingleProcess, run_virtual_ranks, virtual
from caldera.comm.point_to_point import LAST_TAG
from caldera.errors import CommError


def test_what_fails_in_the_background_is_raised_by_wait() -> None:
    def fails(comm: Communicator) -> None:
        raise ValueError("no data")

    request = SingleProcess().background(fails)
    with pytest.raises(ValueError, match="no data"):
        request.wait()
    with pytest.raises(ValueError, match="no data"):
        request.test()


def test_the_background_goes_on_while_nobody_asks() -> None:
    """Rank 0 never tests its request; rank 1's own part of it ends all the same."""

    def work(comm: Communicator) -> float:
        total = np.empty(100_000)
        request = comm.Iallreduce(np.ones(100_000), total)
        if comm.rank == 1:
            request.wait()
            comm.Send(np.ones(1), 0)
        else:
            comm.Recv(np.empty(1), 1)
        request.wait()
        return float(total[-1])

    assert run_virtual_ranks(2, work) == [2.0, 2.0]


def test_an_idle_thread_ends_and_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caldera.comm.requests.IDLE_S", 0.01)
    comm, others = SingleProcess(), set(threading.enumerate())
    comm.background(lambda _: None).wait()
    until = time.monotonic() + 10
    while set(threading.enumerate()) - others:
        assert time.monotonic() < until
        time.sleep(0.01)
    comm.background(lambda _: None).wait()


def test_who_is_missing_is_named_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "TIMEOUT_S", 0.2)
    released = threading.Event()

    def read_slowly() -> None:
        released.wait(20)

    def work(comm: Communicator) -> None:
        if comm.rank == 1:
            read_slowly()
            return
        try:
            comm.Barrier()
        finally:
            released.set()

    with pytest.raises(CommError, match=r"rank 0: .*rank 1 is at .*test_requests.*read_slowly"):
        run_virtual_ranks(2, work)


def test_a_message_of_another_length_is_refused() -> None:
    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.Send(np.zeros(3), 1)
        else:
            comm.Recv(np.zeros(4), 0)

    with pytest.raises(CommError, match="expected 32 bytes, got 24"):
        run_virtual_ranks(2, work)


def test_alone_a_message_that_nobody_sent_is_an_error_at_once() -> None:
    with pytest.raises(CommError, match="a message from rank 0 with tag 3"):
        SingleProcess().Recv(np.zeros(1), 0, tag=3)


def test_messages_and_collectives_do_not_meet() -> None:
    """Of all tags the last is next to that of collectives."""

    def work(comm: Communicator) -> tuple[float, float]:
        message, shared = np.array([7.0]), np.array([float(comm.rank + 1)])
        if comm.rank == 0:
            comm.Isend(message, 1, LAST_TAG).wait()
        comm.Bcast(shared, root=0)
        comm.Barrier()
        if comm.rank == 1:
            message[:] = 0
            comm.Recv(message, 0, LAST_TAG)
        return float(message[0]), float(shared[0])

    assert run_virtual_ranks(2, work) == [(7.0, 1.0)] * 2
    with pytest.raises(CommError, match="a tag from 0 to"):
        SingleProcess().Send(np.zeros(1), 0, LAST_TAG + 1)
