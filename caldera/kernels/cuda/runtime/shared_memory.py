"""How much a block can keep in shared memory; what needs more works in the workspace."""

from __future__ import annotations

from functools import lru_cache

from caldera.kernels.cuda.runtime.driver import Driver, driver

_MOST = 96 << 10
"""Bytes: two such blocks share a multiprocessor of a large card."""


def fits_in_shared(nbytes: int) -> bool:
    """Whether a block can have this much shared memory."""
    return nbytes <= min(_MOST, _half(driver()))


@lru_cache(maxsize=4)
def _half(card: Driver) -> int:
    # A driver lets kernels have half of what there is, and asking it takes a while.
    return card.shared_bytes // 2
