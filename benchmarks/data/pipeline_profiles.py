"""How close the pipeline's own tuning comes to the best setting there is, and how soon.

Four kinds of data: slow to decode (JPEG files), slow to augment (rotation and colours), slow to
read (a disk that takes its time), and cheap in every way. Training is a step that waits, as the
host does for a device. A grid of fixed settings is measured first; then an epoch that tunes itself
takes turns with the best of them. Printed are batches a second: those of the best fixed setting,
those of the tuned epoch after its first tenth, and the batch from which on it was within 90%.

    python benchmarks/data/pipeline_profiles.py
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import caldera as cd
from caldera import data
from caldera.data.sources.base import SCALE

STEP_S = 0.002
WORKERS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
SPARE = (2, 8)
"""Batches that may lie ready beside those in the making."""
GRID_BATCHES = 50
TURNS = 5


@dataclass(frozen=True)
class Profile:
    """Data, the stages it passes through, and how an epoch of it is cut into batches."""

    name: str
    source: Any
    stages: list[data.Stage]
    batch_size: int
    batches: int


class Jpegs(data.Data):
    """Encoded images that lie in memory: only decoding them takes time."""

    shape = ()
    dtype = np.dtype(object)
    scale = SCALE

    def __init__(self, count: int, size: int) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (8, size // 8, size // 8, 3))
        self._files = [self._file(image.astype(np.uint8), size) for image in noise]
        self._count = count

    def _file(self, pixels: NDArray[np.uint8], size: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).resize((size, size)).save(file, "JPEG", quality=90)
        return file.getvalue()

    def __len__(self) -> int:
        return self._count

    def batch(self, indices: NDArray[np.integer]) -> tuple[NDArray[Any], ...]:
        files = np.empty(len(indices), object)
        files[:] = [self._files[index % len(self._files)] for index in indices]
        return files, np.asarray(indices) % 10


class SlowDisk(data.ArrayData):
    """Samples in memory that take as long as if they came from far away: 30 ms, at times 90."""

    def raw_batch(self, indices: NDArray[np.integer]) -> tuple[NDArray[Any], ...]:
        time.sleep(0.090 if indices[0] % 10 == 0 else 0.030)
        return super().raw_batch(indices)


def profiles() -> list[Profile]:
    """The four kinds of data."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (2048, 3, 64, 64)).astype(np.uint8)
    rows = generator.normal(size=(50_000, 784)).astype(np.float32)
    small = generator.integers(0, 256, (20_000, 3, 32, 32)).astype(np.uint8)
    return [
        Profile("slow decode", Jpegs(16 * 400, 160), [data.Decode(), data.Crop(128)], 16, 400),
        Profile(
            "slow augment",
            (np.tile(images, (8, 1, 1, 1))[: 32 * 400], np.arange(32 * 400) % 10),
            [data.Rotate(15), data.Colour(0.2, 0.2, 0.2), data.Mirror()],
            32,
            400,
        ),
        Profile("slow disk", SlowDisk(small, np.arange(len(small))), [data.Mirror()], 32, 600),
        Profile("all cheap", (rows, np.arange(len(rows)) % 10), [], 64, 750),
    ]


def batch_times(profile: Profile, limit: int, **setting: int) -> list[float]:
    """When each batch of an epoch came, in seconds."""
    pipeline = data.Pipeline(profile.source, profile.stages, **setting)
    loader = data.Loader(pipeline, profile.batch_size)
    times = []
    for _ in itertools.islice(loader, limit):
        times.append(time.perf_counter())
        time.sleep(STEP_S)
    return times


def rate(times: list[float], first: int) -> float:
    """Batches a second, from a batch on."""
    return (len(times) - 1 - first) / (times[-1] - times[first])


def settings() -> Iterator[dict[str, int]]:
    """The grid."""
    yield {"workers": 0}
    for workers, spare in itertools.product(WORKERS[1:], SPARE):
        yield {"workers": workers, "prefetch": workers + spare}


def best_setting(profile: Profile) -> dict[str, int]:
    """The fastest of the grid; the five fastest are measured again."""
    rates = []
    for setting in settings():
        first = setting.get("prefetch", 0) + 2
        times = batch_times(profile, first + GRID_BATCHES, **setting)
        rates.append((rate(times, first), setting))
    rates.sort(key=lambda each: -each[0])
    again = []
    for _, setting in rates[:5]:
        first = setting.get("prefetch", 0) + 2
        times = [batch_times(profile, first + 2 * GRID_BATCHES, **setting) for _ in range(3)]
        tries = [rate(each, first) for each in times]
        again.append((statistics.median(tries), setting))
    return max(again, key=lambda each: each[0])[1]


def reached(times: list[float], wanted: float, window: int = 16) -> int:
    """The batch from which on the next `window` batches came at the wanted rate."""
    for first in range(len(times) - window):
        if window / (times[first + window] - times[first]) >= wanted:
            return first
    return len(times)


def report(profile: Profile) -> None:
    """One line of the table."""
    best = best_setting(profile)
    fixed, tuned, sooner, found = [], [], [], []
    for _ in range(TURNS):
        fixed.append(rate(batch_times(profile, profile.batches, **best), profile.batches // 10))
        pipeline = data.Pipeline(profile.source, profile.stages)
        loader = data.Loader(pipeline, profile.batch_size)
        times = []
        for _ in itertools.islice(loader, profile.batches):
            times.append(time.perf_counter())
            time.sleep(STEP_S)
        tuned.append(rate(times, profile.batches // 10))
        sooner.append(reached(times, 0.9 * statistics.median(fixed)))
        found.append(loader.setting)
    ratios = [mine / other for mine, other in zip(tuned, fixed, strict=True)]
    setting = f"{best['workers']}, {best.get('prefetch', 0)}"
    print(
        f"{profile.name:<13} {statistics.median(fixed):>8.1f} ({setting:>6}) "
        f"{statistics.median(tuned):>8.1f} {100 * statistics.median(ratios):>6.0f}% "
        f"({100 * min(ratios):.0f} to {100 * max(ratios):.0f}%) "
        f"{statistics.median_high(sooner):>5} of {profile.batches}   "
        + ", ".join(f"{each.workers}, {each.prefetch}" for each in found)
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("profiles", nargs="*", help="some of the four, by their names")
    wanted = parser.parse_args().profiles
    print(
        f"{platform.machine()}, {cd.settings.threads} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}, NumPy {np.__version__}; a step takes "
        f"{1e3 * STEP_S:.0f} ms; batches a second, and workers, prefetch"
    )
    print("profile       best fixed          tuned  ratio (5 turns)   90% from batch   tuned to")
    for profile in profiles():
        if not wanted or profile.name in wanted:
            report(profile)


if __name__ == "__main__":
    main()
