"""The process that starts workers, and sees to it that none is left: `python -m` runs it.

It has Caldera loaded and no threads, and forks a worker for each rank. It tells its parent when one
of them ends; when the parent closes the pipe, or is gone, it kills those that are still there.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from contextlib import suppress
from functools import partial

from caldera.base.children import ForkedChild, fork_child
from caldera.comm.endpoint import Endpoint
from caldera.comm.local_sockets import join_links
from caldera.dmath.workers import RankWorker, SocketTeam

START_S = 60.0
POLL_S = 1.0


def main() -> None:
    """Start workers as the parent asks, and stay until all have ended or the parent has."""
    parent = os.getppid()
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    reports = os.dup(1)
    # What workers print goes to the parent's errors: the pipe is for reports.
    os.dup2(2, 1)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    # Pages that the collector never writes to stay shared.
    gc.freeze()
    workers: dict[int, ForkedChild] = {}

    def start(worker: int) -> None:
        for file in (reports, woken, wake):
            os.close(file)
        _work(worker + 1, order)

    for worker in range(order["workers"]):
        workers[worker] = fork_child(partial(start, worker))
        os.write(reports, f"started {worker} {workers[worker].pid}\n".encode())
    _watch(workers, woken, reports, parent)


def _watch(workers: dict[int, ForkedChild], woken: int, reports: int, parent: int) -> None:
    while True:
        # First: a worker that has ended before sends no further signal.
        _report_ended(workers, reports)
        ready, _, _ = select.select([0, woken], [], [], POLL_S)
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        # A process that the parent has forked may hold the pipe open after the parent's end.
        if (0 in ready and not os.read(0, 4096)) or os.getppid() != parent:
            break
    for child in workers.values():
        child.kill()
    for child in workers.values():
        child.wait()
    _report_ended(workers, reports)


def _report_ended(workers: dict[int, ForkedChild], reports: int) -> None:
    for worker, child in list(workers.items()):
        status = child.poll()
        if status is not None:
            del workers[worker]
            with suppress(OSError):
                os.write(reports, f"ended {worker} {status}\n".encode())


def _work(rank: int, order: dict[str, int | str]) -> None:
    """Serve as one worker until the master ends."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The master receives it, and tells the workers what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    size = int(order["workers"]) + 1
    links = join_links(bytes.fromhex(str(order["key"])), int(order["port"]), rank, size, START_S)
    endpoint = Endpoint(rank, links, lost=_end_without_master)
    RankWorker(SocketTeam(endpoint)).serve()
    endpoint.close()


def _end_without_master(process: int) -> None:
    if process == 0:
        os._exit(1)


if __name__ == "__main__":
    main()
