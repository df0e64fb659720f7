"""What it costs to bring shuffled batches from memory to training.

Prints the time of a batch of 128 samples of 784 numbers, as float32 and as bytes that become
floats, and of 128 colour images of 32x32 with stages: ours, NumPy's gather alone, and PyTorch's
DataLoader where it is installed.

    python benchmarks/data/input.py
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera import data
from caldera.bench.timing import Stopwatch
from caldera.data.random_draws import permutation

SAMPLES = 60_000
BATCH = 128
BATCHES = SAMPLES // BATCH


def batch_microseconds(epochs: dict[str, Callable[[], Iterator[Any]]]) -> dict[str, float]:
    """The median time of a batch, over turns that each give every contestant some batches."""
    times: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(9):
        for name, epoch in epochs.items():
            batches = epoch()
            next(batches)
            start = Stopwatch()
            count = sum(1 for _ in islice(batches, 300))
            times[name].append(start.wall / count)
    return {name: statistics.median(each) * 1e6 for name, each in times.items()}


def gathers(x: NDArray[Any], y: NDArray[Any]) -> Callable[[], Iterator[Any]]:
    """NumPy's gather in a random order, which is made before the clock starts."""
    order = permutation(len(x), seed=0, epoch=0)

    def epoch() -> Iterator[Any]:
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            yield np.take(x, rows, axis=0), np.take(y, rows)

    return epoch


def loader(samples: data.Data) -> Callable[[], Iterator[Any]]:
    """Ours."""
    return lambda: iter(data.Loader(samples, BATCH))


def torch_loaders(x: NDArray[Any], y: NDArray[Any]) -> dict[str, Callable[[], Iterator[Any]]]:
    """PyTorch's, sample by sample as it is mostly used, and with a whole batch as one item."""
    try:
        import torch
        from torch.utils import data as torch_data
    except ImportError:
        return {}
    samples = torch_data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    batches = torch_data.BatchSampler(torch_data.RandomSampler(samples), BATCH, drop_last=False)
    plain = torch_data.DataLoader(samples, BATCH, shuffle=True)
    whole = torch_data.DataLoader(samples, sampler=batches, batch_size=None)
    return {
        "torch DataLoader": lambda: iter(plain),
        "torch DataLoader, whole batches": lambda: iter(whole),
    }


def report(title: str, epochs: dict[str, Callable[[], Iterator[Any]]], base: str) -> None:
    """One line for each contestant, beside the one that all are compared with."""
    times = batch_microseconds(epochs)
    print(title)
    for name, microseconds in times.items():
        print(f"  {name:<34} {microseconds:9.1f} us   {microseconds / times[base]:5.2f} x {base}")


def main() -> None:
    """Print all of it."""
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    start = Stopwatch()
    permutation(SAMPLES, seed=0, epoch=0)
    print(f"the order of {SAMPLES} samples: {start.wall * 1e3:.1f} ms an epoch")
    generator = np.random.default_rng(0)
    raw = generator.integers(0, 256, (SAMPLES, 784)).astype(np.uint8)
    x = raw.astype(np.float32) / 255
    y = generator.integers(0, 10, SAMPLES)
    report(
        f"{BATCH}x784 float32",
        {
            "NumPy take": gathers(x, y),
            "caldera": loader(data.ArrayData(x, y)),
            **torch_loaders(x, y),
        },
        "NumPy take",
    )
    report(
        f"{BATCH}x784 bytes to float32",
        {"NumPy take": gathers(x, y), "caldera": loader(data.ArrayData(raw, y))},
        "NumPy take",
    )
    images = generator.integers(0, 256, (10_000, 3, 32, 32)).astype(np.uint8)
    labels = generator.integers(0, 10, len(images))
    samples = data.ArrayData(images, labels)
    stages: dict[str, data.Stage] = {
        "Crop(32, 4)": data.Crop(32, 4),
        "Mirror()": data.Mirror(),
        "Cutout(8)": data.Cutout(8),
        "Normalise": data.Normalise((0.5,) * 3, (0.25,) * 3),
    }
    report(
        f"{BATCH} images of 3x32x32, bytes to float32",
        {
            "none": loader(samples),
            **{name: loader(data.Pipeline(samples, each)) for name, each in stages.items()},
            "all four": loader(data.Pipeline(samples, list(stages.values()))),
        },
        "none",
    )


if __name__ == "__main__":
    main()
