"""What is predicted, and what it is predicted from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from caldera.base.formatting import bytes_text
from caldera.parallel.planner.cluster import Cluster
from caldera.parallel.planner.compression_cost import CodecCost
from caldera.parallel.planner.compute import Compute
from caldera.parallel.planner.workload import ModelWorkload


@dataclass(frozen=True)
class Setting:
    """A model on some ranks: what is to be predicted for.

    - `batch`: samples of a step, of all ranks together.
    - `codes`: the compressions that are looked at, by name.
    - `every`: after how many steps local SGD and elastic averaging exchange.
    """

    workload: ModelWorkload
    compute: Compute
    cluster: Cluster
    batch: int
    codes: Mapping[str, CodecCost] = field(default_factory=dict)
    every: int = 8

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.cluster.ranks

    def seconds(self, samples: float) -> float:
        """How long a rank computes a step on so many samples."""
        return self.cluster.slowdown * self.compute.seconds(samples)

    def handing_over(self) -> float:
        """What a step takes more whose gradients are exchanged."""
        return self.cluster.slowdown * self.compute.handing_over

    def alone(self) -> float:
        """How long one rank with a machine of its own takes for the whole batch."""
        return self.compute.seconds(self.batch)

    def with_wire(self, *, latency: float = 1.0, bandwidth: float = 1.0) -> Setting:
        """The same with other links: so many times the latency and the bandwidth."""

        def changed(wire: Any) -> Any:
            return wire and replace(
                wire,
                latency=wire.latency * latency,
                behind=wire.behind * latency,
                bandwidth=wire.bandwidth * bandwidth,
            )

        cluster = self.cluster
        cluster = replace(cluster, wire=changed(cluster.wire), inside=changed(cluster.inside))
        return replace(self, cluster=cluster)


@dataclass(frozen=True)
class Prediction:
    """What a step of one strategy costs.

    - `seconds`: until `batch` samples have been learned from; of these a rank is `computing`, waits
      for what is `exposed` of the exchange, and has nothing to do for `idle`.
    - `exchange`: seconds of all messages, hidden ones too; `sent`: bytes of the busiest rank.
    - `memory`: bytes of the rank that needs most.
    - `refused`: why it cannot be used; empty if it can.
    """

    batch: int
    seconds: float
    computing: float
    exchange: float = 0.0
    exposed: float = 0.0
    idle: float = 0.0
    sent: float = 0.0
    memory: float = 0.0
    refused: str = ""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.batch / self.seconds if self.seconds else float("inf")


@dataclass(frozen=True)
class TrainingWay:
    """One way to train, not yet predicted.

    - `family`: what it is a kind of; `name`: which one exactly.
    - `maker`: the class of `caldera.parallel` and what it is made with.
    - `exact`: whether the result is that of one process, but for rounding.
    """

    family: str
    name: str
    maker: tuple[str, Mapping[str, Any]]
    exact: bool
    cost: Callable[[Setting], Prediction] = field(repr=False, compare=False)

    def predict(self, setting: Setting) -> Prediction:
        """What a step costs, and whether it fits."""
        found = self.cost(setting)
        limit = setting.cluster.memory
        if not found.refused and limit is not None and found.memory > limit:
            missing = f"needs {bytes_text(found.memory)} a rank, {bytes_text(limit)} are there"
            return replace(found, refused=missing)
        return found


def refuse(setting: Setting, why: str) -> Prediction:
    """A prediction for what cannot be done."""
    return Prediction(setting.batch, float("inf"), 0.0, refused=why)
