"""Which sides a copy between two memories should read and write, so that the least moves.

Pure arithmetic on bytes: nothing here touches memory.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from itertools import product


class Side(enum.Enum):
    """One of the two places a memory can have bytes in."""

    DEVICE = "device"
    HOST = "host"


def cheapest_path(
    source: Mapping[Side, int], target: Mapping[Side, int], nbytes: int, *, same_device: bool
) -> tuple[Side, Side]:
    """The (source side, target side) for a copy of `nbytes` bytes that moves the fewest bytes.

    `source` and `target` map each side that exists to the bytes that must be moved before it can
    be used: 0 if it is up to date or will be overwritten. Between equals the one with fewer copies
    is taken, then the device, since there the copy need not be waited for.

    >>> from caldera.memory.transfer import Side, cheapest_path
    >>> managed = {Side.DEVICE: 400, Side.HOST: 0}     # the device side is stale
    >>> path = cheapest_path(managed, {Side.DEVICE: 0}, 400, same_device=True)
    >>> [side.value for side in path]
    ['host', 'device']
    """

    def cost(path: tuple[Side, Side]) -> tuple[int, int]:
        read, written = path
        crossings = 1 if read is not written else 0
        if read is Side.DEVICE and written is Side.DEVICE and not same_device:
            crossings = 2
        moved = source[read] + target[written] + crossings * nbytes
        copies = bool(source[read]) + bool(target[written]) + max(crossings, 1)
        return moved, copies

    # `min` keeps the first of equals, and the sides are given with the device first.
    return min(product(_ordered(source), _ordered(target)), key=cost)


def _ordered(sides: Mapping[Side, int]) -> list[Side]:
    return [side for side in Side if side in sides]
