"""What this machine can do at best: operations a second and bytes a second, measured once.

The two peaks bound every kernel: it can be no faster than its operations at the one and its bytes
at the other. They are remembered in `settings.cache_dir` for this CPU, number of threads and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from time import perf_counter

import numpy as np

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.plain_data import json_digest
from caldera.base.threads import parallel_for
from caldera.core.tensor.dtype import DType, bfloat16, float32, float64
from caldera.kernels.common.blas_threads import single_threaded_blas
from caldera.kernels.tuning_cache import machine_key

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
        """The time below which this much work cannot be done."""
        # Other types are computed in float32, or cost about as much.
        own = {float64: self.float64, bfloat16: self.bfloat16}
        return max(flops / own.get(dtype, self.float32), nbytes / self.bandwidth)


def cpu_peaks() -> Peaks:
    """The peaks of this machine: remembered, or measured now (about 0.3 s)."""
    key = (settings.cache_dir, json_digest({"peaks": machine_key()}))
    if key not in _known:
        found = _read(key[1])
        if found is None:
            found = measure()
            # A folder that cannot be written only means that it is measured again next time.
            with suppress(OSError):
                _PEAKS.write_json(key[1], vars(found))
        _known[key] = found
    return _known[key]


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
        key = (settings.cache_dir, json_digest({"peaks": machine_key()}))
        _known[key] = raised
        with suppress(OSError):
            _PEAKS.write_json(key[1], vars(raised))
    return raised


_PEAKS = FileCache("peaks")
_known: dict[tuple[Path, str], Peaks] = {}


def measure() -> Peaks:
    """Time a product in each precision, and a copy."""
    single = _product_speed(float32)
    return Peaks(single, _product_speed(float64), single, _copy_speed())


def _product_speed(dtype: DType) -> float:
    """Each thread multiplies for itself: the BLAS's own threads are another number than ours."""
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
