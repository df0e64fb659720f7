"""Allreduce by name and its default, with doubling, halving, direct exchange, shared memory.

- **doubling**: in step k, ranks that differ in bit k exchange their whole buffers. It sends log2(n)
  messages and is the fastest algorithm for buffers so short that only the number of messages
  counts. Ranks beyond a power of two first add their values to another rank's buffer and receive
  the result last.
- **halving**, after Rabenseifner: partners at distance n/2, n/4, ... 1 each reduce half of their
  common part; then the halves are gathered in the opposite order. It sends the bytes of the ring in
  fewer messages. Ranks beyond a power of two take part before and after.
- **direct**: every rank sends each part to the rank that sums it. It sends the bytes of the ring,
  in n - 1 simultaneous messages. A sum of float16 or bfloat16 is computed in float32 from the
  original values and rounded once, which algorithms that forward partial sums cannot do without
  sending more.
- **window**: ranks of one machine reduce in shared memory and send no messages. Each rank sums
  one part from all buffers and stores the result in its own buffer, where the remaining ranks read
  it. Each rank alternates between two buffers: when a rank returns to the first buffer, all ranks
  have passed a synchronisation since its last use, so no rank still reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.comm.algorithms.rings import hierarchical, master, ring, ring_allgather, torus
from caldera.comm.algorithms.segments import (
    allreduce_volume,
    bounds,
    combine_from,
    even_counts,
    exchange,
    segments,
    start_receive,
    start_send,
    wait_all,
)
from caldera.comm.reduction import combine, downcast, finish, must_widen, upcast
from caldera.comm.shared_memory import DoubleBuffer, made_once

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator
    from caldera.comm.point_to_point import PointToPoint


ROOM_BYTES = 1 << 20
"""Longer buffers are processed in pieces of this size."""


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
    # Counted like the equivalent messages of other algorithms.
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


def doubling(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     number = np.array([float(comm.rank)])
    ...     doubling(comm, number, "max")
    ...     return number.item()
    >>> run_virtual_ranks(3, work)
    [2.0, 2.0, 2.0]
    """
    core, extra = core_ranks(comm.size)
    if fold_in(comm, buffer, op):
        distance = 1
        while distance < core:
            partner = comm.rank ^ distance
            leaving = buffer.copy()
            requests = start_send(comm, leaving, partner)
            combine_from(comm, buffer, partner, op, theirs_first=partner < comm.rank)
            wait_all(requests)
            distance *= 2
        finish(buffer, op, comm.size)
    fold_out(comm, buffer, extra)


def core_ranks(size: int) -> tuple[int, int]:
    """Return the largest power of two <= `size` and the number of ranks beyond it.

    >>> core_ranks(6)
    (4, 2)
    """
    core = 1 << (size.bit_length() - 1)
    return core, size - core


def fold_in(comm: PointToPoint, buffer: np.ndarray, op: str) -> bool:
    """Fold ranks beyond the power of two into partners; return True if this rank is active."""
    core, extra = core_ranks(comm.size)
    if comm.rank >= core:
        wait_all(start_send(comm, buffer, comm.rank - core))
        return False
    if comm.rank < extra:
        combine_from(comm, buffer, comm.rank + core, op)
    return True


def fold_out(comm: PointToPoint, buffer: np.ndarray, extra: int) -> None:
    """Ranks beyond the power of two get the result."""
    core = comm.size - extra
    if comm.rank >= core:
        wait_all(start_receive(comm, buffer, comm.rank - core))
    elif comm.rank < extra:
        wait_all(start_send(comm, buffer, comm.rank + core))


def halving(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.arange(5.0)
    ...     halving(comm, numbers)
    ...     return numbers.tolist()
    >>> run_virtual_ranks(4, work)[3]
    [0.0, 4.0, 8.0, 12.0, 16.0]
    """
    core, extra = core_ranks(comm.size)
    if fold_in(comm, buffer, op):
        _halve_and_double(comm, buffer, op, core)
    fold_out(comm, buffer, extra)


def _halve_and_double(comm: PointToPoint, buffer: np.ndarray, op: str, core: int) -> None:
    parts = bounds(even_counts(buffer.size, core))

    def stretch(first: int, count: int) -> np.ndarray:
        return buffer[parts[first][0] : parts[first + count - 1][1]]

    distance = core // 2
    first = 0
    while distance:
        partner = comm.rank ^ distance
        mine, theirs = first, first + distance
        if comm.rank & distance:
            mine, theirs = theirs, mine
        requests = start_send(comm, stretch(theirs, distance), partner)
        combine_from(comm, stretch(mine, distance), partner, op)
        wait_all(requests)
        first = mine
        distance //= 2
    finish(stretch(first, 1), op, comm.size)
    distance = 1
    while distance < core:
        partner = comm.rank ^ distance
        other = first ^ distance
        exchange(comm, stretch(first, distance), partner, stretch(other, distance), partner)
        first = min(first, other)
        distance *= 2


def direct(comm: PointToPoint, buffer: np.ndarray, op: str = "sum") -> None:
    """Reduce a flat buffer over all ranks, in place.

    >>> import numpy as np
    >>> from caldera.comm import run_virtual_ranks
    >>> def work(comm):
    ...     numbers = np.full(3, 60000, np.float16)
    ...     direct(comm, numbers, "mean")
    ...     return numbers.tolist()
    >>> run_virtual_ranks(3, work)[0]
    [60000.0, 60000.0, 60000.0]
    """
    counts = even_counts(buffer.size, comm.size)
    begin, end = bounds(counts)[comm.rank]
    buffer[begin:end] = direct_reduce_scatter(comm, buffer, counts, op)
    ring_allgather(comm, buffer, counts)


def direct_reduce_scatter(
    comm: PointToPoint, send: np.ndarray, counts: Sequence[int], op: str
) -> np.ndarray:
    """Return the reduction of this rank's part, in the order of the ranks."""
    parts = bounds(counts)
    begin, end = parts[comm.rank]
    others = [(comm.rank + distance) % comm.size for distance in range(1, comm.size)]
    received = {rank: np.empty(end - begin, send.dtype) for rank in others}
    # Nearest neighbours first on both sides: otherwise all ranks would send to the same rank.
    arriving = {rank: start_receive(comm, received[rank], rank) for rank in reversed(others)}
    leaving = [r for rank in others for r in start_send(comm, send[slice(*parts[rank])], rank)]
    received[comm.rank] = send[begin:end]
    halves = must_widen(send.dtype, op)

    def numbers_of(rank: int) -> np.ndarray:
        wait_all(arriving.get(rank, []))
        return upcast(received[rank], comm.size) if halves else received[rank]

    total = numbers_of(0).copy()
    for rank in range(1, comm.size):
        combine(total, numbers_of(rank), op)
    wait_all(leaving)
    if halves:
        return downcast(total, send.dtype, op, comm.size)
    finish(total, op, comm.size)
    return total


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
"""Algorithms that require all ranks to be on one machine."""
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
    """Return the algorithm to use when none has been measured.

    >>> import numpy as np
    >>> buffers = np.zeros(4), np.zeros(10**6), np.zeros(4, "f2")
    >>> tuple(default_algorithm(buffer, "sum") for buffer in buffers)
    ('doubling', 'ring', 'direct')
    """
    if must_widen(buffer.dtype, op):
        return "direct"
    return "doubling" if buffer.nbytes <= SHORT_BYTES else "ring"
