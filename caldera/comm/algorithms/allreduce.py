"""The allreduce algorithms by name, and which one to take."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.direct import direct
from caldera.comm.algorithms.doubling import doubling
from caldera.comm.algorithms.halving import halving
from caldera.comm.algorithms.hierarchical import hierarchical
from caldera.comm.algorithms.master import master
from caldera.comm.algorithms.ring import ring
from caldera.comm.algorithms.torus import torus
from caldera.comm.algorithms.window import window
from caldera.comm.reduction import downcast, must_widen, upcast

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

Algorithm = Callable[["Communicator", np.ndarray, str], None]

ALLREDUCE: dict[str, Algorithm] = {
    "ring": ring,
    "doubling": doubling,
    "halving": halving,
    "torus": torus,
    "hierarchical": hierarchical,
    "master": master,
    "direct": direct,
    "window": window,
}
WITHIN_A_MACHINE = ("window",)
"""What only ranks of one machine can do."""
SHORT_BYTES = 16384
"""Up to here the number of messages counts, beyond it the number of bytes."""


def allreduce(comm: Communicator, buffer: np.ndarray, op: str, name: str) -> None:
    """Reduce a flat buffer over all ranks, in place, with the algorithm of that name."""
    if must_widen(buffer.dtype, op) and name != "direct":
        wide = upcast(buffer, comm.size)
        ALLREDUCE[name](comm, wide, "sum")
        buffer[:] = downcast(wide, buffer.dtype, op, comm.size)
    else:
        ALLREDUCE[name](comm, buffer, op)


def default_algorithm(buffer: np.ndarray, op: str) -> str:
    """What to take where nothing was measured.

    >>> import numpy as np
    >>> buffers = np.zeros(4), np.zeros(10**6), np.zeros(4, "f2")
    >>> tuple(default_algorithm(buffer, "sum") for buffer in buffers)
    ('doubling', 'ring', 'direct')
    """
    if must_widen(buffer.dtype, op):
        return "direct"
    return "doubling" if buffer.nbytes <= SHORT_BYTES else "ring"
