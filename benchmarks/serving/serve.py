"""How many requests a second `caldera serve` answers, how soon, and what is lost when it ends.

Trains the digits, serves them, and has clients on the same machine ask: at a steady rate, and as
fast as answers come. Beside it, in turns, FastAPI with PyTorch (`serve_torch.py`), where a Python
that has them is given; both on uvicorn with httptools and uvloop.

    python benchmarks/serving/serve.py --torch-python venv/bin/python --write
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import cast

_PORT = 8100
RATE, CONNECTIONS, SECONDS, TURNS = 1000, 32, 5.0, 3
HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / f"serve-{platform.machine()}.md"
_BODY = json.dumps({"samples": [[random.Random(0).random() for _ in range(64)]]}).encode()
_REQUEST = (
    b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    + f"content-length: {len(_BODY)}\r\n\r\n".encode()
    + _BODY
)


@dataclass
class Outcome:
    """What clients saw: seconds of each answer, other statuses, and requests without an answer."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    lost: int = 0
    took: float = 0.0

    def percentile(self, part: float) -> float:
        """The time, in milliseconds, within which that part of the answers came."""
        ordered = sorted(self.seconds)
        return 1e3 * ordered[min(int(part * len(ordered)), len(ordered) - 1)]

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.seconds) / self.took


class Client(asyncio.Protocol):
    """A connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.closed = False
        self._answer: asyncio.Future[tuple[int, bool]] | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to write."""
        self.transport = cast(asyncio.Transport, transport)

    def ask(self) -> asyncio.Future[tuple[int, bool]]:
        """Send the request; its status, and whether the connection ends with it."""
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(_REQUEST)
        return self._answer

    def data_received(self, data: bytes) -> None:
        """Answer once the whole response is there."""
        self._got += data
        end = self._got.find(b"\r\n\r\n")
        if end < 0 or self._answer is None:
            return
        head = self._got[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._got) >= end + 4 + length:
            self._got = b""
            answer, self._answer = self._answer, None
            ends = b"connection: close" in head
            self.closed = self.closed or ends
            if not answer.done():
                answer.set_result((int(head[9:12]), ends))

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever still waits gets nothing."""
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError())


async def connect(port: int) -> Client:
    """A new connection."""
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(Client, "127.0.0.1", port)
    return client


async def keep_asking(port: int, until: float, outcome: Outcome) -> None:
    """One client that asks again as soon as it has its answer."""
    client = None
    while time.perf_counter() < until:
        try:
            if client is None or client.closed:
                client = await connect(port)
        except OSError:
            # Nobody listens any more: nothing was asked, so nothing is lost.
            return
        began = time.perf_counter()
        try:
            status, _ = await client.ask()
        except ConnectionResetError:
            outcome.lost += 1
            continue
        if status == 200:
            outcome.seconds.append(time.perf_counter() - began)
        else:
            outcome.refused += 1


async def as_fast_as_possible(port: int, seconds: float) -> Outcome:
    """Clients that each ask without a pause."""
    outcome, began = Outcome(), time.perf_counter()
    until = began + seconds
    await asyncio.gather(*(keep_asking(port, until, outcome) for _ in range(CONNECTIONS)))
    outcome.took = time.perf_counter() - began
    return outcome


async def at_a_rate(port: int, rate: float, seconds: float) -> Outcome:
    """Requests at random moments, `rate` a second, whether earlier ones are answered or not.

    The clock of each starts when it was due, so that a server that stops for a while is not
    spared the requests that would have come.
    """
    outcome, began = Outcome(), time.perf_counter()
    free: list[Client] = [await connect(port) for _ in range(CONNECTIONS)]
    draw, tasks = random.Random(1), set()

    async def one(due: float) -> None:
        client = free.pop() if free else await connect(port)
        try:
            status, _ = await client.ask()
        except ConnectionResetError:
            outcome.lost += 1
            return
        free.append(client)
        if status == 200:
            outcome.seconds.append(time.perf_counter() - due)
        else:
            outcome.refused += 1

    due = began
    while due < began + seconds:
        pause = due - time.perf_counter()
        await asyncio.sleep(max(pause, 0))
        task = asyncio.ensure_future(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += draw.expovariate(rate)
    while tasks:
        await asyncio.sleep(0.01)
    outcome.took = time.perf_counter() - began
    return outcome


class Server:
    """A server in a process of its own."""

    def __init__(self, words: list[str], port: int) -> None:
        self.port = port
        self.process = subprocess.Popen(
            words, env={**os.environ, "PORT": str(port)}, stdout=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        self.process.kill()
        raise RuntimeError(f"{words} does not serve")

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def cpu_seconds(self) -> float:
        """What its threads have computed so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> int:
        """Tell it to end, and wait until it has; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


async def ended_under_load(server: Server) -> tuple[Outcome, int]:
    """What clients see that ask without a pause while the server is told to end."""
    outcome, until = Outcome(), time.perf_counter() + 30
    clients = asyncio.gather(
        *(keep_asking(server.port, until, outcome) for _ in range(CONNECTIONS))
    )
    await asyncio.sleep(1.0)
    status = await asyncio.to_thread(server.end)
    await clients
    return outcome, status


def run(coroutine):  # type: ignore[no-untyped-def]
    """Run the clients, on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


def measure(contestants: dict[str, list[str]]) -> list[str]:
    """The lines of the table."""
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(words, _PORT + number))
            for number, (name, words) in enumerate(contestants.items())
        }
        for server in servers.values():
            run(as_fast_as_possible(server.port, 1.0))
        turns = {name: Turns() for name in servers}
        for _ in range(TURNS):
            for name, server in servers.items():
                turns[name].take(server)
        return [f"| {name} | {turns[name].line(server)} |" for name, server in servers.items()]


@dataclass
class Turns:
    """What one server did in all its turns."""

    steady: list[Outcome] = field(default_factory=list)
    fast: list[Outcome] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)

    def take(self, server: Server) -> None:
        """One turn: at a steady rate, and then as fast as it answers."""
        self.steady.append(run(at_a_rate(server.port, RATE, SECONDS)))
        before = server.cpu_seconds()
        self.fast.append(run(as_fast_as_possible(server.port, SECONDS)))
        used = server.cpu_seconds() - before
        self.cost.append(1e6 * used / max(len(self.fast[-1].seconds), 1))

    def line(self, server: Server) -> str:
        """The medians of the turns, and what became of requests when the server was ended."""
        ended, status = run(ended_under_load(server))
        cells = [
            f"{median(each.rate for each in self.steady):,.0f}",
            f"{median(each.percentile(0.5) for each in self.steady):.1f}",
            f"{median(each.percentile(0.99) for each in self.steady):.1f}",
            f"{median(each.rate for each in self.fast):,.0f}",
            f"{median(each.percentile(0.99) for each in self.fast):.1f}",
            f"{median(self.cost):,.0f}",
            f"{ended.lost} of {len(ended.seconds) + ended.lost:,} (exit status {status})",
        ]
        return " | ".join(cells)


def main() -> None:
    """Measure, print, and write the results where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", help="a Python with torch, fastapi and uvicorn")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        train = ["train", "--data", "digits", "--quiet", "--out", folder]
        subprocess.run([sys.executable, "-m", "caldera", *train], check=True)
        model = str(Path(folder) / "digits.caldera")
        contestants = {
            "caldera serve": [
                sys.executable,
                "-m",
                "caldera",
                "serve",
                model,
                "--port",
                str(_PORT),
            ]
        }
        if arguments.torch_python:
            contestants["FastAPI + PyTorch"] = [
                arguments.torch_python,
                str(HERE / "serve_torch.py"),
            ]
        lines = measure(contestants)
    text = "\n".join(
        [
            f"| server | answers/s at {RATE:,} requests/s | p50 ms | p99 ms | most answers/s |"
            " p99 ms | µs of CPU a request | lost when told to end |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            *lines,
        ]
    )
    print(text)
    if arguments.write:
        RESULTS.write_text(
            RESULTS.read_text().split("<!-- table -->")[0] + "<!-- table -->\n" + text + "\n"
        )


if __name__ == "__main__":
    main()
