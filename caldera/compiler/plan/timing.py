"""Step times of a plan: estimates, roofline peaks of this machine, and profiles of runs.

Before a plan has memory to be timed as a whole, a kernel that was compared with others has a
measured time. One that was the only candidate is run on made-up arrays of its shapes, as long as
the budget lasts (`settings.tune_budget_s`); the remaining times are estimated from operations and
bytes.

The peaks, operations a second and bytes a second, are measured once and bound every kernel. They
are cached in `settings.cache_dir` for this CPU, number of threads and NumPy.

A profile times each call inside complete runs, so the state of the caches is realistic. The
median over several runs counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.plain_data import json_digest
from caldera.base.threads import parallel_for
from caldera.compiler.plan.schedule import Buffer, Step, StepSchedule
from caldera.core.graph import detached, laid_out
from caldera.core.memory import Device, host_view
from caldera.core.tensor.dtype import DType, bfloat16, float32, float64
from caldera.errors import OutOfMemoryError
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import COPY, Runner
from caldera.kernels.tuning.choose import choices
from caldera.kernels.tuning.database import machine_key
from caldera.kernels.tuning.measure import some_numbers

SIDE = 640
"""Rows of the product that is timed: large enough for BLAS to reach its full speed."""
STREAM_BYTES = 96 << 20
"""Bytes of the copy that is timed: more than the caches hold."""
ENOUGH_S = 0.1
"""Each of the three is timed again and again for so long, and the best counts."""


@dataclass(frozen=True)
class Peaks:
    """Operations a second by dtype, and bytes a second from and to memory.

    bfloat16 is as fast as float32 until a product has shown more: not every machine has
    instructions for it.

    >>> peaks = Peaks(float32=2e9, float64=1e9, bfloat16=2e9, bandwidth=1e9)
    >>> peaks.least_seconds(flops=2e9, nbytes=10, dtype=float32)
    1.0
    """

    float32: float
    float64: float
    bfloat16: float
    bandwidth: float

    def least_seconds(self, flops: float, nbytes: float, dtype: DType) -> float:
        """Return the time below which this much work cannot be done."""
        # Other types are computed in float32, or cost about as much.
        own = {float64: self.float64, bfloat16: self.bfloat16}
        return max(flops / own.get(dtype, self.float32), nbytes / self.bandwidth)


def cpu_peaks() -> Peaks:
    """Return the peaks of this machine: remembered, or measured now (about 0.3 s)."""
    key = _key()
    if key not in _known:
        _known[key] = _read(key[1]) or _stored(measure())
    return _known[key]


def _key() -> tuple[Path, str]:
    return settings.cache_dir, json_digest({"peaks": machine_key()})


def _stored(peaks: Peaks) -> Peaks:
    # A folder that cannot be written only means that it is measured again next time.
    with suppress(OSError):
        _PEAKS.write_json(_key()[1], vars(peaks))
    return peaks


def cpu_peaks_at_least(speeds: Mapping[DType, float]) -> Peaks:
    """The peaks, raised to speeds that a kernel has just shown: a busy machine measures low."""
    known = cpu_peaks()
    raised = Peaks(
        max(known.float32, speeds.get(float32, 0.0)),
        max(known.float64, speeds.get(float64, 0.0)),
        max(known.bfloat16, speeds.get(bfloat16, 0.0)),
        known.bandwidth,
    )
    if raised != known:
        _known[_key()] = _stored(raised)
    return raised


_PEAKS = FileCache("peaks")
_known: dict[tuple[Path, str], Peaks] = {}


def measure() -> Peaks:
    """Time a product in each precision, and a copy."""
    single = _product_speed(float32)
    return Peaks(single, _product_speed(float64), single, _copy_speed())


def _product_speed(dtype: DType) -> float:
    """Return the speed of products, one per thread: the BLAS's thread count differs from ours."""
    a = np.ones((SIDE, SIDE), dtype)
    results = [np.empty_like(a) for _ in range(settings.threads)]

    def multiply(worker: int, workers: int) -> None:
        for result in results[worker::workers]:
            np.matmul(a, a, result)

    with single_threaded_blas:
        least = _least_seconds(lambda: parallel_for(multiply, len(results)))
    return len(results) * 2.0 * SIDE**3 / least


def _copy_speed() -> float:
    source = np.ones(STREAM_BYTES // 8)
    target = np.empty_like(source)

    def copy_part(worker: int, workers: int) -> None:
        part = slice(source.size * worker // workers, source.size * (worker + 1) // workers)
        np.copyto(target[part], source[part])

    least = _least_seconds(lambda: parallel_for(copy_part, settings.threads))
    return 2.0 * source.nbytes / least


def _least_seconds(work: Callable[[], object]) -> float:
    work()  # the first one warms up
    best = math.inf
    deadline = perf_counter() + ENOUGH_S
    while best == math.inf or perf_counter() < deadline:
        start = perf_counter()
        work()
        best = min(best, perf_counter() - start)
    return best


def _read(key: str) -> Peaks | None:
    held = _PEAKS.read_json(key)
    try:
        found = Peaks(**{each.name: float(held[each.name]) for each in fields(Peaks)})
    except (ValueError, KeyError, TypeError):
        return None
    speeds = vars(found).values()
    return found if all(math.isfinite(speed) and speed > 0 for speed in speeds) else None


CARD = Peaks(float32=3e13, float64=1e12, bfloat16=3e13, bandwidth=1e12)
"""Minimum speeds assumed for a GPU, for kernels without measurements."""
LINK = 1e10
"""Assumed bytes per second between a device and the host, if measuring is not allowed."""
COPIED_BYTES = 1 << 20
"""Bytes of the copy that is timed: there may not be room for more."""
LAUNCH_S = 1e-5
"""Seconds of overhead of a copy."""
REACHED = 0.5
"""The part of the peaks that a kernel is expected to reach."""


class StepSeconds:
    """The seconds of steps on a device, each kernel and shape found once.

    Without `measured` they are what steps should take, and the same each time.
    """

    def __init__(self, schedule: StepSchedule, device: Device, *, measured: bool = True) -> None:
        self._schedule = schedule
        self._device = device
        self._known: dict[Any, float] = {}
        # Without measurement a plan is the same each time.
        self._left = 0.0 if settings.deterministic else settings.tune_budget_s
        self._may_measure = measured
        self._peaks = cpu_peaks() if device.kernels == "cpu" else CARD

    def __call__(self, step: Step) -> float:
        """Return the seconds of a step."""
        if step.kernel.op == COPY or not self._may_measure:
            return self.estimate(step)
        strides = tuple(value.meta_array.strides for value in step.inputs)
        key = (detached(step.node), step.kernel.name, strides)
        if key not in self._known:
            self._known[key] = self._found(step)
        return self._known[key]

    def estimate(self, step: Step) -> float:
        """Return the estimated seconds of a step, from its operations and bytes."""
        nbytes = sum(value.buffer.spec.nbytes for value in step.inputs)
        nbytes += sum(buffer.spec.nbytes for buffer in step.outputs)
        flops = 0 if step.kernel.op == COPY else step.node.op.count_flops(step.node)
        least = self._peaks.least_seconds(flops, nbytes, step.outputs[0].spec.dtype)
        return least / REACHED + 1e-6

    def copied(self, nbytes: int) -> float:
        """Return the seconds to copy `nbytes` bytes to the host or back."""
        if self._device.is_host:
            return float("inf")
        return LAUNCH_S + nbytes / self._bandwidth

    @cached_property
    def _bandwidth(self) -> float:
        return link_bandwidth(self._device) if self._may_measure else LINK

    def _found(self, step: Step) -> float:
        if step.node.op.name == "scan":
            return self.estimate(step)
        choice = choices.choose(step.node, self._device.kernels, measure=False)
        known = (choice.times or {}).get(step.kernel.name)
        if known is not None and choice.kernel is step.kernel:
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
        lookup = _random_operands()
        call = self._schedule.call(step, lookup)
        run = step.kernel.bind(call)
        with single_threaded_blas, np.errstate(all="ignore"):
            return min(_seconds(run) for _ in range(3))


_links: dict[Device, float] = {}


def link_bandwidth(device: Device) -> float:
    """Return bytes a second between a device and the host, the slower of the two ways.

    Measured once.
    """
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


def _random_operands() -> Callable[[Buffer], Any]:
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


FEWEST_RUNS = 3
MOST_RUNS = 25
BUDGET_S = 0.5
"""Once this is used up there are no further runs, beyond the fewest."""


class TimedRun(NamedTuple):
    """A run to be timed: `restore` resets the variables, `prepare` returns the bound calls."""

    restore: Callable[[], None]
    prepare: Callable[[], Sequence[Runner]]


def seconds_of_calls(run: TimedRun, device: Device) -> list[float]:
    """Return the median time of each call of a run."""
    time = _on_host if device.is_host else _on_stream

    def timed() -> list[float]:
        run.restore()
        return time(run.prepare(), device)

    with single_threaded_blas, np.errstate(all="ignore"):
        timed()  # the first run warms up
        deadline = perf_counter() + BUDGET_S
        runs: list[list[float]] = []
        while len(runs) < FEWEST_RUNS or (len(runs) < MOST_RUNS and perf_counter() < deadline):
            runs.append(timed())
    return [float(median) for median in np.median(runs, axis=0)]


def _on_host(calls: Sequence[Runner], device: Device) -> list[float]:
    times = []
    for call in calls:
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return times


def _on_stream(calls: Sequence[Runner], device: Device) -> list[float]:
    """Time each call including the wait for it; the cost of an empty wait is subtracted."""
    stream = device.stream
    stream.synchronize()

    def seconds(call: Runner) -> float:
        start = perf_counter()
        stream.launch(call)
        stream.synchronize()
        return perf_counter() - start

    nothing = min(seconds(lambda: None) for _ in range(5))
    return [max(0.0, seconds(call) - nothing) for call in calls]
