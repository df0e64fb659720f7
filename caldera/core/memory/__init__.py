"""Memory and devices: the four kinds of memory, the pool under them, copies and prefetch."""
# ruff: noqa: F401 - some names are for the other packages of Caldera alone

from __future__ import annotations

from caldera.base.arguments import guard_methods as _guard_methods
from caldera.core.memory.coherence import PendingRead
from caldera.core.memory.devices import (
    CUDA_MANAGED,
    DEVICE,
    HOST,
    MANAGED,
    Kind,
    device,
    empty_cache,
    memory_report,
    register_device,
)
from caldera.core.memory.host import trim_heap
from caldera.core.memory.interface import (
    CapturedGraph,
    Device,
    Event,
    Stream,
    TimingEvent,
    TransferCounters,
    recorded,
)
from caldera.core.memory.manager import MemoryManager
from caldera.core.memory.pool import ALIGNMENT, Block, Pool, host_view, size_class
from caldera.core.memory.software import address_of

find_device = device
"""Alias of `device`, for functions with an argument of that name."""

__all__ = [
    "CUDA_MANAGED",
    "DEVICE",
    "HOST",
    "MANAGED",
    "Block",
    "CapturedGraph",
    "Device",
    "Event",
    "Kind",
    "MemoryManager",
    "PendingRead",
    "Pool",
    "Stream",
    "TransferCounters",
    "device",
    "empty_cache",
    "memory_report",
    "register_device",
]

_guard_methods(MemoryManager, "copy_from prefetch set")
