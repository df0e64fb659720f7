"""Fourier transforms of tiles as products with constant matrices.

A tile has at most `length` rows and columns. Of its frequencies along the rows' axis half are kept,
as it is real; along the columns' axis, all. Real and imaginary parts are rows (or columns) of their
own. Transforms that are this short take hardly more arithmetic as products than as fast transforms,
and products run at the full speed of the machine, on vectors of channels, in any layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from caldera.core.tensor.dtype import DType


@dataclass(frozen=True, eq=False)
class Matrices:
    """What tiles are multiplied with. Angles are positive in inverse transforms."""

    down: np.ndarray
    """(frequency, part) by row: the forward transform along columns of a tile."""
    across: np.ndarray
    """(frequency, part) by (part, column): the forward transform along rows."""
    back_across: np.ndarray
    """(part, column) by (frequency, part): the inverse along rows."""
    back_down: np.ndarray
    """row by (frequency, part): the inverse along columns, whose results are real."""
    filters: np.ndarray
    """(frequency down, frequency across, part) by tap: the forward transform of filters."""
    taps: np.ndarray
    """(frequency down, frequency across, part) by tap: the inverse transform, to taps."""


def frequencies(length: int) -> int:
    """How many frequencies of a real signal are kept.

    >>> frequencies(16)
    9
    """
    return length // 2 + 1


@lru_cache(maxsize=64)
def matrices(length: int, taps: tuple[int, int], turned: bool, dtype: DType) -> Matrices:
    """The matrices for tiles of this length and filters of this size.

    `turned` transforms filters turned by 180 degrees, as the input gradient wants them.

    >>> found = matrices(16, (7, 7), False, np.dtype("float32"))
    >>> found.down.shape, found.across.shape, found.filters.shape
    ((18, 16), (32, 32), (288, 49))
    """
    places = np.arange(length)
    half = np.arange(frequencies(length))
    angles = 2 * np.pi / length * (np.outer(places, places) % length)
    cosines, sines = np.cos(angles), np.sin(angles)
    # All but the first frequency and, for even lengths, the last stand for two.
    weights = np.where((half == 0) | (2 * half == length), 1.0, 2.0) / length**2

    down = np.stack([cosines[half], -sines[half]], axis=1)
    across = np.stack(
        [np.stack([cosines, sines], axis=1), np.stack([-sines, cosines], axis=1)], axis=1
    )
    back_across = np.stack(
        [np.stack([cosines, -sines], axis=2), np.stack([sines, cosines], axis=2)], axis=0
    )
    weighted = weights[:, None] * np.stack([cosines[half], -sines[half]], axis=0)
    back_down = weighted.transpose(2, 1, 0)
    rows, columns = (np.arange(count)[::-1] if turned else np.arange(count) for count in taps)
    of_row, of_column = np.outer(half, rows), np.outer(places, columns)
    phases = of_row[:, None, :, None] + of_column[None, :, None, :]
    turns = 2 * np.pi / length * (phases % length)
    both = np.stack([np.cos(turns), -np.sin(turns)], axis=2)

    def dense(matrix: np.ndarray, *shape: int) -> np.ndarray:
        return np.ascontiguousarray(matrix.reshape(shape), dtype)

    count = taps[0] * taps[1]
    return Matrices(
        dense(down, 2 * len(half), length),
        dense(across, 2 * length, 2 * length),
        dense(back_across, 2 * length, 2 * length),
        dense(back_down, length, 2 * len(half)),
        dense(both, -1, count),
        dense(both * weights[:, None, None, None, None], -1, count),
    )
