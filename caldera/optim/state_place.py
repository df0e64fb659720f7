"""Where an optimizer keeps its state, if the device of the parameters has no room for it."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.base.config import settings
from caldera.compiler.lazy import Variable
from caldera.core.memory import Device
from caldera.core.memory.pool import size_class


def host_if_full(variables: Sequence[Variable], kept: int) -> str | None:
    """The host, if the device of these parameters cannot hold them, a gradient for each and `kept`
    numbers for each of theirs; None if it can, or if somebody has said where plans are to run."""
    if not variables or not kept or settings.placement != "auto":
        return None
    device: Device = variables[0].tensor.device
    if device.is_host:
        return None
    there = device.memory_bytes
    if there is None:
        return None
    needed = 0
    for variable in variables:
        tensor = variable.tensor
        if tensor.device is device:
            nbytes = size_class(tensor.nbytes)
            needed += nbytes * (kept + 1 + (not tensor.memory.has_block))
    return "cpu" if needed > there - device.pool.in_use else None
