"""Through memory that the ranks of one machine have in common: nothing is sent at all.

Each rank adds up one part. It leaves the other parts in its buffer, where those find them who add
them up; then its own sum, which everybody takes from there. There are two buffers a rank, used in
turn: who comes back to the first knows that all have left it, since all have met in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.segments import allreduce_volume, bounds, even_counts, segments
from caldera.comm.reduction import combine, finish
from caldera.comm.shared_memory import DoubleBuffer, made_once

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

ROOM_BYTES = 1 << 20
"""A longer buffer goes through it piece by piece."""


def window(comm: Communicator, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place; they are on one machine.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(5.0) + comm.rank
    ...     window(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(3, work)[2]
    [3.0, 6.0, 9.0, 12.0, 15.0]
    """
    buffers = made_once(comm, "window", lambda: DoubleBuffer(comm, ROOM_BYTES))
    # What it moves is what others do with messages.
    with comm.traffic.operation("window"):
        comm._count(allreduce_volume(comm.rank, comm.size, buffer.size), buffer)
    for begin, end in segments((0, buffer.size), ROOM_BYTES // buffer.itemsize):
        _piece(comm, buffer[begin:end], op, buffers)


def _piece(comm: Communicator, piece: np.ndarray, op: str, buffers: DoubleBuffer) -> None:
    parts = bounds(even_counts(piece.size, comm.size))
    begin, end = parts[comm.rank]
    theirs = buffers.next()[:, : piece.nbytes].view(piece.dtype)
    mine = theirs[comm.rank]
    mine[:begin], mine[end:] = piece[:begin], piece[end:]
    comm._barrier()
    total = piece[begin:end]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    for rank in others:
        combine(total, theirs[rank, begin:end], op)
    finish(total, op, comm.size)
    mine[begin:end] = total
    comm._barrier()
    for rank in others:
        first, last = parts[rank]
        piece[first:last] = theirs[rank, first:last]
