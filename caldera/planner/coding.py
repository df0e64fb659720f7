"""What compressed gradients cost: bytes on the wire, and seconds to encode and decode them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from caldera.comm import SingleProcess
from caldera.compress import Compressor, Link, compressors, predicted_seconds
from caldera.compress.dense import DenseCompressor
from caldera.compress.draws import Chance
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
_ELEMENTS = 1 << 18
_RUNS = 3


@dataclass(frozen=True)
class Coded:
    """A compression, and the seconds that a rank takes for each value of a gradient.

    >>> from caldera.compress import QSGD
    >>> Coded(QSGD(bits=4)).cost(4096, 2, Wire(0.0, 1e6)).sent
    2080
    """

    compressor: Compressor
    a_value: float = 0.0

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
        expected = predicted_seconds(elements, count, ranks, bits, topk.link)
        chosen = min(expected, key=lambda name: expected[name])
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
        made[name] = Coded(compressor, _seconds(compressor) / _ELEMENTS)
    return made


def _seconds(compressor: Compressor) -> float:
    """The time that a rank works on an exchange, without the exchange."""
    values = np.random.default_rng(0).normal(size=_ELEMENTS).astype(np.float32)
    draws = Chance(0, 0, "planner").of(0)
    sums = None
    if isinstance(compressor, DenseCompressor):
        sums = compressor.code_of_sums.encode(values, draws)

    def work() -> None:
        if sums is None or not isinstance(compressor, DenseCompressor):
            compressor.exchange("planner", values.copy(), SingleProcess())
            return
        # Each value is encoded and decoded on its way to the sum, and decoded as part of it.
        message = compressor.code.encode(values, draws)
        compressor.code.decode(message, values.size, values.dtype)
        compressor.code_of_sums.decode(sums, values.size, values.dtype)

    found = []
    for _ in range(_RUNS + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return median(found[1:])
