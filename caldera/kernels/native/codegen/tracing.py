"""Native calls that tell which thread did which part of them, and when."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from caldera.kernels.native.codegen.program import NativeCall, NativeRunner

_KIND = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@dataclass(frozen=True)
class PartSpan:
    """One part of a native call: who did it, and from when to when (`perf_counter`)."""

    thread: int
    part: int
    parts: int
    begin: float
    end: float


def traced(runner: NativeRunner, note: Callable[[PartSpan], None]) -> NativeRunner:
    """The same calls; `note` gets each part once it is done, from the thread that did it.

    Each part goes through Python and back, which costs some microseconds. The kernel itself runs
    without Python, beside the others.
    """
    return NativeRunner([_traced(call, note) for call in runner.calls])


def _traced(call: NativeCall, note: Callable[[PartSpan], None]) -> NativeCall:
    kernel = _KIND(call.address)

    def run(slots: Any, part: int, parts: int) -> None:
        begin = perf_counter()
        kernel(slots, part, parts)
        note(PartSpan(threading.get_ident(), part, parts, begin, perf_counter()))

    # Kept with the call: the address is only good as long as this object is.
    callback = _KIND(run)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    return replace(call, address=address, keep=(*call.keep, callback))
