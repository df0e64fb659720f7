"""Places on this machine: copies of this process, and children of a supervisor.

A copy has the user's functions and data as they are. Children of a supervisor are copies of
a process that has loaded Caldera and has no threads and no GPU.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from caldera.base.children import (
    END_S,
    ForkedChild,
    PipedChild,
    child_environment,
    end_child,
    exit_text,
    fork_child,
    python_module,
    thread_variables,
)
from caldera.base.machine import usable_cores
from caldera.comm.places.place import Place


class ForkPlace(Place):
    """Copies of this process; `in_child` is called first in each copy.

    >>> place = ForkPlace()
    >>> numbers = place.start(2, lambda number, status: os._exit(status + number), [3])
    >>> [place.how(number, 60.0) for number in numbers]
    ['ended with status 3', 'ended with status 4']
    """

    name = "processes"

    def __init__(self, in_child: Callable[[], None] = lambda: None) -> None:
        self._in_child = in_child
        self._children: dict[int, ForkedChild] = {}
        self._started = 0

    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        numbers = list(range(self._started, self._started + count))
        self._started += count
        for number in numbers:
            self._children[number] = fork_child(partial(self._run, function, number, arguments))
        return numbers

    def lost(self) -> Mapping[int, str]:
        found = {number: child.poll() for number, child in self._children.items()}
        return {number: exit_text(code) for number, code in found.items() if code is not None}

    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        until = time.monotonic() + seconds
        for each in list(self._children) if number is None else [number]:
            end_child(self._children.pop(each), until - time.monotonic())

    def process(self, number: int) -> int:
        """Return the process number of a worker."""
        return self._children[number].pid

    def _run(self, function: Callable[..., object], number: int, arguments: Sequence[Any]) -> None:
        self._in_child()
        function(number, *arguments)


class SupervisedPlace(Place):
    """Children of a supervisor, which has imported `module`; they share the cores.

    The supervisor kills its children when this process ends, and reports how they end.
    """

    name = "processes of this machine"

    def __init__(self, module: str, workers: int) -> None:
        self._pids: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._workers = 0
        self._news = threading.Condition()
        self._silent = False
        threads = thread_variables(max(1, usable_cores() // workers))
        set_already = {name: os.environ[name] for name in threads if os.environ.get(name)}
        self._supervisor = PipedChild(
            [*python_module("caldera.comm.places.supervisor"), module],
            child_environment({**os.environ, **threads, **set_already}),
            # Ctrl-C is for this process, which notifies the workers.
            process_group=0,
        )
        self._reader = threading.Thread(target=self._read, name="supervisor", daemon=True)
        self._reader.start()

    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        order = {"function": function.__name__, "workers": count, "arguments": arguments}
        self._workers = count
        # Through a pipe: arguments and environments of processes can be read by others.
        with suppress(BrokenPipeError):
            self._supervisor.send(json.dumps(order).encode() + b"\n")
        return list(range(count))

    def lost(self) -> Mapping[int, str]:
        with self._news:
            found = {worker: exit_text(code) for worker, code in self._ended.items()}
        if not found and (code := self._supervisor.poll()) is not None:
            how = f"ended with its supervisor (process {self._supervisor.pid}), which "
            found = dict.fromkeys(range(self._workers), how + exit_text(code))
        return found

    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        self._wait_until(lambda: len(self._ended) == self._workers, seconds)
        self._supervisor.end(END_S)
        self._reader.join(END_S)

    def process(self, number: int) -> int:
        """Return the process number of a worker; 0 if it has not started."""
        self._wait_until(lambda: number in self._pids, END_S)
        return self._pids.get(number, 0)

    def _read(self) -> None:
        """Read the supervisor's reports, on a separate thread."""
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as lines:
            for line in lines:
                what, worker, number = line.decode().split()
                with self._news:
                    (self._pids if what == "started" else self._ended)[int(worker)] = int(number)
                    self._news.notify_all()
        with self._news:
            self._silent = True
            self._news.notify_all()

    def _wait_until(self, happened: Callable[[], bool], seconds: float) -> None:
        """Wait for reports, unless there will be none."""
        with self._news:
            self._news.wait_for(lambda: self._silent or happened(), seconds)
