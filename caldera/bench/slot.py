"""A contestant's place in a run: its caches, and the process that it has or has not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caldera.bench.contestants import Contestant
from caldera.bench.process import WorkerProcess, hello, worker_environment
from caldera.bench.protocol import CHECK, HELLO, MEASURE, PREPARE, TRAIN

LIMITS = {HELLO: 180.0, PREPARE: 600.0, MEASURE: 900.0, CHECK: 1800.0, TRAIN: 86400.0}
"""Seconds that a worker may take to answer."""


class Slot:
    """Asks a contestant's process, which is started when it is needed."""

    def __init__(self, contestant: Contestant, caches: Path, threads: int) -> None:
        self.contestant = contestant
        self.import_s: float | None = None
        self._caches = caches
        self._threads = threads
        self._process: WorkerProcess | None = None

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The reply to a request."""
        if self._process is None:
            self._process = self._started()
            greeting = hello(self.contestant.framework, self.contestant.options, self._threads)
            self.import_s = self._process.ask(greeting, LIMITS[HELLO])["import s"]
        return self._process.ask({"do": do, **more}, LIMITS[do])

    def _started(self) -> WorkerProcess:
        self._caches.mkdir(parents=True, exist_ok=True)
        environment = worker_environment(self._caches, self._threads)
        return WorkerProcess(self.contestant.label, environment)

    def close(self) -> None:
        """End the process; the next request starts a new one with the same caches."""
        if self._process is not None:
            self._process.close()
            self._process = None
