"""Arrays of a card as CuPy's, for what its libraries compute."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.memory.device_array import address_of
from caldera.memory.gpus import cupy


def cupy_array(array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """A cupy.ndarray over the same memory, with the same strides; it keeps the array alive."""
    # How far views reach is the caller's business: CuPy only wants to know whose memory it is.
    memory = cupy().cuda.UnownedMemory(address_of(array), max(array.nbytes, 1), array)
    pointer = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(array.shape, array.dtype, pointer, array.strides)
