"""The service on a real socket: bytes that are no HTTP, clients that dawdle, and its end."""

from __future__ import annotations

import inspect
import os
import random
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import caldera as cd
from caldera import serve
from caldera.cli import main
from tests.unit.serve.conftest import samples

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'caldera[serve]'")
pytest.importorskip("httptools", reason="httptools is not installed: pip install 'caldera[serve]'")

BODY = samples([3, 1])
HEAD = (
    "POST /predict HTTP/1.1\r\nhost: localhost\r\n"
    "content-type: application/json\r\ncontent-length: {}\r\n"
)
REQUEST = HEAD.format(len(BODY)).encode() + b"\r\n" + BODY


@contextmanager
def served(app: serve.Application) -> Iterator[int]:
    """The port at which an application is served, in a thread."""
    ready = threading.Event()
    addresses: list[str] = []

    def note(address: str) -> None:
        addresses.append(address)
        ready.set()

    thread = threading.Thread(target=lambda: serve.run(app, port=0, ready=note))
    thread.start()
    assert ready.wait(60)
    try:
        yield int(addresses[0].rpartition(":")[2])
    finally:
        app.end()
        thread.join(60)
        assert not thread.is_alive()


def _app(model: cd.Model, **limits: float) -> serve.Application:
    return serve.application(model, limits=serve.Limits(batch_size=2, **limits))  # type: ignore[arg-type]


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), 60)


def _answer(client: socket.socket) -> bytes:
    """The next answer, or what came of it."""
    found = b""
    while part := client.recv(1 << 16):
        found += part
        head, _, body = found.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is not None and len(body) >= int(length[1]):
            break
    return found


def _all(client: socket.socket) -> bytes:
    """Everything that comes, until the other side ends it."""
    found = b""
    while part := client.recv(1 << 16):
        found += part
    return found


def _status(port: int, sent: bytes) -> bytes:
    """The status of the first answer; an empty text if there was none."""
    with _connect(port) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        return client.recv(1 << 16)[9:12]


def test_bytes_that_are_no_request(table_model: cd.Model) -> None:
    with served(_app(table_model, body=1000)) as port:
        assert _status(port, REQUEST) == b"200"
        head = HEAD.format(len(BODY)).encode()
        for wrong, statuses in (
            (b"\x00\x01\x02\r\n\r\n", {b"400"}),
            (b"GET  HTTP/9\r\n\r\n", {b"400"}),
            (b"GET /\xff\xfe HTTP/1.1\r\n\r\n", {b"400", b"404"}),
            (b"GET * HTTP/1.1\r\n\r\n", {b"400", b"404"}),
            (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", {b"400"}),
            (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 9000 + b"\r\n", {b"400"}),
            (b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n", {b"200"}),
            (head + b"content-length: 5\r\n\r\n" + BODY, {b"400"}),
            (HEAD.format(-1).encode() + b"\r\n", {b"400"}),
            (HEAD.format(10**30).encode() + b"\r\nx", {b"400", b"413"}),
            (HEAD.format(5000).encode() + b"\r\n" + b"x" * 5000, {b"413"}),
            (b"BREW /predict HTTP/1.1\r\n\r\n", {b"400", b"405"}),
            (b"OPTIONS /predict HTTP/1.1\r\n\r\n", {b"405"}),
        ):
            found = _status(port, wrong)
            assert found in statuses, (wrong[:60], found)
        # It still serves; and several requests on one connection are answered in order.
        with _connect(port) as client:
            last = REQUEST.replace(b"localhost\r\n", b"localhost\r\nconnection: close\r\n", 1)
            client.sendall(REQUEST * 2 + last)
            assert _all(client).count(b"HTTP/1.1 200 OK") == 3
        # What comes before something that is no request is answered.
        with _connect(port) as client:
            client.sendall(REQUEST + b"\x00\x01\r\n\r\n")
            assert _all(client).startswith(b"HTTP/1.1 200 OK")


def test_requests_with_bytes_changed_are_answered_or_closed(
    table_model: cd.Model, capfd: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(5)
    with served(_app(table_model, seconds=20)) as port:
        for _ in range(150):
            sent = bytearray(REQUEST * draw.choice([1, 2]))
            for _ in range(draw.randrange(1, 6)):
                at = draw.randrange(len(sent))
                sent[at : at + draw.randrange(9)] = draw.randbytes(draw.randrange(9))
            with _connect(port) as client, suppress(ConnectionError):
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                for answer in _all(client).split(b"HTTP/1.1 ")[1:]:
                    assert answer[:1] in b"24", (sent, answer)
    # No errors of the server's own, either.
    assert capfd.readouterr().err == ""


def test_clients_that_dawdle_are_sent_away(table_model: cd.Model) -> None:
    with served(_app(table_model, seconds=0.3)) as port:
        with _connect(port) as silent, _connect(port) as half, _connect(port) as late:
            half.sendall(b"POST /predict HTTP/1.1\r\nhost")
            late.sendall(REQUEST[:-3])
            assert _all(late).startswith(b"HTTP/1.1 408 ")
            # Closed without an answer: there was no request.
            for each in (silent, half):
                with suppress(ConnectionResetError):
                    assert not _all(each)
        # On a busy machine a request may take longer than this server waits.
        assert any(_status(port, REQUEST) == b"200" for _ in range(100))


def test_nothing_is_lost_when_it_ends(table_model: cd.Model) -> None:
    app = _app(table_model, drain=0.3)
    lost: list[bytes] = []
    answered: list[bytes] = []

    def keep_asking(port: int) -> None:
        client, ends = None, True
        while True:
            try:
                if client is None or ends:
                    client = _connect(port)
            except ConnectionError:
                # Nobody listens any more: nothing was asked.
                return
            try:
                client.sendall(REQUEST)
                found = _answer(client)
            except OSError:
                found = b""
            (answered if found.startswith(b"HTTP/1.1 200 OK") else lost).append(found)
            ends = b"connection: close" in found or not found

    with served(app) as port:
        threads = [threading.Thread(target=keep_asking, args=(port,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(answered) < 50:
            time.sleep(0.005)
        app.end()
        for thread in threads:
            thread.join(60)
    assert len(answered) >= 50
    assert not lost


def test_the_command_serves_until_it_is_told_to_end(
    table_model: cd.Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = table_model.save(tmp_path / "boxes.caldera")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        assert main(["serve", str(path), "--port", str(port)]) == 2
        assert "Address already in use" in capfd.readouterr().err
    found: list[bytes] = []

    def ask_and_end() -> None:
        while True:
            try:
                found.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/health").read())
                break
            except OSError:
                time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=ask_and_end)
    thread.start()
    assert main(["serve", str(path), "--port", str(port), "--batch-size", "2"]) == 0
    thread.join()
    assert found == [b'{"status":"ready"}']
    said = capfd.readouterr().out
    assert f"serving boxes at http://127.0.0.1:{port}" in said
    assert "ended   1 requests answered" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--port x", "--port: expected an integer"),
        ("--port 70000", "a number from 0 to 65535"),
        ("--host no.such.host.invalid", "choose another --port or --host"),
        ("--timeout -1", "seconds to be a number of at least 0"),
        ("--max-body 0", "--max-body: expected an integer >= 1"),
    ],
)
def test_wrong_flags(
    table_model: cd.Model, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    path = table_model.save(tmp_path / "boxes.caldera")
    assert main(["serve", str(path), *words.split()]) == 2
    assert said in capfd.readouterr().err


def test_uvicorn_is_one_of_the_versions_that_were_tested() -> None:
    uvicorn = pytest.importorskip("uvicorn")
    protocol = pytest.importorskip("uvicorn.protocols.http.httptools_impl")
    ours = pytest.importorskip("caldera.serve.uvicorn_server")
    assert (0, 34) <= tuple(map(int, uvicorn.__version__.split(".")[:2])) <= (0, 54), (
        "run this file's tests with the new uvicorn, then raise the bound here and in pyproject"
    )
    own = {"__init__", "_count", "_accept_pending", "_awaits_request", "_close_idle"}
    own |= {"_connection", "_connections"}
    for extended in (ours.HttpConnection, ours.DrainingServer):
        base = extended.__base__
        for name in {name for name, each in vars(extended).items() if callable(each)} - own:
            taken = inspect.signature(getattr(extended, name)).parameters
            assert list(taken) == list(inspect.signature(getattr(base, name)).parameters), name
    for made, attributes in (
        (protocol.HttpToolsProtocol, {"cycle", "flow", "pipeline", "transport"}),
        (
            protocol.RequestResponseCycle,
            {"disconnected", "keep_alive", "message_event", "more_body", "response_complete"},
        ),
    ):
        assert attributes <= set(made.__init__.__code__.co_names)


def test_without_uvicorn_it_says_what_to_install(
    table_model: cd.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = table_model.save(tmp_path / "boxes.caldera")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", str(path), "--port", "0"]) == 2
    assert "pip install 'caldera[serve]'" in capfd.readouterr().err
