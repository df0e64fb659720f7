"""A process that computes with one framework in one setting, controlled through its pipes.

    python -m caldera.bench.worker

Requests are read from standard input and replies are written to the original standard output;
output of libraries is redirected to standard error. The process ends when its input ends, or on
request.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from caldera.bench.comparison import checked, checked_on_card, trained_accuracy
from caldera.bench.frameworks import FRAMEWORKS, Framework, Task
from caldera.bench.frameworks.base import Trainer
from caldera.bench.levels.instrumentation import learned
from caldera.bench.timing import (
    CARD_SHORTEST,
    SHORTEST,
    Stopwatch,
    first_call,
    peak_memory,
    reset_peak_memory,
    resident_memory,
    timed,
)
from caldera.bench.worker_process import (
    CHECK,
    END,
    HELLO,
    LEARN,
    LOSSES,
    MEASURE,
    PREPARE,
    TRAIN,
    from_line,
    to_line,
)
from caldera.bench.workloads import WORKLOADS, Case, LearningCase, TrainingCase
from caldera.errors import CalderaError

STEPS_UNTIL_SETTLED = 2
"""Steps until memory use settles: in the first, some frameworks record steps to replay."""


class BenchWorker:
    """Answers requests; the first one selects the framework."""

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
        """Execute a request and return its reply."""
        actions = {
            HELLO: self._hello,
            PREPARE: self._prepare,
            MEASURE: self._measure,
            LOSSES: self._losses,
            CHECK: self._check,
            TRAIN: self._train,
            LEARN: self._learn,
        }
        return actions[request["do"]](request)

    def _hello(self, request: dict[str, Any]) -> dict[str, Any]:
        use_cores(request["threads"])
        watch = Stopwatch()
        self._framework = FRAMEWORKS[request["framework"]](request["options"], request["threads"])
        seconds = watch.wall
        self._base = resident_memory()
        return {"versions": self._framework.versions(), "import s": seconds, "base": self._base}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        self._task = None
        reset_peak_memory()
        watch = Stopwatch()
        self._task = self.framework.task(self._case(request))
        built = watch.wall
        if not isinstance(self.framework, FRAMEWORKS["caldera"]):
            reset_peak_memory()
        found = {"build s": built, "first s": first_call(self._task)}
        if self.framework.on_card:
            found["card peak"] = self._card_peak(self._task)
        return found

    def _card_peak(self, task: Task) -> int:
        """Return the peak GPU memory of a step after all kernels have been chosen."""
        self.framework.reset_card_peak()
        for _ in range(STEPS_UNTIL_SETTLED):
            first_call(task)
        return self.framework.card_peak()

    def _measure(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._task is None:
            raise CalderaError.build("bench worker", expected=PREPARE, got=f"{MEASURE} before it")
        shortest = CARD_SHORTEST if self.framework.on_card else SHORTEST
        times = timed(self._task, request["seconds"], request["least"], shortest=shortest)
        peak = peak_memory() - self._task.held_for_others
        return {
            "times": times.wall,
            "cpu": times.cpu,
            "lost": times.lost,
            "peak": peak,
            "growth": max(0, peak - self._base),
        }

    def _losses(self, request: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(self._task, Trainer):
            raise CalderaError.build("bench worker", expected="a network", got=f"{self._task}")
        return {"losses": self._task.losses(request["steps"])}

    def _check(self, request: dict[str, Any]) -> dict[str, Any]:
        folder, case = Path(request["folder"]), self._case(request)
        quick, truth = request["quick"], request["truth"]
        if not self.framework.on_card or not isinstance(case, TrainingCase):
            return checked(self.framework, case, folder, quick=quick, truth=truth)
        if self._task is None:
            raise CalderaError.build("bench worker", expected=PREPARE, got=f"{CHECK} before it")
        return checked_on_card(
            self.framework,
            self._task,
            case,
            folder,
            quick=quick,
            truth=truth,
            float64=request["float64"],
        )

    def _train(self, request: dict[str, Any]) -> dict[str, Any]:
        case = self._case(request)
        if not isinstance(case, TrainingCase):
            raise CalderaError.build("bench worker", expected="a network", got=case.name)
        return {"accuracy": trained_accuracy(self.framework, case, request["epochs"])}

    def _learn(self, request: dict[str, Any]) -> dict[str, Any]:
        case = self._case(request)
        if not isinstance(case, LearningCase):
            raise CalderaError.build("bench worker", expected="a training", got=case.name)
        return learned(self.framework, case, request["seed"], request["epochs"])

    def _case(self, request: dict[str, Any]) -> Case:
        case = WORKLOADS[request["work"]].case(request["case"])
        if not isinstance(case, TrainingCase):
            return case
        case = case.on(self.framework.device)
        return replace(case, batch=request.get("batch") or case.batch)


def use_cores(count: int) -> None:
    """Restrict this process to `count` cores, so that all frameworks see the same machine."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until there are no more; an error is an answer as well."""
    worker = BenchWorker()
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


if __name__ == "__main__":
    main()
