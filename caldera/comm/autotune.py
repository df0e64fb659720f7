"""Selection of the fastest allreduce, measured once per buffer size and cached on this machine.

Ranks measure together, and the slowest rank's time counts. Rank 0 stores results in
`settings.cache_dir` and broadcasts the selection, so all ranks agree.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.machine import this_machine
from caldera.base.plain_data import json_digest
from caldera.comm.algorithms.allreduce import default_algorithm
from caldera.comm.algorithms.rings import sides

if TYPE_CHECKING:
    from caldera.comm.communicator import Communicator

FORMAT = 2
ROUNDS, MOST_ROUNDS, ROUND_AFTER_S = 3, 20, 0.05
"""Minimum and maximum number of rounds, and the time after which no further round starts."""
HOPELESS = 1.5
"""Algorithms slower than the best by this factor are not measured again."""
CLEARLY = 0.9
"""Another algorithm than the usual one must take less than so much of its time: a few measurements
on a busy network cannot tell more."""
_SIZES = [4**power for power in range(5, 14)]
_ENVIRONMENT = ("OMPI_MCA_btl", "OMPI_MCA_pml", "UCX_TLS", "FI_PROVIDER")


@dataclass(eq=False)
class AllreduceTuner:
    """The algorithm for each size that one communicator has met.

    - `chosen`: the algorithm for each size in bytes; `times`: the seconds that each one took.
    """

    chosen: dict[int, str] = field(default_factory=dict)
    times: dict[int, dict[str, float]] = field(default_factory=dict)

    def for_bytes(self, comm: Communicator, nbytes: int) -> str:
        """Return the algorithm for buffers of about that size. Called by all ranks together."""
        if settings.deterministic or comm.size == 1:
            # Measurements vary from run to run, and the order of a sum would vary with them.
            return default_algorithm(np.empty(nbytes, np.uint8), "sum")
        size = size_class(nbytes)
        if size not in self.chosen:
            with comm.traffic.apart("tuning"):
                self.chosen[size] = self._find(comm, size)
        return self.chosen[size]

    def _find(self, comm: Communicator, size: int) -> str:
        key = machine_key(comm) if comm.rank == 0 else None
        read = _read(key).get(str(size), {}) if key else {}
        known = comm.bcast_object({n: t for n, t in read.items() if n in comm.algorithms()})
        if not known:
            known = _measure(comm, size)
            if key:
                with suppress(OSError):
                    _TIMES.write_json(key, {**_read(key), str(size): known})
        self.times[size] = known
        return fastest(known, default_algorithm(np.empty(size, np.uint8), "sum"))


def fastest(times: dict[str, float], usual_one: str) -> str:
    """Return the algorithm to take: the usual one unless another is clearly faster.

    >>> fastest({"ring": 1.0, "halving": 0.95, "library": 2.0}, "ring")
    'ring'
    >>> fastest({"ring": 1.0, "halving": 0.95, "library": 0.5}, "ring")
    'library'
    """
    best = min(times, key=lambda name: (times[name], name))
    return usual_one if times.get(usual_one, math.inf) * CLEARLY <= times[best] else best


def size_class(nbytes: int) -> int:
    """Return sizes that share a choice: the power of four above, from 1 KiB to 64 MiB.

    >>> size_class(4), size_class(5000), size_class(2**22), size_class(2**40)
    (1024, 16384, 4194304, 67108864)
    """
    return next(size for size in _SIZES if size >= min(nbytes, _SIZES[-1]))


def _measure(comm: Communicator, size: int) -> dict[str, float]:
    """Return median seconds of each algorithm that is worth a try, within the budget for tuning."""
    before = comm.algorithm
    buffer = np.full(size // 4, 0, np.float32)
    remaining = candidates(comm, size)
    seen: dict[str, list[float]] = {name: [] for name in remaining}
    medians: dict[str, float] = {}
    for name in remaining:
        # Connections are made when two ranks first talk, and memory when it is first touched.
        comm.algorithm = name
        comm.Allreduce(buffer, buffer)
    began = time.perf_counter()
    for rounds in range(MOST_ROUNDS):
        limit = settings.tune_budget_s if rounds < ROUNDS else ROUND_AFTER_S
        for name in remaining:
            if comm.bcast_object(time.perf_counter() - began > limit):
                break
            comm.algorithm = name
            seen[name].append(_seconds(comm, buffer))
            medians[name] = statistics.median(seen[name])
        worst = HOPELESS * min(medians.values(), default=math.inf)
        remaining = [name for name in remaining if medians.get(name, math.inf) <= worst]
    comm.algorithm = before
    return medians or {default_algorithm(buffer, "sum"): 0.0}


def _seconds(comm: Communicator, buffer: np.ndarray) -> float:
    """Return the time of the slowest rank."""
    comm.Barrier()
    began = time.perf_counter()
    comm.Allreduce(buffer, buffer)
    return max(comm.gather_objects(time.perf_counter() - began))


def candidates(comm: Communicator, size: int) -> list[str]:
    """Return the algorithms that can be the fastest for a size, the likely ones first.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(3, lambda comm: candidates(comm, 1 << 22))[0]
    ['ring', 'window', 'halving', 'direct']
    """
    machines = len(set(comm.nodes))
    worth = {
        # A prime number of ranks has no rows and columns.
        "torus": sides(comm.size)[0] > 1,
        "hierarchical": 1 < machines < comm.size,
        # These send the whole buffer several times.
        "doubling": size <= 1 << 20,
        "master": size <= 1 << 16,
    }
    likely = (
        "ring",
        "library",
        "window",
        "halving",
        "direct",
        "torus",
        "hierarchical",
        "doubling",
        "master",
    )
    return [name for name in likely if name in comm.algorithms() and worth.get(name, True)]


_TIMES = FileCache("allreduce")


def machine_key(comm: Communicator) -> str:
    """Return all that the times depend on: the ranks, their machines and their way of talking."""
    here = this_machine()
    facts = {
        "format": FORMAT,
        "communicator": comm.describe(),
        "nodes": list(comm.nodes),
        "machine": [here.node, here.architecture, here.cores],
        "environment": {name: os.environ.get(name) for name in _ENVIRONMENT},
    }
    return json_digest(facts)


def _read(key: str) -> dict[str, Any]:
    """Return cached measurements; unreadable ones count as missing."""
    found = _TIMES.read_json(key)
    try:
        return {
            str(int(size)): {str(name): float(seconds) for name, seconds in times.items()}
            for size, times in found.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}
