"""`plan`: from a model, a number of ranks and a link to the way to train it, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from caldera.base.arguments import refusal, within
from caldera.base.config import settings
from caldera.base.formatting import html_text
from caldera.base.machine import usable_cores
from caldera.comm import Communicator, SingleProcess, world
from caldera.draw.line_chart import figure_svg
from caldera.draw.svg import Picture
from caldera.errors import ConfigError
from caldera.parallel.planner.cluster import (
    Cluster,
    Wire,
    adding_speed,
    bytes_of,
    flops_of,
    measured_wire,
    rate_of,
    seconds_of,
)
from caldera.parallel.planner.compression_cost import default_codecs, timed
from caldera.parallel.planner.prediction import Compute, Setting, measured
from caldera.parallel.planner.ranking import Ranking, build_strategy, rank
from caldera.parallel.planner.report import explained, families_table, given, plot, scaling_charts
from caldera.parallel.planner.workload import ModelWorkload, workload_of
from caldera.train.strategy import Strategy

if TYPE_CHECKING:
    from caldera.train.model import Model

STRONG, WEAK = "strong", "weak"
Series = tuple[Ranking, ...] | ConfigError
"""Rankings for increasing numbers of ranks, or the error for the requested number."""
LATENCY = 2e-6
"""Default latency of a message in seconds, as in a cluster's network."""
BEHIND = 5e-5
"""Additional latency of a background message in seconds, where the link was not measured.

It is close to measurements between ranks of one machine and over links of 100 Mbit/s. GPUs need no
communication thread.
"""
TURN = 1.1e-4
"""Default seconds that an exchange waits for each further rank on a core, as measured with ranks
that shared two cores."""


@dataclass(frozen=True)
class Proposal:
    """Result of `plan`: strong scaling (a fixed batch) and weak scaling (a batch per rank).

    Each of the two has a `Ranking` for every number of ranks considered, the last for the requested
    number, or the error with the reason why no strategy fits. Printing it shows both tables with
    explanations.

    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> model = cd.NeuralNetwork(nn.models.lenet5(), batch_size=256)
    >>> found = parallel.plan(model, ranks=2, link="10Gb", speed="100G")
    >>> print(found.explain("weak"))
    Proposed: DataParallel, ...
    """

    workload: ModelWorkload
    strong: Series
    weak: Series

    def ranking(self, scaling: str = STRONG) -> Ranking:
        """Return all strategies for the requested ranks; `scaling` is "strong" or "weak"."""
        return self.series(scaling)[-1]

    def series(self, scaling: str = STRONG) -> tuple[Ranking, ...]:
        """Return the rankings for 1, 2, 4, ... ranks."""
        if scaling not in (STRONG, WEAK):
            raise ConfigError.build("scaling", expected="'strong' or 'weak'", got=repr(scaling))
        found = self.strong if scaling == STRONG else self.weak
        if isinstance(found, ConfigError):
            raise found
        return found

    def strategy(self, scaling: str = STRONG, communicator: Communicator | None = None) -> Strategy:
        """Return the proposed strategy as an object for `fit(parallel=...)`.

        It requires the planned number of ranks: the ranks of `communicator`, or all processes.
        """
        best = self.ranking(scaling)
        return build_strategy(best.best.way, best.setting.ranks, communicator)

    def explain(self, scaling: str = STRONG) -> str:
        """Explain in sentences the proposal, its bottleneck, and the rejected strategies."""
        return explained(self.series(scaling), scaling)

    def table(self, scaling: str = STRONG) -> str:
        """Return a table of the best strategy of each family, the proposed one first."""
        return families_table(self.ranking(scaling))

    def plot(self, path: str | PathLike[str] | None = None) -> Picture | Path:
        """Return a chart over the number of ranks, which a notebook shows; with a path it is
        written to that .svg file, and the path is returned."""
        return plot({name: self.series(name) for name in self.scalings()}, path)

    def _repr_html_(self) -> str:
        charts = [
            chart for name in self.scalings() for chart in scaling_charts(name, self.series(name))
        ]
        return f"{figure_svg(charts)}{html_text(str(self))}"

    def scalings(self) -> list[str]:
        """Return the scalings, strong and weak, for which a strategy fits."""
        both = {STRONG: self.strong, WEAK: self.weak}
        return [name for name, found in both.items() if not isinstance(found, ConfigError)]

    def __str__(self) -> str:
        parts = [given(self.ranking(self.scalings()[0]).setting)]
        for scaling, found in ((STRONG, self.strong), (WEAK, self.weak)):
            if isinstance(found, ConfigError):
                parts.append(f"{scaling} scaling: {found}")
                continue
            head = self.ranking(scaling).setting
            parts.append(
                f"{scaling} scaling: {head.ranks} ranks, a batch of {head.batch:,} in all\n\n"
                f"{self.table(scaling)}\n\n{self.explain(scaling)}"
            )
        return "\n\n".join(parts)


def plan(
    model: Model,
    *,
    ranks: int,
    link: str | Wire | None = None,
    latency: str | float = LATENCY,
    memory: str | int | None = None,
    batch_size: int | None = None,
    batch_per_rank: int | None = None,
    ranks_per_node: int = 1,
    inside: str | Wire | None = None,
    speed: str | float | None = None,
    exact: bool = True,
    every: int = 8,
    cores: int | None = None,
) -> Proposal:
    """Propose a strategy for training a model on `ranks` ranks.

    - `link`: "100Gb", "12.5GB", or a result of `measured_wire`; None measures it between the
      processes that were started together. `latency` is the latency of a message: "2us".
    - `memory`: the memory of a rank, "80GB".
    - `batch_size`: samples of a step for strong scaling, by default the model's; `batch_per_rank`:
      samples of a rank for weak scaling, by default the same number.
    - `ranks_per_node`, `inside`: the ranks of a machine, which share its `link` and `cores`, and
      the link between them; by default they use the link between machines.
    - `speed`: operations per second of a rank, "30T"; None times the model on this machine.
    - `exact`: propose only strategies that equal training in one process, up to rounding.
    - `every`: number of steps between exchanges of local SGD and elastic averaging.

    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> model = cd.NeuralNetwork(nn.models.lenet5(), batch_size=256)
    >>> found = parallel.plan(model, ranks=16, link="10Gb", speed="100G")
    >>> found.ranking("weak").best.way.family
    'data parallel'
    """
    _check(ranks, ranks_per_node, every, speed)
    batch = model.batch_size if batch_size is None else batch_size
    each = batch if batch_per_rank is None else batch_per_rank
    if min(batch, each) < 1:
        raise ConfigError.build(
            "plan", expected="batch_size and batch_per_rank >= 1", got=f"{batch}, {each}"
        )
    # Ranks are like this machine, or cannot be measured here.
    behind, adding = (BEHIND, adding_speed()) if speed is None else (0.0, math.inf)
    at_full_speed = math.inf if speed is not None else (cores or usable_cores()) / settings.threads
    wire = _wire(link, latency, behind, adding, "link", at_full_speed)
    workload = workload_of(model)
    if speed is None:
        # Ranks that measure their link compute together, as they will in training.
        everyone = world() if link is None else SingleProcess()
        largest = max(1, min(batch, each))
        compute, workload = measured(model, workload, largest, communicator=everyone)
        compute = compute.faster(wire.sharing if link is None else 1.0)
    else:
        flops = flops_of(speed) if isinstance(speed, str) else speed
        compute = Compute.at_speed(workload, flops)
    nearby = None if inside is None else _wire(inside, latency, behind, adding, "inside")
    memory_bytes = bytes_of(memory) if isinstance(memory, str) else memory
    cluster = Cluster(ranks, wire, nearby, ranks_per_node, at_full_speed, memory_bytes, TURN)
    codes = {name: timed(code) for name, code in default_codecs(wire).items()}
    return proposed(Setting(workload, compute, cluster, batch, codes, every), each, exact=exact)


def proposed(setting: Setting, batch_per_rank: int, *, exact: bool = True) -> Proposal:
    """Return the proposal for a setting: a shared batch (strong), or one for each rank (weak)."""
    counts = _counts(setting.ranks)
    strong = _series(setting, [(count, setting.batch) for count in counts], exact)
    weak = _series(setting, [(count, count * batch_per_rank) for count in counts], exact)
    if isinstance(strong, ConfigError) and isinstance(weak, ConfigError):
        raise strong
    return Proposal(setting.workload, strong, weak)


def _series(setting: Setting, sizes: Sequence[tuple[int, int]], exact: bool) -> Series:
    """Return a ranking for each number of ranks and batch size; sizes at which none fits are
    left out.
    """
    found = []
    for ranks, batch in sizes:
        own = replace(setting, cluster=setting.cluster.of_size(ranks), batch=batch)
        try:
            found.append(rank(own, exact=exact))
        except ConfigError as error:
            if ranks == setting.ranks:
                return error
    return tuple(found)


def _counts(ranks: int) -> list[int]:
    """1, 2, 4, ... and the number itself.

    >>> _counts(6)
    [1, 2, 4, 6]
    """
    powers = [2**power for power in range(ranks.bit_length()) if 2**power < ranks]
    return [*powers, ranks]


MOST_RANKS = 1 << 24
"""More than any machine has."""


def _check(ranks: int, per_node: int, every: int, speed: str | float | None) -> None:
    if min(ranks, per_node, every) < 1:
        raise ConfigError.build(
            "plan",
            expected="ranks, ranks_per_node and every of at least 1",
            got=f"{ranks}, {per_node} and {every}",
        )
    within("plan", "ranks", ranks, 1, MOST_RANKS)
    if speed is not None and not isinstance(speed, str) and not 0 < speed < math.inf:
        raise refusal("plan", "speed", "operations a second, above 0", speed)


def _wire(
    given: str | Wire | None,
    latency: str | float,
    behind: float,
    adding: float,
    where: str,
    at_full_speed: float = math.inf,
) -> Wire:
    if isinstance(given, Wire):
        return given
    if given is None:
        everyone = world()
        if everyone.size == 1:
            raise ConfigError.build(
                where,
                expected="a speed such as 100Gb, or several processes to measure it between",
                got="neither",
                hint="give --link, or start it with mpiexec",
            )
        together = max(map(everyone.nodes.count, everyone.nodes))
        return measured_wire(everyone, max(1.0, together / at_full_speed))
    seconds = seconds_of(latency) if isinstance(latency, str) else float(latency)
    return Wire(seconds, rate_of(given, where), adding, behind=seconds + behind)
