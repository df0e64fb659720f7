"""Measuring what is between ranks: the latency of a message, and what an allreduce gets through."""

from __future__ import annotations

import time
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
    of all ranks, so that adding up is part of it.

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
    times = []
    for _ in range(_LONG_ROUNDS + 1):
        communicator.Barrier()
        began = time.perf_counter()
        communicator.Iallreduce(numbers, numbers).wait()
        times.append(time.perf_counter() - began)
    communicator.algorithm = before
    # Connections are made in the first round.
    seconds = _slowest(communicator, median(times[1:]))
    steps = 2 * (ranks - 1)
    moving = max(seconds - steps * behind, 0.5 * seconds)
    return Wire(latency, steps / ranks * _LONG_BYTES / moving, behind=behind)


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
