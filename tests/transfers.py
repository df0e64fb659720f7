"""Counting the copies of a device that other tests have used."""

from __future__ import annotations

from caldera.core.memory.interface import Device, TransferCounters


def counted_from_now(where: Device) -> TransferCounters:
    """The counters of a device, at zero: what an earlier test has launched and not waited for
    would be counted when it runs."""
    where.stream.synchronize()
    where.copy_stream.synchronize()
    where.counters.reset()
    return where.counters
