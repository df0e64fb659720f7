"""The door of Caldera's processes: those with the key come in, whoever else stands there."""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest

from caldera.comm import listener as listening
from caldera.comm.listener import KEY_BYTES, MOST_STRANGERS, Listener, connect
from caldera.comm.local_sockets import _ADDRESS, gather_links, join_links
from caldera.errors import CommError

KEY = bytes(range(KEY_BYTES))
PEERS = 6


Stranger = Callable[[int, threading.Event], None]


def _come(port: int, seconds: float = 20.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def _recorded() -> tuple[bytes, bytes]:
    """What both sides of a handshake with the key have sent."""
    with closing(Listener(KEY)) as listener, socket.create_server(("127.0.0.1", 0)) as between:
        port = between.getsockname()[1]
        sent = {"there": b"", "back": b""}

        def pass_on() -> None:
            client, _ = between.accept()
            with client, _come(listener.port) as server:
                for count, source, target, way in (
                    (KEY_BYTES, server, client, "back"),
                    (listening._ANSWER, client, server, "there"),
                    (listening._DIGEST, server, client, "back"),
                    (1, client, server, "there"),
                ):
                    piece = source.recv(count, socket.MSG_WAITALL)
                    sent[way] += piece
                    target.sendall(piece)

        thread = threading.Thread(target=pass_on)
        thread.start()
        with ExitStack() as stack:
            client = threading.Thread(target=lambda: connect(KEY, port, 1, 0, 20).close())
            client.start()
            stack.callback(client.join)
            listener.accept(time.monotonic() + 20).link.close()
        thread.join()
    return sent["there"], sent["back"]


def _says(*pieces: bytes, pause: float = 0.0, stays: bool = True) -> Stranger:
    def stranger(port: int, over: threading.Event) -> None:
        with suppress(OSError), _come(port, 0.2) as link:
            for piece in pieces:
                link.sendall(piece)
                if over.wait(pause):
                    return
            got = b" "
            while got and not over.is_set():
                try:
                    got = link.recv(1000)
                except TimeoutError:
                    got = b" " if stays else b""

    return stranger


def _strangers(seed: int) -> list[Stranger]:
    """A thousand of all kinds, in an order of their own."""
    draw = random.Random(seed)
    there, back = _recorded()
    kinds = [
        lambda: draw.randbytes(draw.randrange(1, 5000)),
        lambda: b"[" * 200_000,
        lambda: b'{"kind": "hello", "rank": 1, "secret": "\\ud800"}\n',
        lambda: b"GET / HTTP/1.1\r\n\r\n",
        lambda: there,
        lambda: there[: draw.randrange(len(there))],
        lambda: back,
        lambda: bytes(len(there)),
    ]
    found = [_says(draw.choice(kinds)(), stays=False) for _ in range(960)]
    found += [_says(*[b"x"] * 200, pause=1.5) for _ in range(20)]
    found += [_says() for _ in range(20)]
    draw.shuffle(found)
    return found


@contextmanager
def _crowd(port: int, waiting: list[Stranger]) -> Iterator[list[Stranger]]:
    """All of them at the door, forty at a time beside those who stay, until all are through."""
    over = threading.Event()

    def go() -> None:
        with suppress(IndexError):
            while not over.is_set():
                waiting.pop()(port, over)

    threads = [threading.Thread(target=go, daemon=True) for _ in range(80)]
    for thread in threads:
        thread.start()
    try:
        yield waiting
    finally:
        over.set()
        for thread in threads:
            thread.join(20)


class _AllHaveCome(Exception):
    pass


def _check_left(crowd: list[Stranger]) -> None:
    if not crowd:
        raise _AllHaveCome


def test_of_a_thousand_strangers_none_comes_in_and_peers_do_in_their_time() -> None:
    found: dict[int, socket.socket] = {}
    with closing(Listener(KEY)) as listener, _crowd(listener.port, _strangers(3)) as crowd:
        peers = [
            threading.Thread(
                target=lambda n=number: found.update({n: connect(KEY, listener.port, n, 0, 60)})
            )
            for number in range(1, PEERS)
        ]
        for peer in peers:
            peer.start()
        links = gather_links(listener, PEERS, 60)
        for peer in peers:
            peer.join()
        # None of those who are left comes in either.
        with pytest.raises(_AllHaveCome):
            listener.accept(time.monotonic() + 60, lambda: _check_left(crowd))
    assert sorted(links) == sorted(found) == list(range(1, PEERS))
    for number, link in links.items():
        # Each end belongs to the other.
        assert found[number].recv(_ADDRESS.size * PEERS, socket.MSG_WAITALL)
        link.sendall(bytes([number]))
        assert found[number].recv(1) == bytes([number])
        link.close()
        found[number].close()


def test_strangers_who_stay_are_ended_in_time_and_in_number() -> None:
    with closing(Listener(KEY)) as listener, ExitStack() as stack:
        before = len(os.listdir("/dev/fd"))
        crowd = [stack.enter_context(_come(listener.port)) for _ in range(MOST_STRANGERS + 50)]
        until = time.monotonic() + 60
        while len(listener._strangers) < MOST_STRANGERS and time.monotonic() < until:
            with pytest.raises(CommError, match="all to connect"):
                listener.accept(time.monotonic() + 0.1)
        with pytest.raises(CommError, match="all to connect"):
            listener.accept(time.monotonic() + 0.1)
        assert len(os.listdir("/dev/fd")) - before <= MOST_STRANGERS + len(crowd)
        assert len(listener._strangers) == MOST_STRANGERS
        for each in listener._strangers.values():
            each.until = 0.0
        listener.end_late()
        assert not listener._strangers
        for each in crowd:
            each.settimeout(20)
            assert len(each.recv(1000)) <= KEY_BYTES
            assert each.recv(1000) == b""


def test_no_more_is_read_of_a_stranger_than_an_answer_has() -> None:
    with closing(Listener(KEY)) as listener, _come(listener.port) as stranger:
        stranger.setblocking(False)
        sent, until = 0, time.monotonic() + 20
        with suppress(OSError):
            while time.monotonic() < until:
                with suppress(BlockingIOError):
                    sent += stranger.send(b"x" * 65536)
                with suppress(CommError):
                    listener.accept(time.monotonic() + 0.01)
                for each in listener._strangers.values():
                    assert len(each.answer) < 4096
        assert not listener._strangers


def test_one_byte_at_a_time_does_not_make_a_deadline_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.5)
    with closing(Listener(KEY)) as listener:
        slow = threading.Thread(
            target=_says(*[b"x"] * 900, pause=0.1), args=(listener.port, over := threading.Event())
        )
        slow.start()
        has_come, until = False, time.monotonic() + 60
        while (listener._strangers or not has_come) and time.monotonic() < until:
            with pytest.raises(CommError, match="all to connect"):
                listener.accept(time.monotonic() + 0.1)
            has_come = has_come or bool(listener._strangers)
        assert has_come
        # All of its bytes would take it a minute and a half.
        assert not listener._strangers
        over.set()
        slow.join()


def test_who_listens_without_the_key_learns_nothing_and_is_not_believed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:
        port = false.getsockname()[1]

        def answer() -> None:
            while True:
                try:
                    link, _ = false.accept()
                except OSError:
                    return
                with link, suppress(OSError):
                    link.sendall(bytes(KEY_BYTES))
                    told = link.recv(listening._ANSWER, socket.MSG_WAITALL)
                    assert KEY not in told
                    # The client's own signature comes back to it.
                    link.sendall(told[-listening._DIGEST :])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(CommError, match="expected a process with the key, got a stranger"):
            connect(KEY, port, 1, 0, 10)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, pytest.raises(TimeoutError):
        connect(KEY, silent.getsockname()[1], 1, 0, 0.2)


def test_the_wrong_key_is_refused_and_the_door_is_on_the_loopback() -> None:
    with closing(Listener(KEY)) as listener:
        assert listener._socket.getsockname()[0] == "127.0.0.1"
        found: list[BaseException] = []

        def wrong() -> None:
            try:
                connect(KEY[::-1], listener.port, 1, 0, 20)
            except CommError as error:
                found.append(error)

        thread = threading.Thread(target=wrong)
        thread.start()
        with pytest.raises(CommError, match="all to connect"):
            listener.accept(time.monotonic() + 0.5, lambda: None)
        while thread.is_alive():
            with suppress(CommError):
                listener.accept(time.monotonic() + 0.1)
        assert "expected a process that accepts this key" in str(found[0])


def test_processes_find_each_other_among_strangers() -> None:
    found: dict[int, dict[int, socket.socket]] = {}
    strangers = [_says(b"x" * 500) for _ in range(150)] + [_says() for _ in range(10)]
    with closing(Listener(KEY)) as listener, _crowd(listener.port, strangers):
        threads = [
            threading.Thread(
                target=lambda n=rank: found.update({n: join_links(KEY, listener.port, n, 4, 20)})
            )
            for rank in (3, 1, 2)
        ]
        for thread in threads:
            thread.start()
        found[0] = gather_links(listener, 4, 20)
        for thread in threads:
            thread.join()
    assert {rank: sorted(links) for rank, links in found.items()} == {
        rank: [other for other in range(4) if other != rank] for rank in range(4)
    }
    for links in found.values():
        for link in links.values():
            link.close()


def test_a_deadline_that_passes_in_the_first_handshake_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            link, _ = false.accept()
            time.sleep(0.3)
            link.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises((CommError, TimeoutError)):
            connect(KEY, false.getsockname()[1], 1, 0, 0.2)
        thread.join()
    with socket.create_server(("127.0.0.1", 0)) as false:
        clock = iter([0.0, 0.0, 0.0, *[9.0] * 20])
        thread = threading.Thread(target=lambda: false.accept()[0].close())
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(listening.time, "monotonic", lambda: next(clock))
            with pytest.raises(CommError, match="got the end of the connection after 0 of"):
                connect(KEY, false.getsockname()[1], 1, 0, 5.0)
        thread.join()


def test_a_process_that_gave_up_before_it_was_accepted_does_not_count() -> None:
    """On a busy machine an attempt may end when the other end has just proven itself."""
    with closing(Listener(KEY)) as listener:
        with _come(listener.port) as early:
            listener.serve(listener._socket)
            challenge = early.recv(KEY_BYTES, socket.MSG_WAITALL)
            hello, mine = listening._HELLO.pack(1, 0), bytes(KEY_BYTES)
            early.sendall(
                hello + mine + listening._signed(KEY, b"connects", challenge, mine, hello)
            )
            while not select.select([early], [], [], 0.0)[0]:
                with pytest.raises(CommError, match="all to connect"):
                    listener.accept(time.monotonic() + 0.1)
            assert early.recv(listening._DIGEST, socket.MSG_WAITALL)
        with pytest.raises(CommError, match="all to connect"):
            listener.accept(time.monotonic() + 0.2)
        assert not listener._proven
