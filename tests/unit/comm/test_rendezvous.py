"""Ranks that find each other by RANK, WORLD_SIZE and MASTER_ADDR, played by threads."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.comm.listener import KEY_BYTES, Listener, connect
from caldera.comm.local_sockets import SocketCommunicator, gather_links
from caldera.comm.rendezvous import Meeting, join_world
from caldera.errors import CommError, ConfigError, RankLostError
from caldera.testing.communicators import CONTRACT

Variables = dict[str, str]


@pytest.fixture(autouse=True)
def _own_secret(tmp_path: Path) -> Iterator[None]:
    # Ten times as long a rank waits for the others.
    with settings.override(cache_dir=tmp_path / "cache", stall_s=3.0):
        yield


def _ranks(size: int, **more: str) -> list[Variables]:
    job = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return [{**job, "RANK": str(rank), **more} for rank in range(size)]


def _run(ranks: list[Variables], work: Callable[[SocketCommunicator], Any]) -> list[Any]:
    """Return the result of each rank, or the error it raised."""
    results: list[Any] = [None] * len(ranks)

    def run(index: int) -> None:
        try:
            with closing_world(ranks[index]) as comm:
                results[index] = work(comm)
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@contextmanager
def closing_world(variables: Variables) -> Iterator[SocketCommunicator]:
    comm = join_world(variables)
    with closing(comm.endpoint):
        yield comm


def _sum(comm: SocketCommunicator) -> float:
    total = np.empty(3)
    comm.Allreduce(np.full(3, comm.rank + 1.0), total)
    return float(total[0])


def test_ranks_meet_and_keep_the_contract() -> None:
    def work(comm: SocketCommunicator) -> list[int]:
        for check in CONTRACT[:4]:
            check(comm)
        assert comm.label == "world"
        return list(comm.nodes)

    assert _run(_ranks(3), work) == [[0, 0, 0]] * 3


def test_no_rank_fails_because_another_has_come_to_its_end() -> None:
    """The last barrier releases ranks one by one: some have left when others are still in it."""

    def work(comm: SocketCommunicator) -> None:
        for _ in range(3):
            _sum(comm)
        comm.Barrier()

    for _ in range(10):
        assert _run(_ranks(4), work) == [None] * 4


def test_a_receive_from_a_rank_that_has_left_fails_and_no_other_does() -> None:
    may_go = threading.Event()

    def work(comm: SocketCommunicator) -> str:
        other = 3 - comm.rank
        if comm.rank == 0:
            comm.Send(np.ones(1), 1, 5)
            return "left"
        # What was sent before the end is there, whenever it is asked for.
        buffer = np.empty(1)
        with pytest.raises(RankLostError, match=r"message from rank 0 .*its goodbye"):
            comm.Recv(buffer, 0, 6)
        if comm.rank == 1:
            comm.Recv(buffer, 0, 5)
            comm.Send(buffer + other, other, 7)
            may_go.wait(10)
            return "received"
        comm.Recv(buffer, other, 7)
        request = comm.Irecv(buffer, -1, 8)
        assert not request.test()
        may_go.set()
        with pytest.raises(RankLostError, match="message from any rank"):
            request.wait()
        return "received"

    assert _run(_ranks(3), work) == ["left", "received", "received"]


def test_an_earlier_attempt_is_not_met() -> None:
    old = _ranks(2, TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT="0")
    new = _ranks(2, TORCHELASTIC_RUN_ID="job", TORCHELASTIC_RESTART_COUNT="1")
    keys = {Meeting.of(each).key for each in (*old, *new)}
    assert len(keys) == 2
    # All know the port of the second attempt, and two claim to be its rank 1.
    port = str(Meeting.of(new[0]).ports[0])
    with settings.override(stall_s=0.4):
        found = _run([old[1] | {"CALDERA_PORTS": port}, *new], _sum)
    assert found[1:] == [3.0, 3.0]
    assert isinstance(found[0], CommError)
    assert "no answer from a process with the same key" in str(found[0])


@pytest.mark.parametrize("ended", [True, False])
def test_the_later_of_two_with_a_number_counts(ended: bool) -> None:
    """The earlier one may have been killed, or its launcher has not ended it yet."""
    key, found = bytes(KEY_BYTES), list[dict[int, socket.socket]]()
    with closing(Listener(key)) as listener, ExitStack() as stack:

        def come(rank: int) -> socket.socket:
            return stack.enter_context(connect(key, listener.port, rank, 0, 20.0))

        thread = threading.Thread(target=lambda: found.append(gather_links(listener, 3, 20)))
        thread.start()
        stale = come(2)
        if ended:
            stale.close()
            come(1)
            thread.join(0.2)
            assert thread.is_alive()
        latest = come(2)
        if not ended:
            come(1)
        thread.join()
        for link in found[0].values():
            stack.enter_context(link)
        assert found[0].keys() == {1, 2}
        assert found[0][2].getpeername() == latest.getsockname()


def test_two_jobs_with_one_name_do_not_mix() -> None:
    ranks = _ranks(2)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(_run(ranks[:1], _sum)))
    thread.start()
    port = Meeting.of(ranks[0]).ports[0]
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
    with pytest.raises(CommError, match="one rank 0, got another one at port"):
        join_world(ranks[0])
    assert _run(ranks[1:], _sum) == [3.0]
    thread.join()
    assert found == [3.0]
    with pytest.raises(CommError, match="MASTER_PORT, which identifies the job"):
        Meeting.of({**ranks[0], "MASTER_PORT": ""})


def test_ports_that_others_hold_are_passed_over() -> None:
    ranks = _ranks(2)
    ports = Meeting.of(ranks[0]).ports
    assert len(set(ports)) > 1
    # It lets others connect, and says nothing.
    with socket.create_server(("127.0.0.1", ports[0])):
        assert _run(ranks, _sum) == [3.0, 3.0]


def test_a_rank_that_tries_all_ports_finds_the_first_rank_among_the_others(
    tmp_path: Path,
) -> None:
    file = tmp_path / "key"
    file.write_bytes(os.urandom(32))
    file.chmod(0o600)
    # As on several machines: ranks listen at the ports at which they look for rank 0.
    with socket.create_server(("", 0)) as free:
        last = free.getsockname()[1]
    ranks = _ranks(4, CALDERA_KEY_FILE=str(file), CALDERA_PORTS=f"{last - 5}-{last}")
    assert len(Meeting.of(ranks[1]).own_ports) == 6
    delayed = threading.Timer(0.5, lambda: late.extend(_run(ranks[:1], _sum)))
    late: list[Any] = []
    delayed.start()
    assert _run(ranks[1:], _sum) == [10.0] * 3
    delayed.join()
    assert late == [10.0]


def test_the_port_of_the_launcher_is_not_taken() -> None:
    first = Meeting.of(_ranks(2)[0]).ports
    given = _ranks(2, CALDERA_PORTS="29499-29501")
    assert list(Meeting.of(given[1]).ports) == [29499, 29501]
    assert 29500 not in first
    for wrong in ("0", "70000", "5-3", "a", "1-2-3"):
        with pytest.raises(ConfigError, match="ports as in 29600-29700"):
            Meeting.of(given[1] | {"CALDERA_PORTS": wrong})


def test_a_rank_0_that_ends_early_is_named_as_the_cause() -> None:
    ranks = _ranks(3)
    meeting = Meeting.of(ranks[0])
    found: list[Any] = []
    with closing(Listener(meeting.first_key, ports=meeting.ports)) as listener:
        thread = threading.Thread(target=lambda: found.extend(_run(ranks[1:2], _sum)))
        thread.start()
        listener.accept(time.monotonic() + 20).link.close()
    thread.join()
    assert isinstance(found[0], CommError)
    assert "3 ranks that stay until all are connected" in str(found[0])


def test_without_a_free_port_the_error_names_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(CommError, match=f"a free port among {port}"):
            join_world(_ranks(2, CALDERA_PORTS=port)[0])


@pytest.mark.parametrize("rank", ["2", "-1", "", "one", "\u00b2"])
def test_a_rank_outside_of_the_world_is_refused(rank: str) -> None:
    with pytest.raises(CommError, match="RANK from 0 to 1"):
        Meeting.of(_ranks(2)[0] | {"RANK": rank})


def test_the_secret_of_a_machine_is_for_this_user_alone() -> None:
    key = Meeting.of(_ranks(2)[1]).key
    files = [path for path in FileCache("world").folder.rglob("*") if path.is_file()]
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600]
    assert Meeting.of(_ranks(2)[0]).key == key != files[0].read_bytes()
    assert Meeting.of(_ranks(3)[0]).key != key


def test_a_key_file_joins_machines(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(os.urandom(32).hex().encode() + b"\n")
    file.chmod(0o600)
    link = tmp_path / "mounted"
    link.symlink_to(file)
    far = _ranks(2, MASTER_ADDR="n1", CALDERA_KEY_FILE=str(link))
    meeting = Meeting.of(far[1])
    assert (meeting.host, meeting.interface != "127.0.0.1") == ("n1", True)
    # torchrun says how many ranks a machine has.
    assert Meeting.of(far[1] | {"LOCAL_WORLD_SIZE": "2"}).host == "127.0.0.1"
    assert _run(_ranks(2, CALDERA_KEY_FILE=str(file)), _sum) == [3.0, 3.0]


def test_a_secret_that_others_could_know_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    far = _ranks(2, MASTER_ADDR="n1", CALDERA_KEY_FILE=str(file))[1]
    with pytest.raises(ConfigError, match=r"CALDERA_KEY_FILE: .*No such file"):
        Meeting.of(far)
    file.write_bytes(b"k" * 32)
    for mode in (0o644, 0o640, 0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(ConfigError, match=rf"others have access .*0{mode:o}.*chmod 600"):
            Meeting.of(far)
    file.chmod(0o600)
    file.write_bytes(b" short\n")
    with pytest.raises(ConfigError, match="at least 16 bytes, got 5 bytes"):
        Meeting.of(far)
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(ConfigError, match="no plain file"):
        Meeting.of(far)


def test_ranks_with_another_key_never_meet(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        file = tmp_path / str(rank)
        file.write_bytes(os.urandom(32))
        file.chmod(0o600)
        ranks.append(_ranks(2, CALDERA_KEY_FILE=str(file), CALDERA_PORTS="29610-29611")[rank])
    with settings.override(stall_s=0.1):
        found = _run(ranks, _sum)
    assert all(isinstance(each, CommError) for each in found)


def test_no_key_is_in_what_is_sent() -> None:
    """All that two ranks send each other goes through a relay that keeps it."""
    taken: list[bytes] = []
    relay = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = _ranks(2)
    ranks[0]["CALDERA_PORTS"] = str(port)
    ranks[1]["CALDERA_PORTS"] = f"{relay.getsockname()[1]}-{relay.getsockname()[1] + 9}"

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                taken.append(piece)
                target.sendall(piece)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                near, _ = relay.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", port))
                except OSError:
                    near.close()
                    continue
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=copy, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    keys = _run(ranks, lambda comm: (_sum(comm), comm.shared_key(), comm.endpoint.key))
    relay.close()
    assert keys[0] == keys[1]
    assert len({*keys[0][1:], FileCache("world").secret()}) == 3
    sent = b"".join(taken)
    assert len(sent) > 200
    for key in (*keys[0][1:], FileCache("world").secret()):
        assert key not in sent
        assert key.hex().encode() not in sent
