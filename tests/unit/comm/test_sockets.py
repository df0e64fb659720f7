"""Processes that have sockets to each other, played by threads: each has an endpoint of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from caldera.comm import endpoint
from caldera.comm.endpoint import SHARED_FROM, Endpoint, channel_of
from caldera.comm.listener import KEY_BYTES, Listener, connect
from caldera.comm.local_sockets import SocketCommunicator, gather_links, join_links
from caldera.comm.shared_memory import CAPACITY, SharedOutbox
from caldera.errors import CommError
from caldera.testing.communicators import CONTRACT


def _mesh(size: int) -> list[dict[int, socket.socket]]:
    links: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for first in range(size):
        for second in range(first):
            links[first][second], links[second][first] = socket.socketpair()
    return links


def _run(size: int, work: Callable[[SocketCommunicator], Any]) -> list[Any]:
    """What each rank returns, or the error it raised."""
    endpoints = [Endpoint(rank, links) for rank, links in enumerate(_mesh(size))]
    results: list[Any] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(SocketCommunicator(endpoints[rank], range(size), "world"))
        except Exception as error:
            results[rank] = error
            # The others would wait for it for ever.
            endpoints[rank].revoke(channel_of("world"), rank, repr(error))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    closing = [threading.Thread(target=each.close) for each in endpoints]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    return results


@pytest.mark.parametrize("size", [1, 2, 4])
def test_sockets_keep_the_contract(size: int) -> None:
    def work(comm: SocketCommunicator) -> str:
        for check in CONTRACT:
            check(comm)
        return "kept"

    assert _run(size, work) == ["kept"] * size


def test_messages_longer_than_shared_memory_and_more_than_it_holds_arrive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capacity = 1 << 20
    monkeypatch.setattr(endpoint, "CAPACITY", capacity)
    each = capacity // 4 // 8

    def work(comm: SocketCommunicator) -> bool:
        other = 1 - comm.rank
        # More than there is room for before anybody reads, from both sides at once.
        for number in range(6):
            comm.Isend(np.full(each, number + 10.0 * comm.rank), other, number)
        comm.Isend(np.arange(capacity // 8 + 5.0), other, 7)
        here = np.empty(each)
        for number in (5, 0, 3, 1, 4, 2):
            comm.Recv(here, other, number)
            assert (here == number + 10.0 * other).all()
        whole = np.empty(capacity // 8 + 5)
        comm.Recv(whole, other, 7)
        return bool((np.diff(whole) == 1).all())

    assert _run(2, work) == [True, True]


def test_lengths_around_the_change_to_shared_memory_arrive_whole() -> None:
    lengths = [0, 1, SHARED_FROM - 1, SHARED_FROM, SHARED_FROM + 1, 5 * SHARED_FROM + 3]

    def work(comm: SocketCommunicator) -> None:
        for length in lengths:
            given = np.random.default_rng(length).integers(0, 256, length).astype(np.uint8)
            if comm.rank == 0:
                comm.Send(given, 1)
            else:
                here = np.empty(length, np.uint8)
                comm.Recv(here, 0)
                np.testing.assert_array_equal(here, given)

    assert _run(2, work) == [None, None]


@pytest.mark.parametrize("address", ["another file", "no file", "a folder"])
def test_an_address_that_is_not_the_senders_memory_is_not_read(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two containers the same process and descriptor numbers belong to different files."""
    decoy = SharedOutbox(CAPACITY)
    places = {"another file": decoy.address, "no file": "/proc/0/fd/0", "a folder": "/proc"}
    monkeypatch.setattr(SharedOutbox, "address", property(lambda self: places[address]))

    def work(comm: SocketCommunicator) -> bool:
        right = True
        for number in range(20):
            mine = np.full(SHARED_FROM + number, 100 * comm.rank + number, np.uint8)
            got = np.zeros_like(mine)
            sent = comm.Isend(mine, 1 - comm.rank, number)
            comm.Recv(got, 1 - comm.rank, number)
            sent.wait()
            right &= bool((got == 100 * (1 - comm.rank) + number).all())
        return right

    assert _run(2, work) == [True, True]


def test_a_proven_reader_gets_long_messages_through_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put: list[int] = []
    original = SharedOutbox.put

    def counted(self: SharedOutbox, payload: np.ndarray) -> tuple[int, int] | None:
        put.append(payload.nbytes)
        return original(self, payload)

    monkeypatch.setattr(SharedOutbox, "put", counted)
    until = time.monotonic() + 30

    def work(comm: SocketCommunicator) -> None:
        message = np.zeros(2 * SHARED_FROM, np.uint8)
        # One rank decides for both.
        while comm.bcast_object(not put and time.monotonic() < until):
            sent = comm.Isend(message, 1 - comm.rank, 0)
            comm.Recv(np.zeros_like(message), 1 - comm.rank, 0)
            sent.wait()

    _run(2, work)
    assert put


def test_a_revoked_communicator_releases_those_who_wait_and_others_go_on() -> None:
    def work(comm: SocketCommunicator) -> float:
        apart = SocketCommunicator(comm.endpoint, comm.members, "apart")
        inside = apart.Split(0)
        assert inside is not None
        # Else the news may come while another still makes its communicator.
        comm.Barrier()
        if comm.rank == 2:
            inside.Revoke("singular matrix")
        else:
            for waiting in (inside, apart):
                with pytest.raises(CommError, match=r"rank 2 failed: .*singular matrix"):
                    waiting.Recv(np.empty(1), 2)
        total = np.empty(1)
        comm.Allreduce(np.ones(1), total)
        return float(total[0])

    assert _run(3, work) == [3.0] * 3


def test_a_process_that_is_gone_is_noticed_by_all_who_wait() -> None:
    links = _mesh(3)
    lost: list[int] = []
    endpoints = [Endpoint(rank, links[rank], lost.append) for rank in range(2)]
    comms = [SocketCommunicator(each, range(3), "world") for each in endpoints]
    began = time.monotonic()
    for link in links[2].values():
        link.close()
    for comm in comms:
        with pytest.raises(CommError, match="process 2 of 3"):
            comm.Recv(np.empty(1), 2)
        with pytest.raises(CommError, match="process 2 of 3"):
            comm.Dup()
    assert time.monotonic() - began < 40
    for each in endpoints:
        threading.Thread(target=each.close).start()
    assert lost == [2, 2]


def test_no_reader_outlives_an_endpoint_whose_peer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "LEAVES_WITHIN_S", 0.02)
    ours, theirs = socket.socketpair()
    lost: list[int] = []
    before = set(threading.enumerate())
    leaving = Endpoint(0, {1: ours}, lost.append)
    readers = set(threading.enumerate()) - before
    leaving.close()
    assert readers
    assert not any(thread.is_alive() for thread in readers)
    assert not lost
    theirs.close()


def test_sockets_are_made_by_those_who_know_the_key_alone() -> None:
    key, wrong = b"k" * KEY_BYTES, b"w" * KEY_BYTES
    listener = Listener(key)
    found: dict[int, dict[int, socket.socket]] = {}

    def join(rank: int) -> None:
        found[rank] = join_links(key, listener.port, rank, 4, 20)

    def strangers() -> None:
        with pytest.raises((CommError, OSError)):
            connect(wrong, listener.port, 1, 0, 1)
        # One that says nothing, and goes.
        socket.create_connection(("127.0.0.1", listener.port)).close()

    threads = [threading.Thread(target=strangers)]
    threads += [threading.Thread(target=join, args=(rank,)) for rank in (3, 1, 2)]
    for thread in threads:
        thread.start()
    found[0] = gather_links(listener, 4, 20)
    for thread in threads:
        thread.join()
    listener.close()
    assert {rank: sorted(links) for rank, links in found.items()} == {
        0: [1, 2, 3],
        1: [0, 2, 3],
        2: [0, 1, 3],
        3: [0, 1, 2],
    }
    for links in found.values():
        for link in links.values():
            assert link.getsockname()[0] == "127.0.0.1"
            link.close()


def test_who_does_not_come_is_not_waited_for_for_ever() -> None:
    listener = Listener(b"k" * KEY_BYTES)
    with pytest.raises(CommError, match="starting processes: expected all to connect"):
        gather_links(listener, 2, 0.05)

    def ended() -> None:
        raise CommError("worker 1 has ended")

    with pytest.raises(CommError, match="worker 1 has ended"):
        gather_links(listener, 2, 60, ended)
    listener.close()
