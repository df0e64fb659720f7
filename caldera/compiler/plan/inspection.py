"""Inspection of a plan: timed runs, the explanation of its steps, and traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldera.compiler.plan.binding import PlanBinding
from caldera.compiler.plan.explain import Explanation, explained, fastest
from caldera.compiler.plan.timeline import watch, write_trace
from caldera.compiler.plan.timing import Peaks, TimedRun, cpu_peaks_at_least, seconds_of_calls
from caldera.errors import ConfigError

if TYPE_CHECKING:
    from caldera.compiler.plan.plan import Plan


@contextmanager
def timed_run(binding: PlanBinding, feeds: Mapping[str, Any] | None) -> Iterator[TimedRun]:
    """Context of runs that leave the variables unchanged; without `feeds` inputs keep theirs."""
    given = feeds
    if given is None:
        # Copies: they are fed again, perhaps to the buffer they are read from.
        given = {name: array.copy() for name, array in binding.operands.inputs.fed().items()}
    before = [(symbol.value, symbol.value.copy()) for symbol in binding.operands.updated]

    def restore() -> None:
        for tensor, old in before:
            tensor[...] = old.numpy()
            if not binding.device.is_host:
                # The copy to the device is no part of a run.
                tensor.memory.on_device()

    try:
        yield TimedRun(restore, lambda: binding.prepare(given).steps)
    finally:
        restore()
        binding.release_results()


def explain(plan: Plan, timed: AbstractContextManager[TimedRun] | None) -> Explanation:
    """Return the table of a plan's steps, with the times of `timed` if it is given."""
    if timed is None:
        return _explained(plan)
    with timed as run:
        seconds = seconds_of_calls(run, plan.device)
    peaks = None
    if plan.device.kernels == "cpu":
        peaks = cpu_peaks_at_least(fastest(plan.schedule, seconds))
    return _explained(plan, seconds, peaks)


def trace(
    plan: Plan, timed: AbstractContextManager[TimedRun], path: str | PathLike[str], runs: int
) -> Path:
    """Write the timeline of several runs to a .json file, and return its path."""
    if runs < 1:
        raise ConfigError.build("trace", expected="runs >= 1", got=f"{runs}")
    with timed as run:
        timeline = watch(run, plan.schedule, plan.device, runs)
    return write_trace(path, timeline, _explained(plan))


def _explained(
    plan: Plan, seconds: Sequence[float] | None = None, peaks: Peaks | None = None
) -> Explanation:
    return explained(plan.schedule, plan.original, plan.optimised, plan.device, seconds, peaks)
