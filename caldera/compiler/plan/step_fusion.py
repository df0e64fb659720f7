"""Calls that become one: those that follow each other or are alike, and on devices that can do that
all calls of a small network's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from caldera.compiler.plan.schedule import Lookup, Schedule
from caldera.core.memory import Block, Device, Stream
from caldera.core.memory.device_array import address_of
from caldera.core.memory.interface import CapturedGraph
from caldera.core.tensor import Tensor
from caldera.core.tensor.shape import Shape
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.native.codegen.program import joined_runs
from caldera.kernels.step_launch import LAUNCH_GROUPERS, STEP_FUSERS, Piece, Steps
from caldera.kernels.table import Array, Call, Runner

MOST_BYTES = 64 << 20
"""Of values between the calls, each of which has memory of its own here."""


def grouped(family: str, bound: Sequence[tuple[Call, Runner]]) -> list[Piece]:
    """What runs these calls, in as few pieces as a family of devices knows how to make."""
    if family in LAUNCH_GROUPERS:
        return LAUNCH_GROUPERS[family](bound)
    runners = joined_runs(runner for _, runner in bound)
    return [Piece(runner, frozenset({n - 1} if n else ())) for n, runner in enumerate(runners)]


def execute(pieces: Sequence[Piece]) -> None:
    """Run them one after the other."""
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
        """So many steps: what is held back keeps all of this alive."""
        return self._steps(count)


def can_fuse_step(device: Device, schedule: Schedule) -> bool:
    """Whether it makes sense to try: the device can, and the values fit."""
    return device.kernels in STEP_FUSERS and 0 < schedule.naive_bytes <= MOST_BYTES


def fuse_step(
    device: Device, schedule: Schedule, lookup: Callable[[Block], Lookup], communicator: Any
) -> FusedStep | None:
    """The steps of a schedule without reuse of memory as one launch; None where that cannot be.

    `lookup(block)` finds arrays, those of the arena in that block.
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
