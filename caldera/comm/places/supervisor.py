"""The process that forks workers and leaves none behind: `python -m` runs it.

It has imported the module of the workers' function and has no threads. It reports to its parent
when a worker ends. When the parent closes the pipe or ends, it kills the remaining workers.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from caldera.base.children import ForkedChild, fork_child

POLL_S = 1.0


def main() -> None:
    """Start the requested workers; return when all workers or the parent have ended."""
    parent = os.getppid()
    # While it loads, the parent prepares the rest of the order.
    module = import_module(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    reports = os.dup(1)
    # Workers print to the parent's stderr: the pipe is reserved for reports.
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
        _work(getattr(module, order["function"]), worker, order["arguments"])

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


def _work(function: Callable[..., object], worker: int, arguments: Sequence[Any]) -> None:
    """Call the workers' function, in the child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The parent receives it and notifies the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    function(worker, *arguments)


if __name__ == "__main__":
    main()
