"""Ranking of training strategies by predicted time, and construction of the selected one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from caldera import parallel
from caldera.comm import Communicator, world
from caldera.compress import Compressor
from caldera.errors import ConfigError
from caldera.parallel.planner import asynchronous_cost, data_parallel_cost, hybrid_cost
from caldera.parallel.planner.prediction import Prediction, Setting, TrainingWay
from caldera.train.strategy import SingleProcessStrategy, Strategy

CLEARLY = 1.02
"""Ratio below which two times count as equal."""
_FAMILIES = (
    "one process",
    data_parallel_cost.DATA,
    data_parallel_cost.SHARDED,
    hybrid_cost.TENSOR,
    hybrid_cost.PIPELINE,
    hybrid_cost.HYBRID,
    data_parallel_cost.COMPRESSED,
    asynchronous_cost.AVERAGING,
    asynchronous_cost.SERVER,
)
"""The simplest first."""


@dataclass(frozen=True)
class RankedStrategy:
    """A strategy and its predicted cost."""

    way: TrainingWay
    prediction: Prediction


@dataclass(frozen=True)
class Ranking:
    """All strategies for one setting: usable ones by speed, then rejected ones.

    `best` is the fastest eligible strategy, or a simpler one of nearly the same speed.
    """

    setting: Setting
    entries: tuple[RankedStrategy, ...]
    best: RankedStrategy

    def usable(self) -> list[RankedStrategy]:
        """Return strategies that can be used."""
        return [each for each in self.entries if not each.prediction.refused]

    def refused(self) -> list[RankedStrategy]:
        """Return strategies that cannot be used."""
        return [each for each in self.entries if each.prediction.refused]

    def families(self, entries: Iterable[RankedStrategy]) -> dict[str, RankedStrategy]:
        """Return the first of each family, the chosen one before all."""
        chosen = [self.best] if self.best in entries else []
        found: dict[str, RankedStrategy] = {}
        for entry in [*chosen, *entries]:
            found.setdefault(entry.way.family, entry)
        return found


def all_ways(setting: Setting) -> Iterator[TrainingWay]:
    """Yield all known strategies for this number of ranks."""
    if setting.ranks == 1:
        yield _alone()
        return
    yield from data_parallel_cost.ways(setting.codes)
    yield from hybrid_cost.ways(setting.ranks)
    yield from asynchronous_cost.ways(setting.ranks, setting.every)


def rank(setting: Setting, *, exact: bool = True) -> Ranking:
    """Predict everything; with `exact` only what equals one process may be chosen."""
    entries = [RankedStrategy(way, way.predict(setting)) for way in all_ways(setting)]
    entries.sort(key=lambda each: (bool(each.prediction.refused), each.prediction.seconds))
    # An ensemble trains no single model faster than one rank does.
    allowed = [
        each
        for each in entries
        if not each.prediction.refused
        and (each.way.exact or (not exact and each.way.family != asynchronous_cost.ENSEMBLE))
    ]
    if not allowed:
        closest = min(entries, key=lambda each: each.prediction.memory or float("inf"))
        raise ConfigError.build(
            f"plan of {setting.ranks} ranks",
            expected="a way to train that fits",
            got=f"none; {closest.way.name} {closest.prediction.refused}",
            hint="give more memory or ranks, or another batch size",
        )
    return Ranking(setting, tuple(entries), _best(allowed))


def _best(allowed: Sequence[RankedStrategy]) -> RankedStrategy:
    """Return the first, the fastest.

    But of families that are as fast to all appearances the simplest.
    """
    limit = CLEARLY * allowed[0].prediction.seconds
    close = [entry for entry in allowed if entry.prediction.seconds <= limit]
    return min(close, key=lambda entry: _FAMILIES.index(entry.way.family))


def _alone() -> TrainingWay:
    def cost(setting: Setting) -> Prediction:
        seconds = setting.seconds(setting.batch)
        memory = setting.workload.memory(setting.batch)
        return Prediction(setting.batch, seconds, seconds, memory=memory)

    return TrainingWay(_FAMILIES[0], "one process", ("", {}), True, cost)


def what_if(ranking: Ranking) -> dict[str, float]:
    """Return the speed-up of the best strategy for several improvements of the machine."""
    setting, way = ranking.setting, ranking.best.way
    changed = {
        "compute": replace(setting, compute=setting.compute.faster(2)),
        "bandwidth": setting.with_wire(bandwidth=2),
        "latency": setting.with_wire(latency=0.5),
    }
    before = ranking.best.prediction.seconds
    return {name: before / (way.cost(each).seconds or before) for name, each in changed.items()}


def build_strategy(way: TrainingWay, ranks: int, communicator: Communicator | None) -> Strategy:
    """Return the strategy of `caldera.parallel` for a row of the ranking."""
    name, arguments = way.maker
    if not name:
        return SingleProcessStrategy()
    where = f"strategy of {way.name}"
    made: Any = getattr(parallel, name, None)
    if made is None:
        raise ConfigError.build(
            where,
            expected=f"parallel.{name}",
            got="a Caldera that has none",
            hint="choose another row of the table",
        )
    others = sorted(set(arguments) - set(inspect.signature(made).parameters))
    if others:
        raise ConfigError.build(
            where,
            expected=f"a parallel.{name} that takes {', '.join(others)}",
            got="one that does not",
            hint=f"make it yourself, for {dict(arguments)}",
        )
    everyone = world() if communicator is None else communicator
    if everyone.size != ranks:
        raise ConfigError.build(
            where,
            expected=f"{ranks} ranks, as was planned",
            got=f"{everyone.size}",
            hint="start that number of ranks, or plan for the present ones",
        )
    return made(**{key: _own(value) for key, value in arguments.items()}, communicator=everyone)


def _own(value: Any) -> Any:
    """Compressors store their error, so each strategy needs a separate one."""
    return type(value)(**value.arguments()) if isinstance(value, Compressor) else value
