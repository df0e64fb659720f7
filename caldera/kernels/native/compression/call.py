"""Calling one kernel now: on this thread without a program around it, or on several."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from caldera.config import settings
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.program import NativeRunner, native_call

kernel = cache(compiled)
"""The address of a kernel; messages are so many that even finding its name takes too long."""
_Function = Callable[[object, int, int], None]


def run(address: int, *arguments: np.ndarray | int, size: int = 0, worth: int = 1) -> None:
    """Call a kernel with arrays and integers, on all threads if `size` is at least `worth`.

    Messages are small and many: building a program takes longer than most of them.
    """
    if size >= worth and settings.threads > 1:
        NativeRunner([native_call(address, *arguments, parts=settings.threads)])()
        return
    slots = (ctypes.c_int64 * len(arguments))(
        *[address_of(given) if isinstance(given, np.ndarray) else given for given in arguments]
    )
    _function(address)(slots, 0, 1)


def addresses_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Where arrays begin, for a kernel that works on several."""
    return np.array([address_of(each) for each in arrays], np.int64)


def address_of(array: np.ndarray) -> int:
    """Where an array begins, which `array.ctypes` takes several times as long to say."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (TypeError, ValueError):
        # It must not be written, or is empty.
        return int(array.ctypes.data)


@cache
def _function(address: int) -> _Function:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    return kind(address)
