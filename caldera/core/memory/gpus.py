"""Which cards there are, and CuPy, through which they are used."""

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
    """CuPy, imported when the first card is asked for."""
    return optional_import("cupy", PACKAGE, "device 'cuda'")


@cache
def card_count() -> int:
    """How many cards can be used: 0 also where CuPy or the driver is missing."""
    if find_spec("cupy") is None:
        return 0
    try:
        return int(cupy().cuda.runtime.getDeviceCount())
    except Exception:
        # Without a driver every call of the runtime fails, each version with an error of its own.
        return 0


@cache
def own_card() -> int:
    """The card that this process takes unless it is told otherwise.

    Ranks that were started together on one machine take one each, and share them if there are more
    ranks than cards.
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
    """Which card is meant.

    `capture_lock` is held by a thread that captures. CUDA forbids all others to wait for the card
    as a whole meanwhile.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"cuda:{index}"
        self.capture_lock = _capture_lock(index)

    @classmethod
    def current(cls) -> Card:
        """The one that the calling thread uses."""
        return cls(int(cupy().cuda.Device().id))

    def active(self) -> AbstractContextManager[Any]:
        """Make it the current card of the thread."""
        return cupy().cuda.Device(self.index)

    def synchronize(self) -> None:
        """Wait for everything on the card, on whatever stream."""
        with self.capture_lock, self.active():
            cupy().cuda.runtime.deviceSynchronize()
