"""Cost of compressed gradients: bytes sent, and seconds to encode and decode."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import numpy as np

from caldera.comm import Communicator, run_virtual_ranks
from caldera.compress import (
    Compressor,
    Link,
    PowerSGD,
    RandomK,
    TopK,
    compressors,
    predicted_seconds,
)
from caldera.compress.compressor import bounds
from caldera.compress.dense import DenseCompressor
from caldera.compress.sparse import fastest
from caldera.errors import ConfigError
from caldera.parallel.planner.cluster import Cluster, Wire
from caldera.parallel.planner.communication_cost import CollectiveCost, allreduce

DEFAULT_COMPRESSORS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "float16": ("cast", {"dtype": "float16"}),
    "bfloat16": ("cast", {"dtype": "bfloat16"}),
    "QSGD, 8 bits": ("qsgd", {"bits": 8}),
    "QSGD, 4 bits": ("qsgd", {"bits": 4}),
    "QSGD, 2 bits": ("qsgd", {"bits": 2}),
    "TernGrad": ("terngrad", {}),
    "1 bit": ("one_bit", {}),
    "top 1%": ("topk", {"k": 0.01}),
    "top 1%, sampled": ("topk", {"k": 0.01, "sampled": True}),
    "Top16_Q4": ("top16_q4", {}),
    "random 1%": ("random_k", {"k": 0.01}),
    "PowerSGD, rank 4": ("power_sgd", {"rank": 4}),
}
"""Compressions considered by the planner, with their arguments.

Lossless packing is missing: its size depends on the gradients.
"""
_FEW, _MANY = 2, 8
"""Numbers of ranks for which the work of a rank per exchange is measured."""
_SHORT, _LONG = 1 << 13, 1 << 19
"""Values of the encoded messages. The long one exceeds a core's cache, as gradients do."""
_COLUMNS = 64
_RUNS = 3


@dataclass(frozen=True)
class CodecSeconds:
    """Computing time of an exchange on one core: per gradient value, and per remaining rank."""

    ranks: int = _FEW
    a_value: float = 0.0
    a_rank: float = 0.0

    def seconds(self, elements: float, ranks: int) -> float:
        """Return the time of an exchange of `elements` values between `ranks` ranks."""
        return self.a_value * elements + self.a_rank * (ranks - 1)


@dataclass(frozen=True)
class CodecCost:
    """Compression with its encoding and decoding time, between few ranks and between many.

    Sums of sparse vectors become denser with the number of ranks.

    >>> from caldera.compress import QSGD
    >>> CodecCost(QSGD(bits=4)).cost([(64, 64)], 2, Wire(0.0, 1e6)).sent
    2080
    >>> CodecCost(QSGD(bits=4), CodecSeconds(2, 1e-6), CodecSeconds(8, 4e-6)).seconds(1000, 4)
    0.002
    """

    compressor: Compressor
    few: CodecSeconds = CodecSeconds(_FEW)
    many: CodecSeconds = CodecSeconds(_MANY)

    def seconds(self, elements: float, ranks: int) -> float:
        """Return the computing time of an exchange of `elements` values."""
        if ranks == 1:
            return 0.0
        if isinstance(self.compressor, RandomK | PowerSGD):
            # Plain sums of few values: no rank decodes the messages of every rank.
            return self.few.seconds(elements, 2)
        low, high = (work.seconds(elements, ranks) for work in (self.few, self.many))
        reached = (ranks - self.few.ranks) / (self.many.ranks - self.few.ranks)
        return low + (high - low) * min(reached, 1.0)

    def cost(self, shapes: Sequence[tuple[int, ...]], ranks: int, wire: Wire) -> CollectiveCost:
        """Return the cost of exchanging gradients of these shapes in a message, without codecs."""
        elements = sum(map(math.prod, shapes))
        if ranks == 1 or not elements:
            return CollectiveCost()
        if isinstance(self.compressor, TopK):
            return _sparse(self.compressor, shapes, ranks, wire)
        if isinstance(self.compressor, RandomK):
            count = sum(self.compressor.count(math.prod(shape)) for shape in shapes)
            return _summed(count, ranks, wire)
        if isinstance(self.compressor, PowerSGD):
            # The second factor follows from the sum of the first.
            both = self.compressor.summed_elements(shapes)
            return sum((_summed(values, ranks, wire) for values in both), CollectiveCost())
        assert isinstance(self.compressor, DenseCompressor)
        there, around = _encoded_bytes(self.compressor, elements, ranks)
        # All-to-all, then around the ring.
        seconds = wire.met().seconds(there, 1) + wire.seconds(around, ranks - 1)
        return CollectiveCost(seconds, there + around)


def _encoded_bytes(compressor: DenseCompressor, elements: int, ranks: int) -> tuple[int, int]:
    """Return the bytes that the busiest rank sends of its vector, and of the sum of its part."""
    parts = [end - begin for begin, end in pairwise(bounds(elements, ranks))]
    sizes = [
        [codec.size(part) for part in parts] for codec in (compressor.code, compressor.sum_codec)
    ]
    there, around = ([size or 0 for size in found] for found in sizes)
    if None in sizes[0] or None in sizes[1]:
        raise ConfigError.build(
            "planner", expected="a compression whose size is known", got=repr(compressor)
        )
    sent = [
        (sum(there) - own, (ranks - 1) * total) for own, total in zip(there, around, strict=True)
    ]
    return max(sent, key=sum)


def _summed(values: float, ranks: int, wire: Wire) -> CollectiveCost:
    return allreduce("auto", 4 * values, ranks, Cluster(ranks, wire))


def _sparse(
    topk: TopK, shapes: Sequence[tuple[int, ...]], ranks: int, wire: Wire
) -> CollectiveCost:
    sizes = [math.prod(shape) for shape in shapes]
    elements, count = sum(sizes), topk.expected(sizes)
    bits = topk.quantiser.bits(count) if topk.quantiser is not None else 32.0
    times = predicted_seconds(elements, count, ranks, bits, wire)
    # Ranks choose for the link that the compression was given; threads for the default one.
    chosen = topk.algorithm
    if chosen == "auto":
        chosen = fastest(elements, count, ranks, bits, topk.link or Link())
    nbytes = predicted_seconds(elements, count, ranks, bits, Link(0.0, 1.0))
    return CollectiveCost(times[chosen], nbytes[chosen])


def default_codecs(wire: Wire) -> dict[str, CodecCost]:
    """Return the default gradient compressors for a link, without the time of encoding."""
    made = {}
    for title, (name, arguments) in DEFAULT_COMPRESSORS.items():
        given = dict(arguments)
        if name.startswith("top"):
            given |= {"latency": wire.latency, "bandwidth": wire.bandwidth}
        made[title] = CodecCost(compressors.make(name, **given))
    return made


def timed(code: CodecCost) -> CodecCost:
    """Return the cost with encoding times measured on this machine."""
    with _one_core():
        return replace(code, few=_work(code.compressor, _FEW), many=_work(code.compressor, _MANY))


@contextmanager
def _one_core() -> Iterator[None]:
    """Context manager: measured sequentially, since threads of one process contend for memory."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


_known: dict[tuple[str, int], CodecSeconds] = {}
"""Measurements of this process; each takes seconds."""


def _work(compressor: Compressor, ranks: int) -> CodecSeconds:
    """Return the computing time of a rank per exchange, measured between threads."""
    key = repr(compressor), ranks
    if key not in _known:
        _known[key] = _measured_work(compressor, ranks)
    return _known[key]


def _measured_work(compressor: Compressor, ranks: int) -> CodecSeconds:
    short, long = (_seconds(compressor, elements, ranks) for elements in (_SHORT, _LONG))
    a_value = max(long - short, 0.0) / (_LONG - _SHORT)
    return CodecSeconds(ranks, a_value, max(short - a_value * _SHORT, 0.0) / (ranks - 1))


def _seconds(compressor: Compressor, elements: int, ranks: int) -> float:
    """Return the time that a rank's thread is given a core for an exchange."""

    def work(communicator: Communicator) -> float:
        own = type(compressor)(**compressor.arguments())
        shape = (elements // _COLUMNS, _COLUMNS)
        values = np.random.default_rng(communicator.rank).normal(size=shape).astype(np.float32)
        found = []
        for _ in range(_RUNS + 1):
            gradient = values.copy()
            began = time.thread_time()
            own.exchange("planner", gradient, communicator)
            found.append(time.thread_time() - began)
        # The first exchange fills caches.
        return median(found[1:])

    return median(run_virtual_ranks(ranks, work))
