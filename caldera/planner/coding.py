"""What compressed gradients cost: bytes on the wire, and seconds to encode and decode them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import Compressor, Link, compressors, predicted_seconds
from caldera.compress.dense import DenseCompressor
from caldera.compress.sparse.cost import fastest
from caldera.compress.topk import TopK
from caldera.errors import ConfigError
from caldera.planner.cluster import Wire
from caldera.planner.collectives import Cost

USUAL: Mapping[str, Mapping[str, object]] = {
    "cast": {"dtype": "float16"},
    "qsgd": {"bits": 4},
    "top16_q4": {},
}
"""The compressions that are looked at, and what they are made with."""
_FEW, _MANY = 2, 8
"""Ranks between which it is measured what a rank works on an exchange."""
_SHORT, _LONG = 1 << 13, 1 << 18
_RUNS = 3


@dataclass(frozen=True)
class Work:
    """Seconds that a core of one rank works on an exchange among so many ranks, for each value of
    a gradient, and for each other rank whatever it sends."""

    ranks: int = _FEW
    a_value: float = 0.0
    a_rank: float = 0.0

    def seconds(self, elements: float, ranks: int) -> float:
        """The time for so many values among so many ranks."""
        return self.a_value * elements + self.a_rank * (ranks - 1)


@dataclass(frozen=True)
class Coded:
    """A compression, and what encoding and decoding take: among few ranks, and among many, since
    sums of sparse vectors become denser.

    >>> from caldera.compress import QSGD
    >>> Coded(QSGD(bits=4)).cost(4096, 2, Wire(0.0, 1e6)).sent
    2080
    >>> Coded(QSGD(bits=4), Work(2, 1e-6), Work(8, 4e-6)).seconds(1000, 4)
    0.002
    """

    compressor: Compressor
    few: Work = Work(_FEW)
    many: Work = Work(_MANY)

    def seconds(self, elements: float, ranks: int) -> float:
        """How long a core works on an exchange of so many values."""
        if ranks == 1:
            return 0.0
        low, high = (work.seconds(elements, ranks) for work in (self.few, self.many))
        reached = (ranks - self.few.ranks) / (self.many.ranks - self.few.ranks)
        return low + (high - low) * min(reached, 1.0)

    def cost(self, elements: int, ranks: int, wire: Wire) -> Cost:
        """An exchange of so many values, without encoding and decoding them."""
        if ranks == 1 or not elements:
            return Cost()
        if isinstance(self.compressor, TopK):
            return _sparse(self.compressor, elements, ranks, wire)
        assert isinstance(self.compressor, DenseCompressor)
        part = math.ceil(elements / ranks)
        sizes = [code.size(part) for code in (self.compressor.code, self.compressor.code_of_sums)]
        if None in sizes:
            raise ConfigError.build(
                "planner", expected="a compression whose size is known", got=repr(self.compressor)
            )
        sent = (ranks - 1) * sum(size or 0 for size in sizes)
        # To everybody at once, then around the ring.
        return Cost(wire.seconds(sent, 2 * (ranks - 1)), sent)


def _sparse(topk: TopK, elements: int, ranks: int, wire: Wire) -> Cost:
    block, k = topk.block or elements, topk.k
    count = max(1, round(elements * (k if k < 1 else k / block)))
    bits = topk.quantiser.bits(count) if topk.quantiser is not None else 32.0
    link = Link(wire.latency, wire.bandwidth)
    times = predicted_seconds(elements, count, ranks, bits, link)
    # What is chosen is chosen for the link that the compression was told of.
    chosen = topk.algorithm
    if chosen == "auto":
        chosen = fastest(elements, count, ranks, bits, topk.link)
    sizes = predicted_seconds(elements, count, ranks, bits, Link(0.0, 1.0))
    return Cost(times[chosen], sizes[chosen])


def usual_codes(wire: Wire) -> dict[str, Coded]:
    """The usual compressions for a link, timed on this machine."""
    made = {}
    for name, arguments in USUAL.items():
        given = dict(arguments)
        if name.startswith("top"):
            given |= {"latency": wire.latency, "bandwidth": wire.bandwidth}
        compressor = compressors.make(name, **given)
        made[name] = Coded(compressor, _work(compressor, _FEW), _work(compressor, _MANY))
    return made


def _work(compressor: Compressor, ranks: int) -> Work:
    """What a rank works on an exchange, measured between threads."""
    short, long = (_seconds(compressor, elements, ranks) for elements in (_SHORT, _LONG))
    a_value = max(long - short, 0.0) / (_LONG - _SHORT)
    return Work(ranks, a_value, max(short - a_value * _SHORT, 0.0) / (ranks - 1))


def _seconds(compressor: Compressor, elements: int, ranks: int) -> float:
    """The time that a rank's thread is given a core for an exchange."""

    def work(communicator: Communicator) -> float:
        own = type(compressor)(**compressor.arguments())
        values = np.random.default_rng(communicator.rank).normal(size=elements).astype(np.float32)
        found = []
        for _ in range(_RUNS + 1):
            gradient = values.copy()
            began = time.thread_time()
            own.exchange("planner", gradient, communicator)
            found.append(time.thread_time() - began)
        # The first one makes what the others find.
        return median(found[1:])

    return median(run_virtual_ranks(ranks, work))
