"""How long each call of a plan takes, inside complete runs.

A call is timed where it stands in the run, so it finds the caches as it does in earnest. The median
over several runs counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from caldera.core.memory import Device
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.table import Runner

FEWEST_RUNS = 3
MOST_RUNS = 25
BUDGET_S = 0.5
"""Once this is used up there are no further runs, beyond the fewest."""


def seconds_of_calls(prepare: Callable[[], Sequence[Runner]], device: Device) -> list[float]:
    """The median time of each call; `prepare` makes everything ready for a run and gives them."""
    time = _on_host if device.is_host else _on_stream
    with single_threaded_blas, np.errstate(all="ignore"):
        time(prepare(), device)  # the first run warms up
        deadline = perf_counter() + BUDGET_S
        runs: list[list[float]] = []
        while len(runs) < FEWEST_RUNS or (len(runs) < MOST_RUNS and perf_counter() < deadline):
            runs.append(time(prepare(), device))
    return [float(median) for median in np.median(runs, axis=0)]


def _on_host(calls: Sequence[Runner], device: Device) -> list[float]:
    times = []
    for call in calls:
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return times


def _on_stream(calls: Sequence[Runner], device: Device) -> list[float]:
    """Each call is waited for; what waiting for nothing costs is taken off."""
    stream = device.stream
    stream.synchronize()

    def seconds(call: Runner) -> float:
        start = perf_counter()
        stream.launch(call)
        stream.synchronize()
        return perf_counter() - start

    nothing = min(seconds(_nothing) for _ in range(5))
    return [max(0.0, seconds(call) - nothing) for call in calls]


def _nothing() -> None:
    pass
