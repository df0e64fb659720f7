"""Inspection of a plan: timed runs, the explanation of its steps, timelines and traces.

A timeline has calls, copies and memory in use. Recording costs some microseconds a call. On a
device, calls are launched separately here, while a captured plan replays them as a whole.

The export is Chrome's "Trace Event Format", for Perfetto (ui.perfetto.dev) and Chrome
(chrome://tracing): JSON with complete events ("X"), counters ("C") and names ("M"); times in
microseconds.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.file_access import output_file
from caldera.base.file_cache import write_file
from caldera.compiler.plan.arena import aligned
from caldera.compiler.plan.binding import PlanBinding
from caldera.compiler.plan.explain import Explanation, StepRow, explained, fastest, shapes_text
from caldera.compiler.plan.schedule import StepSchedule
from caldera.compiler.plan.timing import TimedRun, cpu_peaks_at_least, seconds_of_calls
from caldera.core.memory import Device, recorded
from caldera.errors import ConfigError
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import NativeRunner, PartSpan, joined_runs, traced
from caldera.kernels.table import Runner

if TYPE_CHECKING:
    from caldera.compiler.plan.plan import Plan


HOST, DEVICE = "host", "device"
CALLS, COPIES = "calls", "copies"


@dataclass(frozen=True)
class TimelineSlice:
    """A timed event. `step` is the number of the plan's step, if it is one.

    `part` is (index, count) where threads share a step.
    """

    what: str
    place: str
    track: str
    begin: float
    end: float
    step: int | None = None
    part: tuple[int, int] | None = None


@dataclass(frozen=True)
class Level:
    """Bytes in use from a given time on."""

    what: str
    time: float
    nbytes: int


@dataclass
class Timeline:
    """Recorded events of a run, with times in seconds since its start."""

    slices: list[TimelineSlice] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)


def record_timeline(timed: TimedRun, schedule: StepSchedule, device: Device, runs: int) -> Timeline:
    """Run the calls a few times, and record the time of each call."""
    run = _on_host if device.is_host else _on_stream
    found = Timeline()
    with single_threaded_blas, np.errstate(all="ignore"):
        # The first run compiles and warms up.
        timed.restore()
        run(timed, device, Timeline(), 0.0)
        start = perf_counter()
        for number in range(runs):
            timed.restore()
            one = Timeline()
            begin = perf_counter() - start
            run(timed, device, one, start)
            end = max((each.end for each in one.slices), default=begin)
            found.slices.append(TimelineSlice(f"run {number + 1}", HOST, "runs", begin, end))
            found.slices += one.slices
            found.levels += _levels(one, schedule, device, begin, end)
    return found


def arena_in_use(schedule: StepSchedule) -> list[int]:
    """Return bytes of the arena that hold something during each step."""
    used = np.zeros(len(schedule.steps) + 1, np.int64)
    for buffer in schedule.buffers:
        if buffer.place == "arena" and buffer.shared is None:
            used[buffer.first] += aligned(buffer.spec.nbytes)
            used[buffer.last + 1] -= aligned(buffer.spec.nbytes)
    return [int(nbytes) for nbytes in np.cumsum(used)[:-1]]


def _levels(
    run: Timeline, schedule: StepSchedule, device: Device, begin: float, end: float
) -> Iterator[Level]:
    in_use = arena_in_use(schedule)
    yield Level(f"pool of {device.name}", begin, sum(pool.in_use for pool in device.pools))
    for each in run.slices:
        if each.step is not None and each.part is None:
            yield Level("arena", each.begin, in_use[each.step])
    yield Level("arena", end, 0)


# --- on the CPU


def _on_host(timed: TimedRun, device: Device, seen: Timeline, start: float) -> None:
    begin = perf_counter()
    steps = timed.prepare()
    seen.slices.append(_slice("feed", begin, start))
    pause = perf_counter()
    notes: list[tuple[int, PartSpan]] = []
    # Joined as in earnest: the workers stay from one call to the next.
    calls = joined_runs(
        [_recorded_runner(runner, step, notes) for step, runner in enumerate(steps)]
    )
    # Getting ready to look is no part of the run.
    start += perf_counter() - pause
    for call in calls:
        call()
    seen.slices += _part_slices(notes, start)


def _recorded_runner(runner: Runner, step: int, notes: list[tuple[int, PartSpan]]) -> Runner:
    """Return the same work with recording of each part, on whichever thread runs it."""
    if isinstance(runner, NativeRunner):
        return traced(runner, lambda part: notes.append((step, part)))

    def run() -> None:
        begin = perf_counter()
        runner()
        notes.append((step, PartSpan(threading.get_ident(), 0, 1, begin, perf_counter())))

    return run


def _part_slices(notes: Sequence[tuple[int, PartSpan]], start: float) -> Iterator[TimelineSlice]:
    """A slice for each step, from its first part to its last, and its parts on their threads."""
    workers = {threading.get_ident(): CALLS}
    for step, group in groupby(sorted(notes, key=lambda note: note[0]), key=lambda note: note[0]):
        parts = [part for _, part in group]
        begin, end = min(each.begin for each in parts), max(each.end for each in parts)
        yield TimelineSlice("call", HOST, CALLS, begin - start, end - start, step)
        # One part is the step itself.
        for each in parts if len(parts) > 1 else ():
            track = workers.setdefault(each.thread, f"worker {len(workers)}")
            yield TimelineSlice(
                "part",
                HOST,
                track,
                each.begin - start,
                each.end - start,
                step,
                (each.part, each.parts),
            )


def _slice(what: str, begin: float, start: float) -> TimelineSlice:
    return TimelineSlice(what, HOST, CALLS, begin - start, perf_counter() - start)


# --- on a device


def _on_stream(timed: TimedRun, device: Device, seen: Timeline, start: float) -> None:
    stream = device.stream
    device.copy_stream.synchronize()
    with recorded(device) as trace:
        # The trace counts from the start of the stream's work, approximately the present.
        stream.synchronize()
        origin = perf_counter()
        calls = timed.prepare()
        seen.slices.append(_slice("feed", origin, start))
        begin = perf_counter()
        for step, call in enumerate(calls):
            with trace.around(str(step), stream):
                stream.launch(call)
        seen.slices.append(_slice("launch", begin, start))
        for span in trace.spans():
            step_number = int(span.what) if span.what.isdecimal() else None
            seen.slices.append(
                TimelineSlice(
                    span.what if step_number is None else "call",
                    DEVICE,
                    COPIES if span.stream == "copies" else CALLS,
                    origin - start + span.begin,
                    origin - start + span.end,
                    step_number,
                )
            )


_PROCESSES = {HOST: 1, DEVICE: 2}


def write_trace(path: str | PathLike[str], seen: Timeline, plan: Explanation) -> Path:
    """Write the timeline of a plan to a .json file; its path."""
    hint = "open it at ui.perfetto.dev, or in chrome://tracing"
    target = output_file(path, ".json", "trace", hint)
    rows = [row for row in plan.rows if row.step is not None]
    content = {
        "traceEvents": list(_events(seen, rows, plan.device)),
        "displayTimeUnit": "ms",
        "otherData": {
            "device": plan.device,
            "steps": len(rows),
            "arena bytes": plan.arena_bytes,
            "FLOPs": plan.flops,
        },
    }
    write_file(target, json.dumps(content))
    return target


def _events(seen: Timeline, rows: Sequence[StepRow], device: str) -> Iterator[dict[str, Any]]:
    tracks: dict[tuple[str, str], int] = {}
    for each in seen.slices:
        tracks.setdefault((each.place, each.track), len(tracks) + 1)
    for place in dict.fromkeys(place for place, _ in tracks):
        name = "host" if place == HOST and device != "cpu" else device
        yield _name("process_name", place, 0, name)
    for (place, track), number in tracks.items():
        yield _name("thread_name", place, number, track)
    for each in seen.slices:
        yield {
            "ph": "X",
            "name": each.what if each.step is None else rows[each.step].op,
            "cat": _category(each, rows),
            "pid": _PROCESSES[each.place],
            "tid": tracks[each.place, each.track],
            "ts": each.begin * 1e6,
            "dur": max(0.0, each.end - each.begin) * 1e6,
            "args": _facts(each, rows),
        }
    last = {place for place, _ in tracks}
    pid = _PROCESSES[DEVICE if DEVICE in last else HOST]
    for level in seen.levels:
        args = {"bytes": level.nbytes}
        yield {"ph": "C", "name": level.what, "pid": pid, "ts": level.time * 1e6, "args": args}


def _name(kind: str, place: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": _PROCESSES[place], "tid": track, "args": {"name": name}}


def _category(each: TimelineSlice, rows: Sequence[StepRow]) -> str:
    if each.step is None:
        return "copy" if each.what in ("feed", "h2d", "d2h", "d2d") else "run"
    if each.part is not None:
        return "part"
    return "copy" if rows[each.step].op == "copy" else "kernel"


def _facts(each: TimelineSlice, rows: Sequence[StepRow]) -> dict[str, Any]:
    if each.step is None:
        return {}
    if each.part is not None:
        part, parts = each.part
        return {"step": each.step, "part": part, "parts": parts}
    row = rows[each.step]
    facts = {
        "step": each.step,
        "kernel": row.kernel,
        "shapes": shapes_text(row),
        "bytes": row.nbytes,
        "FLOPs": row.flops,
    }
    return facts | ({"writes": row.target} if row.target else {})


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
        return explained(plan)
    with timed as run:
        seconds = seconds_of_calls(run, plan.device)
    peaks = None
    if plan.device.kernels == "cpu":
        peaks = cpu_peaks_at_least(fastest(plan.schedule, seconds))
    return explained(plan, seconds, peaks)


def trace(
    plan: Plan, timed: AbstractContextManager[TimedRun], path: str | PathLike[str], runs: int
) -> Path:
    """Write the timeline of several runs to a .json file, and return its path."""
    if runs < 1:
        raise ConfigError.build("trace", expected="runs >= 1", got=f"{runs}")
    with timed as run:
        timeline = record_timeline(run, plan.schedule, plan.device, runs)
    return write_trace(path, timeline, explained(plan))
