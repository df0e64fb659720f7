"""What the planner says of a network on ranks that are not here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from caldera.parallel.planner import (
    Cluster,
    Compute,
    Prediction,
    Setting,
    Way,
    Wire,
    rank,
    workload_of,
)
from caldera.parallel.planner.compression_cost import CodecCost
from caldera.parallel.planner.ranking import all_ways
from caldera.train.neural_network import NeuralNetwork

INFINIBAND = Wire(3e-6, 7e9)
"""FDR with 56 Gbit/s, which clusters of K80 and M40 cards had; the papers name no link."""


@dataclass(frozen=True)
class Guess:
    """What is predicted for so many ranks.

    >>> Guess(2, "DataParallel", 0.5, 100.0, 1e9).ranks
    2
    """

    ranks: int
    way: str
    seconds: float
    """Of a step."""
    rate: float
    """Samples a second."""
    memory: float


def guesses(
    model: NeuralNetwork,
    compute: Compute,
    sizes: Mapping[int, int],
    *,
    wire: Wire = INFINIBAND,
    memory: float | None = None,
    hybrid: bool = False,
) -> list[Guess]:
    """The best way for each number of ranks and its batch of all ranks together.

    Only data parallelism unless `hybrid`: with branches there are thousands of ways to cut a
    network, and ranking them takes minutes.
    """
    workload = workload_of(model)
    found = []
    for ranks, batch in sizes.items():
        cluster = Cluster(ranks, wire, memory=memory)
        setting = Setting(workload, compute, cluster, batch)
        if hybrid or ranks == 1:
            best = rank(setting).best
            way, guess = best.way, best.prediction
        else:
            way, guess = _fastest(_data_parallel(setting), setting)
        found.append(Guess(ranks, way.name, guess.seconds, guess.rate, guess.memory))
    return found


def guess_way(setting: Setting, name: str) -> Prediction:
    """What one way costs, by the planner's name for it."""
    return next(way for way in all_ways(setting) if way.name == name).predict(setting)


def setting_of(
    model: NeuralNetwork,
    flops: float,
    ranks: int,
    batch: int,
    wire: Wire,
    codes: Mapping[str, CodecCost],
) -> Setting:
    """Ranks of so many operations a second."""
    workload = workload_of(model)
    return Setting(workload, Compute.at_speed(workload, flops), Cluster(ranks, wire), batch, codes)


def _data_parallel(setting: Setting) -> list[Way]:
    found = []
    for way in all_ways(setting):
        if not way.name.startswith(("DataParallel", "Sharded")):
            # They come first: what follows are thousands.
            break
        found.append(way)
    return found


def _fastest(ways: Sequence[Way], setting: Setting) -> tuple[Way, Prediction]:
    tried = [(way, way.predict(setting)) for way in ways if way.exact]
    fitting = [each for each in tried if not each[1].refused] or tried
    return min(fitting, key=lambda each: each[1].seconds)
