"""How long single steps of a schedule take, before the run as a whole has memory to be timed in.

A kernel that was measured against others has a time already. One that was the only candidate is run
here on numbers of its shapes, as long as there is time for it (`settings.tune_budget_s`); the rest
is estimated from operations and bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.compiler.plan.roofline import Peaks, cpu_peaks
from caldera.compiler.plan.schedule import Buffer, Schedule, Step
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.opdef import detached
from caldera.core.memory import Device
from caldera.core.memory.pool import host_view
from caldera.errors import OutOfMemoryError
from caldera.kernels.choose import choices
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.measure import some_numbers
from caldera.kernels.table import COPY

CARD = Peaks(float32=3e13, float64=1e12, bfloat16=3e13, bandwidth=1e12)
"""What a card does at least, for kernels of which nobody has measured any."""
LINK = 1e10
"""Bytes a second between a device and the host, where that may not be measured."""
COPIED_BYTES = 1 << 20
"""Bytes of the copy that is timed: there may not be room for more."""
LAUNCH_S = 1e-5
"""What a copy takes besides its bytes."""
REACHED = 0.5
"""The part of the peaks that a kernel is expected to reach."""


class StepSeconds:
    """The seconds of steps on a device, each kernel and shape found once.

    Without `measured` they are what steps should take, and the same each time.
    """

    def __init__(self, schedule: Schedule, device: Device, *, measured: bool = True) -> None:
        self._schedule = schedule
        self._device = device
        self._known: dict[Any, float] = {}
        # Where nothing may be measured a plan is the same each time.
        self._left = 0.0 if settings.deterministic else settings.tune_budget_s
        self._may_measure = measured
        self._peaks = cpu_peaks() if device.kernels == "cpu" else CARD

    def __call__(self, step: Step) -> float:
        """What one step takes."""
        if step.kernel.op == COPY or not self._may_measure:
            return self.estimate(step)
        key = (detached(step.node), step.kernel.name, _strides(step))
        if key not in self._known:
            self._known[key] = self._found(step)
        return self._known[key]

    def estimate(self, step: Step) -> float:
        """What it should take, by its operations and bytes."""
        nbytes = sum(value.buffer.spec.nbytes for value in step.inputs)
        nbytes += sum(buffer.spec.nbytes for buffer in step.outputs)
        flops = 0 if step.kernel.op == COPY else step.node.op.count_flops(step.node)
        dtype = step.outputs[0].spec.dtype
        return self._peaks.least_seconds(flops, nbytes, dtype) / REACHED + 1e-6

    def copied(self, nbytes: int) -> float:
        """What a copy of so many bytes to the host or back takes."""
        if self._device.is_host:
            return float("inf")
        return LAUNCH_S + nbytes / self._bandwidth

    @cached_property
    def _bandwidth(self) -> float:
        return link_bandwidth(self._device) if self._may_measure else LINK

    def _found(self, step: Step) -> float:
        if step.node.op.name == "scan":
            return self.estimate(step)
        verdict = choices.verdict(step.node, self._device.kernels, measure=False)
        known = (verdict.times or {}).get(step.kernel.name)
        if known is not None and verdict.kernel is step.kernel:
            return known
        if self._device.kernels != "cpu" or not step.kernel.measured or self._left <= 0:
            return self.estimate(step)
        begin = perf_counter()
        try:
            return self._measured(step)
        except Exception:
            # Made-up numbers may be none that it can work with.
            return self.estimate(step)
        finally:
            self._left -= perf_counter() - begin

    def _measured(self, step: Step) -> float:
        lookup = _made_up()
        call = self._schedule.call(step, lookup)
        run = step.kernel.bind(call)
        with single_threaded_blas, np.errstate(all="ignore"):
            return min(_seconds(run) for _ in range(3))


_links: dict[Device, float] = {}


def link_bandwidth(device: Device) -> float:
    """Bytes a second between a device and the host, the slower of the two ways; measured once."""
    stream = device.stream
    if settings.deterministic or stream.capturing:
        return LINK
    if device not in _links:
        try:
            there = device.allocate(COPIED_BYTES, owner="copy that is timed")
        except OutOfMemoryError:
            return _links.setdefault(device, LINK)
        here = host_view(device.allocate_host(COPIED_BYTES), 0, (COPIED_BYTES,), np.dtype(np.uint8))

        def there_and_back() -> None:
            device.copy_in(there, 0, here, stream)
            device.copy_out(here, there, 0, COPIED_BYTES, stream)
            stream.synchronize()

        _links[device] = 2 * COPIED_BYTES / min(_seconds(there_and_back) for _ in range(3))
    return _links[device]


def _made_up() -> Callable[[Buffer], Any]:
    arrays: dict[Buffer, Any] = {}
    generator = np.random.default_rng(0)

    def lookup(buffer: Buffer) -> Any:
        if buffer not in arrays:
            spec = buffer.spec
            flat = np.empty(spec.size, spec.dtype)
            arrays[buffer] = laid_out(flat, spec.shape, spec.order)
            arrays[buffer][...] = some_numbers(spec.shape, spec.dtype, generator)
        return arrays[buffer]

    return lookup


def _seconds(run: Callable[[], object]) -> float:
    begin = perf_counter()
    run()
    return perf_counter() - begin


def _strides(step: Step) -> tuple[tuple[int, ...], ...]:
    return tuple(value.meta_array.strides for value in step.inputs)
