"""How much memory this process uses now, and used at most."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import suppress
from pathlib import Path

from caldera.lazy import forget_plans
from caldera.memory import device

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def resident() -> int:
    """Bytes of memory this process has now (its peak where the system does not say).

    >>> resident() > 0
    True
    """
    return _status("VmRSS") or peak()


def peak() -> int:
    """The most bytes this process had, since it began or since `reset_peak`.

    >>> peak() >= 1 << 20
    True
    """
    found = _status("VmHWM")
    if found:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> None:
    """Count the peak from here on, where the system can; and give back what nobody uses.

    What a peer's worker needed to build the network in Caldera is not the peer's memory.
    """
    forget_plans()
    gc.collect()
    device("cpu").pool.trim()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def _status(name: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0
