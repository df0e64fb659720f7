"""A process that computes with one framework in one setting, as it is told through its pipes.

    python -m caldera.bench.worker

Requests come from the standard input and replies go to what was the standard output; whatever a
library prints goes to the standard error. The process ends with its input, or when told.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from caldera.bench import memory
from caldera.bench.checks import checked, trained_accuracy
from caldera.bench.frameworks import FRAMEWORKS, Framework, Task
from caldera.bench.protocol import CHECK, END, HELLO, MEASURE, PREPARE, TRAIN, from_line, to_line
from caldera.bench.timing import first_call, timed
from caldera.bench.work import WORK, TrainingCase
from caldera.errors import CalderaError


class Worker:
    """Answers requests; the first one says which framework to be."""

    def __init__(self) -> None:
        self._framework: Framework | None = None
        self._task: Task | None = None
        self._base = 0

    @property
    def framework(self) -> Framework:
        """The framework of this process."""
        if self._framework is None:
            raise CalderaError.build("bench worker", expected=HELLO, got="another request first")
        return self._framework

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says; what came of it."""
        actions = {
            HELLO: self._hello,
            PREPARE: self._prepare,
            MEASURE: self._measure,
            CHECK: self._check,
            TRAIN: self._train,
        }
        return actions[request["do"]](request)

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        use_cores(request["threads"])
        start = time.perf_counter()
        self._framework = FRAMEWORKS[request["framework"]](request["options"], request["threads"])
        seconds = time.perf_counter() - start
        self._base = memory.resident()
        return {"versions": self._framework.versions(), "import s": seconds, "base": self._base}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        self._task = None
        memory.reset_peak()
        start = time.perf_counter()
        self._task = self.framework.task(_case(request))
        built = time.perf_counter() - start
        if not isinstance(self.framework, FRAMEWORKS["caldera"]):
            memory.reset_peak()
        return {"build s": built, "first s": first_call(self._task)}

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._task is None:
            raise CalderaError.build("bench worker", expected=PREPARE, got=f"{MEASURE} before it")
        times = timed(self._task, request["seconds"], request["least"])
        peak = memory.peak() - self._task.held_for_others
        return {"times": times, "peak": peak, "growth": max(0, peak - self._base)}

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        folder = Path(request["folder"])
        return checked(
            self.framework, _case(request), folder, quick=request["quick"], truth=request["truth"]
        )

    def _train(self, request: dict[str, Any]) -> dict[str, Any]:
        case = _case(request)
        if not isinstance(case, TrainingCase):
            raise CalderaError.build("bench worker", expected="a network", got=case.name)
        return {"accuracy": trained_accuracy(self.framework, case, request["epochs"])}


def use_cores(count: int) -> None:
    """Let this process run on so many cores: all frameworks then see the same machine."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until there are no more; an error is an answer as well."""
    worker = Worker()
    for line in requests:
        request = from_line(line)
        if request["do"] == END:
            return
        try:
            reply = worker.answer(request)
        except Exception as error:
            last = traceback.format_exception_only(error)[-1]
            reply = {"error": " ".join(last.split()), "traceback": traceback.format_exc()}
        replies.write(to_line(reply))
        replies.flush()


def main() -> None:
    """Serve on the pipes this process was started with."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.stdin.buffer, replies)


def _case(request: dict[str, Any]) -> Any:
    return WORK[request["work"]].case(request["case"])


if __name__ == "__main__":
    main()
