"""Available GPUs, and CuPy, through which they are used."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

from caldera.base.launchers import rank_on_machine
from caldera.base.registry import optional_import, provided

PACKAGE = "caldera[cuda]"


@cache
def cupy() -> Any:
    """Return CuPy, imported on the first use of a GPU."""
    return optional_import("cupy", PACKAGE, "device 'cuda'")


@cache
def card_count() -> int:
    """Return the number of usable GPUs; 0 if CuPy or the driver is missing."""
    if find_spec("cupy") is None:
        return 0
    try:
        return int(cupy().cuda.runtime.getDeviceCount())
    except Exception:
        # Without a driver every runtime call fails, with errors that differ between versions.
        return 0


@cache
def own_card() -> int:
    """Return the default GPU of this process.

    Ranks started together on one machine use one GPU each, and share GPUs if there are more ranks.
    """
    if card_count() < 2:
        return 0
    rank = rank_on_machine(os.environ)
    if rank is None:
        rank = provided("rank on machine")()
    return int(rank) % card_count()


@cache
def _capture_lock(index: int) -> threading.RLock:
    return threading.RLock()


class Card:
    """A GPU, by index.

    A capturing thread holds `capture_lock`. During a capture CUDA forbids all threads to
    synchronise the whole GPU.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"
        self.capture_lock = _capture_lock(index)

    @classmethod
    def current(cls) -> Card:
        """Return the calling thread's GPU."""
        return cls(int(cupy().cuda.Device().id))

    def active(self) -> AbstractContextManager[Any]:
        """Make it the current GPU of the thread."""
        return cupy().cuda.Device(self.index)

    def synchronize(self) -> None:
        """Wait for all work on the GPU, on every stream."""
        with self.capture_lock, self.active():
            cupy().cuda.runtime.deviceSynchronize()
