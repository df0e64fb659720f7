"""Cluster description: ranks, measured links, and units of rates, times, memory and compute.

Link rates are given in bits and file sizes in bytes, so b and B are distinguished: 100Gb is 12.5 GB
per second. Prefixes are powers of 1000; prefixes with an i are powers of 1024.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, median
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.comm.autotune import LONG_BYTES, Link, measured_link, ping_pong, slowest
from caldera.errors import ConfigError


@dataclass(frozen=True)
class Wire(Link):
    """Link between ranks, with the rate in bytes per second at which a rank adds received values.

    - `behind`: latency of messages to a rank that computes: its communication thread sleeps while
      it waits, and notices messages later.
    - `meeting`: rate of a link on which messages of several ranks collide, if below the bandwidth.
    - `turn`: additional seconds of an exchange: after computation, caches are cold, and ranks wait
      until all have had a core.
    - `sharing`: number of ranks on a core while the link was measured.

    >>> Wire(latency=1e-4, bandwidth=12.5e6).seconds(125)
    0.00011
    >>> Wire(latency=1e-4, bandwidth=12.5e6, turn=1e-3).seconds(125)
    0.00111
    """

    adding: float = math.inf
    behind: float = 0.0
    meeting: float = math.inf
    turn: float = 0.0
    sharing: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.adding > 0:
            raise ConfigError.build(
                "Wire", expected="adding above 0 bytes a second", got=f"{self.adding}"
            )

    def seconds(self, size: float, messages: float = 1) -> float:
        """Return the time of an exchange of messages of `size` bytes together."""
        return self.turn + super().seconds(size, messages)

    def summed(self, size: float, messages: float = 1) -> float:
        """Return the time of messages whose numbers are added to others as they come."""
        moved = size / min(self.bandwidth, self.adding)
        return self.turn + (messages * self.latency + moved)

    def met(self) -> Wire:
        """Return the link as shared by messages of several ranks."""
        return replace(self, bandwidth=min(self.bandwidth, self.meeting))

    def shared(self, ways: float) -> Wire:
        """Return the share of the link for each of `ways` simultaneous users."""
        if ways <= 1:
            return self
        return replace(self, bandwidth=self.bandwidth / ways, meeting=self.meeting / ways)

    def crowded(self, slowdown: float, turn: float) -> Wire:
        """Return the link between ranks that share cores.

        `slowdown` is the ratio of work to cores; `turn` is the wait of an exchange for each rank on
        a core beyond the ranks that shared a core during the measurement.
        """
        return replace(
            self,
            turn=self.turn + turn * max(0.0, slowdown - self.sharing),
            adding=self.adding / max(1.0, slowdown / self.sharing),
        )

    def in_background(self) -> Wire:
        """Return the link for messages in the background."""
        return replace(self, latency=max(self.latency, self.behind))


@dataclass(frozen=True)
class Cluster:
    """Ranks, `per_node` on each machine, and the links between them.

    - `wire`: between machines, shared by all ranks of a machine; `inside`: within one.
    - `at_full_speed`: number of ranks on a machine that compute without sharing its cores. Messages
      within a machine use the same cores.
    - `turn`: seconds that an exchange waits for a core, per additional rank on that core.
    - `memory`: the bytes that a rank may use; None means unlimited.

    >>> Cluster(16, Wire(1e-6, 1e9), per_node=4).nodes
    4
    """

    ranks: int
    wire: Wire
    inside: Wire | None = None
    per_node: int = 1
    at_full_speed: float = math.inf
    memory: float | None = None
    turn: float = 0.0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.per_node < 1 or not self.at_full_speed > 0:
            raise ConfigError.build(
                "Cluster",
                expected="at least one rank, and one rank a machine",
                got=f"{self.ranks}, {self.per_node} and {self.at_full_speed}",
            )

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return math.ceil(self.ranks / self.per_node)

    @property
    def slowdown(self) -> float:
        """Computing time of a rank relative to a rank with its machine to itself.

        >>> Cluster(8, Wire(1e-6, 1e9), per_node=8, at_full_speed=2).slowdown
        4.0
        """
        return max(1.0, min(self.ranks, self.per_node) / self.at_full_speed)

    @property
    def is_full(self) -> bool:
        """True if all cores of a machine compute."""
        return min(self.ranks, self.per_node) >= self.at_full_speed

    def hides(self, ranks: int, stride: int = 1) -> bool:
        """Return True if messages between these ranks overlap with computation.

        A network transfers without the CPU; messages within a machine use a core.
        """
        return ranks * stride > self.per_node or not self.is_full

    def in_background(self) -> Cluster:
        """Return the cluster with links for messages in the background."""
        return _in_background(self)

    def of_size(self, ranks: int) -> Cluster:
        """Return the cluster with another number of ranks."""
        return replace(self, ranks=ranks)

    def between(self, ranks: int, stride: int = 1, *, neighbours: bool = True) -> Wire:
        """Return the link between ranks at distance `stride`, while all ranks communicate alike.

        With `neighbours` only one rank of a machine sends to another machine; otherwise every rank
        does.
        """
        return _between(self, ranks, stride, neighbours)


# Cached: thousands of configurations use the same few links.


@lru_cache(maxsize=1 << 10)
def _in_background(cluster: Cluster) -> Cluster:
    inside = cluster.inside and cluster.inside.in_background()
    return replace(cluster, wire=cluster.wire.in_background(), inside=inside)


@lru_cache(maxsize=1 << 14)
def _between(cluster: Cluster, ranks: int, stride: int, neighbours: bool) -> Wire:
    if ranks * stride <= cluster.per_node:
        # All messages within a machine meet in its memory.
        wire = (cluster.inside or cluster.wire).met()
        shared = wire.shared(cluster.slowdown / wire.sharing)
        return shared.crowded(cluster.slowdown, cluster.turn)
    groups = min(stride, cluster.per_node)
    members = 1 if neighbours else max(1, cluster.per_node // stride)
    return cluster.wire.crowded(cluster.slowdown, cluster.turn).shared(groups * members)


_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 50
_BUDGET_S = 0.3
"""A quick link becomes quicker still in its first rounds: so long it is tried at the least."""
_RING = "ring"
BETWEEN_EXCHANGES_S = 1e-3
"""Seconds of a core that ranks compute before an exchange, to measure its time."""
LIMITED = 0.75
"""Fraction of the bandwidth above which a sum counts as limited by the link."""


def measured_wire(communicator: Communicator, sharing: float = 1.0) -> Wire:
    """Return the link between the ranks of a communicator; all ranks must call it.

    `sharing` is the number of ranks on a core. Latency and bandwidth come from
    `comm.autotune.measured_link`. Also measured: the latency of background messages, the rate of a
    ring sum of 4 MiB and of an all-to-all exchange, and the time of an exchange after computation.
    Ranks write the numbers before each exchange, as gradients are written, and wait for its end, as
    for the last sum of a backward pass.

    >>> from caldera.comm import run_virtual_ranks
    >>> run_virtual_ranks(2, measured_wire)[0].bandwidth > 0
    True
    """
    ranks = communicator.size
    if ranks == 1:
        raise ConfigError.build(
            "measured_wire", expected="several ranks", got="one", hint="start it with mpiexec"
        )
    link = measured_link(communicator)
    behind = 0.0

    def exchange(own: Communicator) -> None:
        nonlocal behind
        behind = ping_pong(own)

    communicator.background(exchange).wait()
    behind = max(behind, link.latency)
    numbers = np.zeros(LONG_BYTES // 4, np.float32)
    part = LONG_BYTES // ranks // 4
    sizes, send, receive = [part] * ranks, numbers[: part * ranks], np.empty_like(numbers)
    seconds, _ = _median(
        communicator, lambda own: own.Alltoall(send, receive[: part * ranks], sizes, sizes), send
    )
    meeting = 4 * part * (ranks - 1) / max(seconds - link.latency, 0.5 * seconds)
    seconds, _ = _ring(communicator, lambda own: own.Allreduce(numbers, numbers), numbers)
    steps, half = 2 * (ranks - 1), (ranks - 1) / ranks * LONG_BYTES
    seconds = max(seconds - steps * link.latency, 0.5 * seconds)
    # Sums travel in segments, which may fill a link better than the long messages timed for it.
    bandwidth = max(link.bandwidth, 2 * half / seconds)
    meeting = min(meeting, bandwidth)
    # The first half of the messages is added, and the second half is copied.
    adding = half / max(seconds - half / meeting, 0.5 * seconds)
    if 2 * half / seconds > LIMITED * bandwidth:
        # The link is what limits sums: with a faster one they would be faster.
        adding = math.inf
    turn = _turn(communicator, link, sharing)
    return Wire(link.latency, bandwidth, adding, behind, meeting, turn, sharing)


def _turn(communicator: Communicator, link: Link, sharing: float) -> float:
    """Return the time of an exchange after computation that its messages do not take.

    A short sum around the ring is two exchanges. Computation on numbers in memory leaves caches as
    a step does, and takes each rank the same time of a core.
    """
    short, numbers, worked = np.zeros(1), np.zeros(LONG_BYTES // 4, np.float32), [0.0]

    def step(own: Communicator) -> None:
        began = time.thread_time()
        while time.thread_time() - began < BETWEEN_EXCHANGES_S:
            np.add(numbers, 1, out=numbers)
        worked[0] += time.thread_time() - began
        own.Allreduce(short, short)

    seconds, rounds = _ring(communicator, step, short)
    work = sharing * fmean(communicator.gather_objects(worked[0] / rounds))
    messages = 2 * (communicator.size - 1) * link.latency
    return max(0.0, seconds - work - messages) / 2


def adding_speed() -> float:
    """Return bytes a second that a rank of this machine adds to others.

    >>> adding_speed() > 0
    True
    """
    numbers, others = np.zeros(LONG_BYTES // 4, np.float32), np.ones(LONG_BYTES // 4, np.float32)
    times = []
    for _ in range(_FEWEST_ROUNDS):
        began = time.perf_counter()
        numbers += others
        times.append(time.perf_counter() - began)
    return LONG_BYTES / median(times)


def _ring(
    communicator: Communicator, work: Callable[[Communicator], None], numbers: np.ndarray
) -> tuple[float, int]:
    """Return the median time of work whose sums go around the ring, and the number of rounds."""
    before = communicator.algorithm
    communicator.algorithm = _RING
    found = _median(communicator, work, numbers)
    communicator.algorithm = before
    return found


def _median(
    communicator: Communicator, work: Callable[[Communicator], None], numbers: np.ndarray
) -> tuple[float, int]:
    """Return the median time of work on the slowest rank, and the number of rounds.

    The later half counts, for connections are made in the first rounds. `numbers` are written
    before each round.
    """
    times: list[float] = []
    rounds = _FEWEST_ROUNDS
    while len(times) < rounds:
        numbers.fill(1)
        communicator.Barrier()
        began = time.perf_counter()
        work(communicator)
        times.append(time.perf_counter() - began)
        if len(times) == 2:
            # The slowest rank determines the number of repetitions.
            often = int(_BUDGET_S / slowest(communicator, times[-1]))
            rounds = min(max(rounds, often), _MOST_ROUNDS)
    return slowest(communicator, median(times[len(times) // 2 :])), len(times)


_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*"
_RATE = re.compile(_NUMBER + r"([kKMGTP]i?|m|g)?(b|B|bit|Bit)(?:ps|/s)?\s*")
_BYTES = re.compile(_NUMBER + r"([kKMGTP]i?)?B\s*")
_SECONDS = re.compile(_NUMBER + r"(ns|us|µs|ms|s)\s*")
_FLOPS = re.compile(_NUMBER + r"([kKMGTP])?(?:FLOP)?(?:S|/s)?\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SCALES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def rate_of(text: str, where: str = "link") -> float:
    """Return bytes a second.

    >>> rate_of("100Gb"), rate_of("12.5GB/s"), rate_of("100Mbit"), rate_of("1GiB")
    (12500000000.0, 12500000000.0, 12500000.0, 1073741824.0)
    >>> rate_of("100G")
    Traceback (most recent call last):
    caldera.errors.ConfigError: link: expected a speed such as 100Gb (bits a second) or 12.5GB ...
    """
    expected = "a speed such as 100Gb (bits a second) or 12.5GB (bytes a second)"
    value, prefix, unit = _read(_RATE, text, where, expected, "b is for bits, B for bytes")
    return value * _scale(prefix) / (1 if unit == "B" else 8)


def seconds_of(text: str, where: str = "latency") -> float:
    """Return seconds.

    >>> seconds_of("2us"), seconds_of("0.5 ms")
    (2e-06, 0.0005)
    """
    value, unit = _read(_SECONDS, text, where, "a time such as 2us, 0.1ms or 1s", least=0.0)
    return value * _SCALES[unit]


def bytes_of(text: str, where: str = "memory") -> int:
    """Return bytes.

    >>> bytes_of("80GB"), bytes_of("16GiB")
    (80000000000, 17179869184)
    >>> bytes_of("80Gb")
    Traceback (most recent call last):
    caldera.errors.ConfigError: memory: expected bytes such as 80GB or 16GiB, got '80Gb'; b is ...
    """
    hint = "b is for bits, B for bytes"
    value, prefix = _read(_BYTES, text, where, "bytes such as 80GB or 16GiB", hint)
    return round(value * _scale(prefix))


def flops_of(text: str, where: str = "speed") -> float:
    """Return floating-point operations a second.

    >>> flops_of("30T"), flops_of("500 GFLOP/s")
    (30000000000000.0, 500000000000.0)
    """
    value, prefix = _read(_FLOPS, text, where, "operations a second such as 30T or 500G")
    return value * _scale(prefix)


def rate_text(rate: float) -> str:
    """Return a speed of a link, in bits.

    >>> rate_text(12.5e9), rate_text(12.5e6)
    ('100 Gbit/s', '100 Mbit/s')
    """
    bits = 8 * rate
    for unit, scale in (("Tbit", 1e12), ("Gbit", 1e9), ("Mbit", 1e6)):
        if bits >= 0.9995 * scale:
            return f"{bits / scale:.3g} {unit}/s"
    return f"{bits / 1e3:.3g} kbit/s"


def _read(
    pattern: re.Pattern[str],
    text: str,
    where: str,
    expected: str,
    hint: str = "",
    least: float = sys.float_info.min,
) -> tuple[float, *tuple[Any, ...]]:
    """Return the number and the units of a text; raise if it has another form."""
    found = pattern.fullmatch(text)
    if found is None or not least <= float(found[1]) < math.inf:
        raise ConfigError.build(where, expected=expected, got=repr(text), hint=hint)
    number, *units = found.groups()
    return float(number), *units


def _scale(prefix: str | None) -> float:
    letters = (prefix or "").upper()
    return (1024.0 if letters.endswith("I") else 1000.0) ** _POWERS[letters.removesuffix("I")]
