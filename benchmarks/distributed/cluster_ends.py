"""Count clean ends under torchrun, attacks on ports, and messages between process namespaces.

    python benchmarks/distributed/cluster_ends.py torchrun strangers namespaces --kept counts.jsonl

torchrun (`--torchrun PATH`) starts worlds of three ranks that compute and exit. Strangers send
random and partly valid bytes to the ports of a search, of a session's master and of a world's
first rank, which wait for a process with the key. Then a process with the key connects through a
relay, and its bytes are replayed. The namespaces are taken from tests/cluster/test_namespaces.py,
with more and longer messages. The output has one JSON line for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from caldera import dmath as dm
from caldera import search
from caldera.comm.listener import KEY_BYTES, Listener, connect
from caldera.comm.nccl import with_nccl
from caldera.comm.places.local import SupervisedPlace
from caldera.comm.rendezvous import join_world

ROOT = Path(__file__).parents[2]
Attack = Callable[[Listener], Any]
RANK = """
import sys
import numpy as np
from caldera.comm import world
comm = world()
total = np.zeros(1000)
for _ in range(5):
    comm.Allreduce(np.full(1000, comm.rank + 1.0), total)
assert comm.size == 3 and (total == 6).all()
sys.stdout.write(f"end {comm.rank}\\n")
"""


def torchrun(given: argparse.Namespace) -> dict[str, Any]:
    """Start and end worlds under torchrun."""
    clean, ends = 0, 0
    with tempfile.TemporaryDirectory() as name:
        program = Path(name) / "rank.py"
        program.write_text(RANK)
        command = [given.torchrun, "--standalone", "--nproc-per-node=3", "--no-python"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "CALDERA_THREADS": "1"}
        began = time.monotonic()
        for _ in range(given.times):
            done = subprocess.run(
                [*command, sys.executable, str(program)],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            printed = sum(f"end {rank}" in done.stdout for rank in range(3))
            clean, ends = clean + (done.returncode == 0), ends + (printed == 3)
            if done.returncode or printed < 3:
                text = f"status {done.returncode}\n{done.stdout}{done.stderr}"
                print(text, file=sys.stderr, flush=True)
    seconds = (time.monotonic() - began) / given.times
    return {"runs": given.times, "status 0": clean, "all ranks": ends, "s a run": round(seconds, 1)}


# --- strangers


def _stranger(port: int, said: bytes) -> bool:
    """Send bytes; return True if the reply is more than a challenge, or a later reply follows."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10) as link:
        link.settimeout(10)
        link.sendall(said)
        got = b""
        while piece := link.recv(4096):
            got += piece
            if len(got) > KEY_BYTES:
                return True
    return False


def _kinds(draw: random.Random, recorded: bytes) -> Iterator[bytes]:
    while True:
        yield draw.randbytes(draw.randrange(1, 4000))
        yield b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
        yield b'{"kind": "hello"}\n'
        yield recorded
        yield recorded[: draw.randrange(1, len(recorded))]
        yield bytes(len(recorded))


class Relay:
    """Port that forwards bytes to another port and records them."""

    def __init__(self, port: int) -> None:
        self._to, self.sent, self.answered = port, b"", b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        there, _ = self._server.accept()
        back = socket.create_connection(("127.0.0.1", self._to))
        threading.Thread(target=self._pass, args=(back, there, "answered"), daemon=True).start()
        self._pass(there, back, "sent")

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def _recorded() -> bytes:
    """Return what a process with another key sends in a handshake."""
    key = secrets.token_bytes(KEY_BYTES)
    with closing(Listener(key)) as listener:
        relay = Relay(listener.port)
        thread = threading.Thread(target=connect, args=(key, relay.port, 1, 0, 20.0))
        thread.start()
        listener.accept(time.monotonic() + 20).link.close()
        thread.join()
        return relay.sent


@contextmanager
def _watched() -> Iterator[list[Listener]]:
    """Record every listener that this process creates."""
    made: list[Listener] = []
    begin = Listener.__init__

    def watch(self: Listener, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        made.append(self)

    Listener.__init__ = watch  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Listener.__init__ = begin  # type: ignore[method-assign]


def _attack(listener: Listener, count: int) -> dict[str, Any]:
    """Send strangers, then a process with the key through a relay, then its bytes again."""
    draw, recorded = random.Random(listener.port), _recorded()
    kinds = _kinds(draw, recorded)
    with ThreadPoolExecutor(200) as pool:
        said = [next(kinds) for _ in range(count)]
        admitted = sum(pool.map(lambda each: _stranger(listener.port, each), said))
    relay = Relay(listener.port)
    # A number that is not expected: the search drops it after the proof.
    link = connect(listener.key, relay.port, 3999, 0, 20.0)
    link.close()
    replayed = _stranger(listener.port, relay.sent)
    packets = relay.sent + relay.answered
    return {
        "strangers": count,
        "admitted": admitted,
        "replay admitted": replayed,
        "key in packets": listener.key in packets or listener.key.hex().encode() in packets,
    }


def _search_port(attack: Attack) -> tuple[Any, bool]:
    """Attack the port of a search while it runs."""
    found: list[Any] = []

    def slow(x: int) -> float:
        time.sleep(0.3)
        return float((x - 5) ** 2)

    with _watched() as made:

        def run() -> None:
            while not made:
                time.sleep(0.05)
            found.append(attack(made[0]))

        thread = threading.Thread(target=run)
        thread.start()
        space = {"x": search.integer(0, 149)}
        study = search.run(slow, space, method="grid", workers="processes:2", verbose=0)
        thread.join()
    return found[0], [trial.value for trial in study.trials] == [(x - 5) ** 2 for x in range(150)]


def _session_port(attack: Attack) -> tuple[Any, bool]:
    """Attack the port of a session's master before its workers come."""
    found: list[Any] = []
    begin = SupervisedPlace.start

    def late(self: SupervisedPlace, *given: Any) -> list[int]:
        def run() -> None:
            found.append(attack(made[0]))
            begin(self, *given)

        threading.Thread(target=run).start()
        return [0, 1]

    SupervisedPlace.start = late  # type: ignore[method-assign]
    try:
        with _watched() as made, dm.connect(2) as session:
            right = session.ranks == 2 and dm.ones((6, 6)).sum().item() == 36
    finally:
        SupervisedPlace.start = begin  # type: ignore[method-assign]
    return found[0], right


def _world_port(attack: Attack) -> tuple[Any, bool]:
    """Attack the port of a world's first rank before the others come."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        master = str(free.getsockname()[1])
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master}
    worlds: list[Any] = []
    with _watched() as made:
        first = threading.Thread(
            target=lambda: worlds.append(with_nccl(join_world({**job, "RANK": "0"})))
        )
        first.start()
        while not made:
            time.sleep(0.05)
        found = attack(made[0])
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK],
                env={**os.environ, **job, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
                stdout=subprocess.DEVNULL,
            )
            for rank in (1, 2)
        ]
        first.join()
    total = np.zeros(1000)
    for _ in range(5):
        worlds[0].Allreduce(np.full(1000, 1.0), total)
    worlds[0].endpoint.close()
    return found, all(rank.wait() == 0 for rank in ranks) and bool((total == 6).all())


def strangers(given: argparse.Namespace) -> dict[str, Any]:
    """Attack each kind of port."""
    ports = {"search": _search_port, "session": _session_port, "world": _world_port}
    found = {}
    for name, open_port in ports.items():
        counts, right = open_port(lambda listener: _attack(listener, given.strangers))
        found[name] = {**counts, "work of the port right": right}
    return found


def namespaces(given: argparse.Namespace) -> dict[str, Any]:
    """Run the test of two process namespaces with many long messages."""
    test = "tests/cluster/test_namespaces.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:xdist", "-m", "cluster", test],
        env={**os.environ, "CALDERA_MESSAGES": str(given.messages), "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    passed = "1 passed" in done.stdout and done.returncode == 0
    return {"messages": given.messages, "wrong": 0 if passed else done.stdout[-2000:]}


PARTS = {"torchrun": torchrun, "strangers": strangers, "namespaces": namespaces}


def main() -> None:
    """Run the requested parts."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", default=list(PARTS), choices=[*PARTS, []])
    options.add_argument("--torchrun", default="torchrun")
    options.add_argument("--times", type=int, default=100)
    options.add_argument("--strangers", type=int, default=1000)
    options.add_argument("--messages", type=int, default=1000)
    options.add_argument("--kept", type=Path, help="file of results, to which these are added")
    given = options.parse_args()
    for part in given.parts:
        line = json.dumps({"on": part, **PARTS[part](given)})
        print(line, flush=True)
        if given.kept is not None:
            with given.kept.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
