"""Measuring what is between ranks: the latency of a message, and what an allreduce gets through."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.planner.cluster import Wire

_SHORT_ROUNDS, _LONG_ROUNDS = 21, 5
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
    before = communicator.algorithm
    communicator.algorithm = _RING
    numbers = np.zeros(_LONG_BYTES // 4, np.float32)
    seconds = _long(communicator, lambda own: own.Allreduce(numbers, numbers))
    communicator.algorithm = before
    steps = 2 * (ranks - 1)
    bandwidth = steps / ranks * _LONG_BYTES / max(seconds - steps * behind, 0.5 * seconds)
    part = _LONG_BYTES // ranks // 4
    sizes, send, receive = [part] * ranks, numbers[: part * ranks], np.empty_like(numbers)
    seconds = _long(
        communicator, lambda own: own.Alltoall(send, receive[: part * ranks], sizes, sizes)
    )
    meeting = 4 * part * (ranks - 1) / max(seconds - behind, 0.5 * seconds)
    return Wire(latency, bandwidth, behind=behind, meeting=min(meeting, bandwidth))


def adding_speed() -> float:
    """Bytes a second that a rank of this machine adds to others.

    >>> adding_speed() > 0
    True
    """
    numbers, others = np.zeros(_LONG_BYTES // 4, np.float32), np.ones(_LONG_BYTES // 4, np.float32)
    times = []
    for _ in range(_LONG_ROUNDS):
        began = time.perf_counter()
        numbers += others
        times.append(time.perf_counter() - began)
    return _LONG_BYTES / median(times)


def _long(communicator: Communicator, work: Callable[[Communicator], None]) -> float:
    """The median time of something in the background, on the slowest rank."""
    times = []
    for _ in range(_LONG_ROUNDS + 1):
        communicator.Barrier()
        began = time.perf_counter()
        communicator.background(work).wait()
        times.append(time.perf_counter() - began)
    # Connections are made in the first round.
    return _slowest(communicator, median(times[1:]))


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
