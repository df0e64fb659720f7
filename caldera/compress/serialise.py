"""Arrays as the bytes of a message, and back."""

from __future__ import annotations

import numpy as np

from caldera.errors import DataError


def as_bytes(*arrays: np.ndarray) -> np.ndarray:
    """The bytes of some arrays, one after the other."""
    flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    return flat[0] if len(flat) == 1 else np.concatenate(flat)


def read(message: np.ndarray, dtype: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `count` elements of a message, and the bytes that follow."""
    size = count * np.dtype(dtype).itemsize
    if message.size < size:
        raise DataError.build("a message", expected=f"{size} more bytes", got=f"{message.size}")
    # A copy, because a message may begin anywhere in memory.
    return message[:size].copy().view(dtype), message[size:]
