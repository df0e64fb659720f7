"""Measuring what is between ranks: the latency of a message, and what an allreduce gets through."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.parallel.planner.cluster import Wire

_SHORT_ROUNDS, _FEWEST_ROUNDS, _MOST_ROUNDS = 21, 5, 50
_BUDGET_S = 0.3
"""A quick link becomes quicker still in its first rounds: so long it is tried at the least."""
_LONG_BYTES = 4 << 20
_RING = "ring"


def measured_wire(communicator: Communicator) -> Wire:
    """Latency and bandwidth between the ranks of a communicator; all of them have to ask.

    The latency is that of a short message to the next rank and back, halved: once between ranks
    that wait for it, once in the background. The bandwidth is that of 4 MiB summed around the ring
    of all ranks, so that adding up is part of it; and once that of as many bytes from everybody to
    everybody, which says more the more ranks there are.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, measured_wire)[0].bandwidth > 0
    True
    """
    ranks = communicator.size
    if ranks == 1:
        raise ConfigError.build(
            "measured_wire", expected="several ranks", got="one", hint="start it with mpiexec"
        )
    latency = _slowest(communicator, _short(communicator))
    behind = 0.0

    def exchange(own: Communicator) -> None:
        nonlocal behind
        behind = _short(own)

    communicator.background(exchange).wait()
    behind = max(_slowest(communicator, behind), latency)
    numbers = np.zeros(_LONG_BYTES // 4, np.float32)
    seconds = _around(communicator, numbers)
    steps = 2 * (ranks - 1)
    bandwidth = steps / ranks * _LONG_BYTES / max(seconds - steps * behind, 0.5 * seconds)
    part = _LONG_BYTES // ranks // 4
    sizes, send, receive = [part] * ranks, numbers[: part * ranks], np.empty_like(numbers)
    seconds = _median(
        communicator, lambda own: own.Alltoall(send, receive[: part * ranks], sizes, sizes)
    )
    meeting = 4 * part * (ranks - 1) / max(seconds - behind, 0.5 * seconds)
    return Wire(latency, bandwidth, behind=behind, meeting=min(meeting, bandwidth))


def measured_turn(communicator: Communicator, wire: Wire, cores: int) -> float:
    """How long a message waits for a core where more ranks than a machine has share them; all of
    them have to ask. `wire` is what is between ranks that have a core each.

    A short sum goes around the ring of all ranks, who thus all have something to do.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, lambda comm: measured_turn(comm, Wire(1.0, 1e9), 1))
    [0.0, 0.0]
    """
    number = np.zeros(1, np.float64)
    seconds = _around(communicator, number)
    each = seconds / (2 * (communicator.size - 1))
    return max(0.0, each - wire.in_background().latency) / (communicator.size / cores - 1)


def adding_speed() -> float:
    """Bytes a second that a rank of this machine adds to others.

    >>> adding_speed() > 0
    True
    """
    numbers, others = np.zeros(_LONG_BYTES // 4, np.float32), np.ones(_LONG_BYTES // 4, np.float32)
    times = []
    for _ in range(_FEWEST_ROUNDS):
        began = time.perf_counter()
        numbers += others
        times.append(time.perf_counter() - began)
    return _LONG_BYTES / median(times)


def _around(communicator: Communicator, numbers: np.ndarray) -> float:
    """The time of a sum around the ring."""
    before = communicator.algorithm
    communicator.algorithm = _RING
    seconds = _median(communicator, lambda own: own.Allreduce(numbers, numbers))
    communicator.algorithm = before
    return seconds


def _median(communicator: Communicator, work: Callable[[Communicator], None]) -> float:
    """The median time of something in the background, on the slowest rank; of the later half, for
    connections are made in the first rounds."""
    times: list[float] = []
    rounds = _FEWEST_ROUNDS
    while len(times) < rounds:
        communicator.Barrier()
        began = time.perf_counter()
        communicator.background(work).wait()
        times.append(time.perf_counter() - began)
        if len(times) == 2:
            # The slowest rank says for all how often there is time for it.
            often = int(_BUDGET_S / _slowest(communicator, times[-1]))
            rounds = min(max(rounds, often), _MOST_ROUNDS)
    return _slowest(communicator, median(times[len(times) // 2 :]))


def _short(carrier: Communicator) -> float:
    """Half the time of a message to the next rank and one back; ranks take turns."""
    number = np.zeros(1, np.float64)
    times = [0.0]
    for first in range(carrier.size - 1):
        for _ in range(_SHORT_ROUNDS):
            began = time.perf_counter()
            if carrier.rank == first:
                carrier.Send(number, first + 1)
                carrier.Recv(number, first + 1)
                times.append((time.perf_counter() - began) / 2)
            elif carrier.rank == first + 1:
                carrier.Recv(number, first)
                carrier.Send(number, first)
    return median(times[1:] or times)


def _slowest(communicator: Communicator, seconds: float) -> float:
    return float(max(communicator.gather_objects(seconds)))
