"""The process that starts workers, and sees to it that none is left: `python -m` runs it.

It has Caldera loaded and no threads, and forks a worker for each rank. It tells its parent when one
of them ends; when the parent closes the pipe, or is gone, it kills those that are still there.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
from contextlib import suppress

from caldera.comm.endpoint import Endpoint
from caldera.comm.local_sockets import join_links
from caldera.dmath.workers import RankWorker, SocketTeam

START_S = 60.0
LOOKS_EVERY_S = 1.0
_PR_SET_PDEATHSIG = 1


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
    workers: dict[int, int] = {}
    for worker in range(order["workers"]):
        pid = os.fork()
        if pid == 0:
            for file in (reports, woken, wake):
                os.close(file)
            _work(worker + 1, order)
        workers[pid] = worker
        os.write(reports, f"started {worker} {pid}\n".encode())
    _watch(workers, woken, reports, parent)


def _watch(workers: dict[int, int], woken: int, reports: int, parent: int) -> None:
    while True:
        # First: one that has ended before is not asked for again.
        _report_ended(workers, reports)
        ready, _, _ = select.select([0, woken], [], [], LOOKS_EVERY_S)
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        # A process that the parent has forked may hold the pipe open after the parent's end.
        if (0 in ready and not os.read(0, 4096)) or os.getppid() != parent:
            break
    for pid in workers:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while workers:
        _report_ended(workers, reports, wait=True)


def _report_ended(workers: dict[int, int], reports: int, *, wait: bool = False) -> None:
    while workers:
        pid, status = os.waitpid(-1, 0 if wait else os.WNOHANG)
        if pid == 0:
            return
        worker = workers.pop(pid, None)
        if worker is not None:
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                os.write(reports, f"ended {worker} {code}\n".encode())


def _work(rank: int, order: dict[str, int | str]) -> None:
    """A worker, from its birth to its end."""
    supervisor = os.getppid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The master is told, and says what is to be done.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    status = 1
    try:
        size = int(order["workers"]) + 1
        links = join_links(
            bytes.fromhex(str(order["key"])), int(order["port"]), rank, size, START_S
        )
        endpoint = Endpoint(rank, links, lost=_end_without_master)
        RankWorker(SocketTeam(endpoint)).serve()
        endpoint.close()
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not the end of the supervisor's program, whose memory this is a copy of.
        os._exit(status)


def _end_without_master(process: int) -> None:
    if process == 0:
        os._exit(1)


if __name__ == "__main__":
    main()
