"""Batches of a network written to files once, for all the workers that are given them.

To draw eight batches of 256 large images takes several seconds, and a card waits meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from caldera.bench.workloads.base import Array, TrainingCase


def write_batches(case: TrainingCase, folder: Path) -> None:
    """Draw the batches of a case and write them."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (x, y) in enumerate(case.data()):
        np.save(folder / f"x{number}.npy", x, allow_pickle=False)
        np.save(folder / f"y{number}.npy", y, allow_pickle=False)


def read_batches(
    case: TrainingCase, folder: Path, dtype: str, batch: int | None = None
) -> list[tuple[Array, Array]]:
    """What `case.data(dtype, batch)` gives, from files."""
    found = []
    for number in range(case.batches):
        x, y = (
            np.load(folder / f"{name}{number}.npy", mmap_mode="r", allow_pickle=False)[:batch]
            for name in "xy"
        )
        # Copies: what is mapped cannot be written to, and some frameworks insist that it can.
        found.append((np.array(x, x.dtype if case.words else dtype), np.array(y)))
    return found
