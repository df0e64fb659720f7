"""Fused steps, and selection of the fastest of several captured forms of a step.

Consecutive or similar calls are joined, and on devices that support it all calls of a small
network's step become one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np

from caldera.compiler.plan.order import assign_streams
from caldera.compiler.plan.schedule import Lookup, StepSchedule
from caldera.core.memory import (
    Block,
    CapturedGraph,
    Device,
    Stream,
    TimingEvent,
    address_of,
)
from caldera.core.memory.capture import capture
from caldera.core.tensor import Shape, Tensor
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import joined_runs
from caldera.kernels.table import (
    LAUNCH_GROUPERS,
    STEP_FUSERS,
    Array,
    Call,
    Runner,
    StepPiece,
    Steps,
)

MOST_BYTES = 64 << 20
"""Maximum bytes of values between the calls, each with separate memory here."""


def grouped(family: str, bound: Sequence[tuple[Call, Runner]]) -> list[StepPiece]:
    """Return runners of these calls, combined into the fewest pieces the device family supports."""
    if family in LAUNCH_GROUPERS:
        return LAUNCH_GROUPERS[family](bound)
    runners = joined_runs(runner for _, runner in bound)
    return [StepPiece(runner, frozenset({n - 1} if n else ())) for n, runner in enumerate(runners)]


def execute(pieces: Sequence[StepPiece]) -> None:
    """Run the pieces in order."""
    # Infinities and nans are values here, not news.
    with single_threaded_blas, np.errstate(all="ignore"):
        for piece in pieces:
            piece.run()


class FusedStep(CapturedGraph):
    """A step that is one launch, or a part of a launch of many."""

    def __init__(self, stream: Stream, steps: Steps, kept: object) -> None:
        self._stream = stream
        self._steps = cache(steps)
        self._kept = kept
        # Machine code is made or found now.
        self._steps(1)

    def replay(self) -> None:
        self._stream.repeat(self._times)

    def _times(self, count: int) -> Runner:
        """Return the runner of `count` steps.

        As a bound method, it keeps the memory of a deferred launch alive.
        """
        return self._steps(count)


def can_fuse_step(device: Device, schedule: StepSchedule) -> bool:
    """Return True if fusion is possible: the device supports it, and the values fit."""
    return device.kernels in STEP_FUSERS and 0 < schedule.naive_bytes <= MOST_BYTES


def fuse_step(
    device: Device, schedule: StepSchedule, lookup: Callable[[Block], Lookup], communicator: Any
) -> FusedStep | None:
    """Return a schedule's steps as one launch, without reuse of memory; None if not possible.

    `lookup(block)` finds arrays, with the arena's arrays in that block.
    """
    block = device.allocate(schedule.arena_bytes, owner="joined steps")
    kept: list[Tensor] = []

    def fresh(shape: Shape, dtype: str) -> Array:
        kept.append(Tensor(shape, dtype=dtype, device=device, name="joined steps"))
        return kept[-1].device_array()

    def is_scratch(array: np.ndarray[Any, np.dtype[Any]]) -> bool:
        return block.address <= address_of(array) < block.address + block.nbytes

    calls = [(kernel.op, call) for kernel, call in schedule.calls(lookup(block), communicator)]
    steps = STEP_FUSERS[device.kernels](calls, fresh, is_scratch)
    return None if steps is None else FusedStep(device.stream, steps, (block, kept, calls))


ROUNDS = 6
"""Number of timings per form; the first timing is ignored."""
HYSTERESIS = 0.02
"""Minimum relative gain of another form over the first one; smaller gains are noise."""


class AutotunedGraph(CapturedGraph):
    """Forms of a step that differ only in speed.

    Replays alternate between the forms until each form has been timed, without waiting for results.
    All forms return bit-identical results, so the choice does not affect them, in deterministic
    runs either.
    """

    def __init__(self, stream: Stream, forms: Sequence[CapturedGraph]) -> None:
        self._stream = stream
        self._forms = list(forms)
        self._times: list[tuple[TimingEvent, TimingEvent]] = []

    @property
    def forms(self) -> list[CapturedGraph]:
        """Forms that are still candidates."""
        return self._forms

    def replay(self) -> None:
        if len(self._forms) > 1 and len(self._times) < ROUNDS * len(self._forms):
            turn = len(self._times) % len(self._forms)
            begin = self._stream.record_timing()
            self._forms[turn].replay()
            self._times.append((begin, self._stream.record_timing()))
            return
        if len(self._forms) > 1 and self._times[-1][1].done():
            self._decide()
        self._forms[0].replay()

    def _decide(self) -> None:
        count = len(self._forms)
        seconds = [
            median(end.since(begin) for begin, end in self._times[turn::count][1:])
            for turn in range(count)
        ]
        best = min(range(count), key=seconds.__getitem__)
        if seconds[best] > (1 - HYSTERESIS) * seconds[0]:
            best = 0
        # Drop the remaining forms, with their memory on the device.
        self._forms = [self._forms[best]]
        self._times = []


def captured(stream: Stream, pieces: Sequence[StepPiece]) -> CapturedGraph:
    """Capture the pieces in order, or on several streams where that proves to be faster."""
    graph = capture(stream, partial(stream.launch, partial(execute, pieces)))
    calls = assign_streams(pieces) if stream.has_side_streams else []
    if not any(each.stream for each in calls):
        return graph
    return AutotunedGraph(
        stream, [graph, capture(stream, partial(stream.launch_on_streams, calls))]
    )
