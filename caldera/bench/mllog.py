"""Trainings as MLPerf's log lines (`:::MLLOG`), as its compliance checker reads them.

A log is one training: the open division, whose rules leave the network free. Its benchmark must be
one of MLPerf's names; what was really trained stands in the metadata, and that it is no submission.
"""

from __future__ import annotations

import json
from typing import Any

from caldera.bench.results import Report, ResultEntry
from caldera.errors import ConfigError

RULESET = "4.0.0"
"""The rules that the lines are written for: mlperf_logging.compliance_checker --ruleset 4.0.0."""
_BENCHMARK = "resnet"
_POINT, _START, _STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"


def log_text(report: Report) -> str:
    """The first training of Caldera's in a report, as lines.

    >>> log_text(Report({}, {}, {}))
    Traceback (most recent call last):
    caldera.errors.ConfigError: --mllog: expected a training to an accuracy, got none;
    caldera bench training has some
    """
    entries = [each for each in report.entries if each.trainings]
    ours = [each for each in entries if each.framework == "caldera"] or entries
    if not ours:
        raise ConfigError.build(
            "--mllog",
            expected="a training to an accuracy",
            got="none",
            hint="caldera bench training has some",
        )
    return "\n".join(training_lines(ours[0], 0, report.machine)) + "\n"


def training_lines(entry: ResultEntry, number: int, machine: dict[str, Any]) -> list[str]:
    """The lines of one training of an entry."""
    training = entry.trainings[number]
    start = int(training["began"] * 1e3)
    cold = int((entry.first_cold_s or 0.0) * 1e3)
    log = _Log(start - cold - 2)
    about = {"network": entry.case, "framework": entry.label, "submission": False}
    log.add("cache_clear", True)
    log.add("init_start", None, kind=_START)
    for key, value in {
        "submission_org": "none",
        "submission_platform": machine.get("cpu", "unknown"),
        "submission_division": "open",
        "submission_status": "research",
        "submission_benchmark": _BENCHMARK,
    }.items():
        log.add(key, value, about if key == "submission_benchmark" else {})
    log.add("seed", entry.seeds[number])
    log.add("global_batch_size", entry.batch)
    log.add("train_samples", training["samples"])
    log.add("eval_samples", training["test samples"])
    log.at(start - 1)
    log.add("init_stop", None, kind=_STOP)
    log.at(start)
    log.add("run_start", None, kind=_START)
    curve = training["metrics"]["curve"]["value"]
    for epoch, (seconds, accuracy) in enumerate(zip(curve[::2], curve[1::2], strict=True), 1):
        place = {"epoch_num": epoch}
        log.add("epoch_start", None, place, _START)
        log.at(start + int(seconds * 1e3))
        log.add("epoch_stop", None, place, _STOP)
        log.add("eval_start", None, place, _START)
        log.add("eval_accuracy", accuracy, place)
        log.add("eval_stop", None, place, _STOP)
    reached = training["accuracy"] >= (entry.target or 0.0)
    log.add("run_stop", None, {"status": "success" if reached else "aborted"}, _STOP)
    return log.lines


class _Log:
    """Lines with a clock of their own."""

    def __init__(self, now: int) -> None:
        self.lines: list[str] = []
        self._now = now

    def at(self, now: int) -> None:
        self._now = max(self._now, now)

    def add(
        self, key: str, value: Any, metadata: dict[str, Any] | None = None, kind: str = _POINT
    ) -> None:
        line = {
            "namespace": "",
            "time_ms": self._now,
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata or {},
        }
        self.lines.append(f":::MLLOG {json.dumps(line)}")
