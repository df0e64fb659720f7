"""Memory that was freed, and that the C library keeps.

What is freed between things that live on stays with the process, and so does what was freed at the
end of its memory, up to 64 MiB for each thread. A compiler and the arrays on which kernels are
measured leave more of it than a small network needs for all of its training.
"""

from __future__ import annotations

import ctypes
import os

_has_garbage = False


def note_garbage() -> None:
    """Say that much has been allocated and freed: the next `trim_heap` is worth its time.

    >>> from caldera.core.memory.heap import note_garbage
    >>> note_garbage()
    """
    global _has_garbage
    _has_garbage = True


def trim_heap(*, always: bool = False) -> bool:
    """Give freed memory back to the system if somebody noted garbage since the last time, or
    `always`; whether that was done. Only the GNU C library has a function for it.

    >>> from caldera.core.memory.heap import note_garbage, trim_heap
    >>> note_garbage()
    >>> trim_heap() and trim_heap()
    False
    """
    global _has_garbage
    if not (_has_garbage or always):
        return False
    _has_garbage = False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is None:
        return False
    trim(0)
    return True
