"""A contestant's place in a run: its caches, and the process that it has or has not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from caldera.bench.contestants import Contestant
from caldera.bench.process import WorkerProcess, hello, worker_environment
from caldera.bench.protocol import CHECK, HELLO, MEASURE, PREPARE, TRAIN, WorkerError

LIMITS = {HELLO: 180.0, PREPARE: 600.0, MEASURE: 900.0, CHECK: 1800.0, TRAIN: 86400.0}
"""Seconds that a worker may take to answer."""


class WorkerHandle:
    """Asks a contestant's process, which is started when it is needed.

    `limit` is how many seconds it may take for all answers together (training on real data, which
    takes as long as was asked for, does not count). `data` is a folder with its batches.
    """

    def __init__(
        self,
        contestant: Contestant,
        caches: Path,
        threads: int,
        *,
        limit: float | None = None,
        data: Path | None = None,
    ) -> None:
        self.contestant = contestant
        self.import_s: float | None = None
        self.versions: dict[str, str] = {}
        self._caches = caches
        self._threads = threads
        self._limit = limit
        self._taken = 0.0
        self._options = dict(contestant.options)
        if data is not None:
            self._options["data"] = str(data)
        self._process: WorkerProcess | None = None

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The reply to a request."""
        if self._process is None:
            self._process = self._started()
            greeting = hello(self.contestant.framework, self._options, self._threads)
            reply = self._within_limit(greeting)
            self.import_s, self.versions = reply["import s"], reply["versions"]
        return self._within_limit({"do": do, **more})

    def _within_limit(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        do = request["do"]
        seconds = LIMITS[do]
        if self._limit is None or do == TRAIN:
            return self._process.ask(request, seconds)
        left = self._limit - self._taken
        if left <= 0:
            raise WorkerError.build(
                self.contestant.label, expected=f"everything within {self._limit:.0f} s",
                got=f"{self._taken:.0f} s before it could {do}",
                hint="give it more with --limit",
            )  # fmt: skip
        start = time.monotonic()
        try:
            return self._process.ask(request, min(seconds, left))
        finally:
            self._taken += time.monotonic() - start

    def _started(self) -> WorkerProcess:
        self._caches.mkdir(parents=True, exist_ok=True)
        device = self._options.get("device", "cpu")
        environment = worker_environment(self._caches, self._threads, device)
        return WorkerProcess(self.contestant.label, environment)

    def close(self) -> None:
        """End the process; the next request starts a new one with the same caches."""
        if self._process is not None:
            self._process.close()
            self._process = None
