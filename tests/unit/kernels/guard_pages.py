"""Memory that ends where an unreadable page begins: reading or writing beyond it crashes at once.

Where the system has no such pages, it is ordinary memory.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

_NO_ACCESS = 0
_protect = getattr(ctypes.CDLL(None), "mprotect", None)


def guarded(nbytes: int) -> np.ndarray:
    """This many bytes, followed by an unreadable page."""
    page = mmap.PAGESIZE
    room = -(-max(nbytes, 1) // page) * page
    memory = mmap.mmap(-1, room + page)
    if _protect is not None:
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        status = _protect(ctypes.c_void_p(start + room), ctypes.c_size_t(page), _NO_ACCESS)
        assert status == 0
    return np.frombuffer(memory, np.uint8, nbytes, room - nbytes)
