"""The four kinds of memory."""

from __future__ import annotations

import enum


class Kind(enum.Enum):
    """Where memory lies, and who may touch it.

    >>> import caldera as cd
    >>> cd.MANAGED
    <Kind.MANAGED: 'a host and a device side, copied when the side that is read is stale'>
    """

    HOST = "host memory only"
    DEVICE = "memory of the device only"
    MANAGED = "a host and a device side, copied when the side that is read is stale"
    CUDA_MANAGED = "one allocation that host and device both reach, moved by the driver"


HOST = Kind.HOST
DEVICE = Kind.DEVICE
MANAGED = Kind.MANAGED
CUDA_MANAGED = Kind.CUDA_MANAGED
