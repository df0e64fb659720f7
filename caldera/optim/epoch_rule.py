"""Learning rates and batch sizes that are decided between epochs, from what the epoch gave.

The training loop starts with `rule.value`, runs an epoch, calls `after_epoch` with the epoch's
metrics (the same numbers on every rank), and goes on with the value it gets. A learning rate is a
variable of the plan, so nothing is compiled anew; `Optimizer.after_epoch` does all of this for it.
A rule is saved as `config()` and `state()`, and continues after `restore(state)`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from typing import Any, ClassVar

from caldera.base.configurable import Configurable, Family
from caldera.base.registry import nearest
from caldera.errors import ConfigError
from caldera.optim.schedule import require_count, require_positive


class EpochRule(Configurable, ABC):
    """A number that changes between epochs. A new one says what it `controls` and writes `next`.

    Everything that `next` remembers is in `memory`, a dict that JSON can hold.

    >>> from caldera import optim
    >>> class Halving(optim.EpochRule):
    ...     controls = "learning_rate"
    ...     def next(self, metrics):
    ...         return self.value / 2
    >>> rule = Halving(0.5)
    >>> rule.after_epoch({"loss": 1.0}), rule.state()
    (0.25, {'value': 0.25, 'memory': {}})
    """

    controls: ClassVar[str]
    """"learning_rate" or "batch_size"."""

    def __init__(self, initial: float) -> None:
        self.value = initial
        self.memory: dict[str, Any] = {}

    @abstractmethod
    def next(self, metrics: Mapping[str, Any]) -> float:
        """The value for the next epoch, from the metrics of the one that ended."""

    def decides_by(self, metrics: Container[str]) -> str:
        """The one of these metrics that it looks at; empty if it looks at none."""
        return ""

    def after_epoch(self, metrics: Mapping[str, Any]) -> float:
        """Decide, remember and give back the value for the next epoch."""
        self.value = self.next(metrics)
        return self.value

    def state(self) -> dict[str, Any]:
        """What a checkpoint must keep; JSON can hold it."""
        return {"value": self.value, "memory": dict(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that was kept."""
        if set(state) != {"value", "memory"} or set(state["memory"]) != set(self.memory):
            raise ConfigError.build(
                type(self).__name__, expected=f"a state like {self.state()}", got=f"{state}"
            )
        self.value = state["value"]
        self.memory = dict(state["memory"])


epoch_rules: Family[EpochRule] = Family("epoch rule", EpochRule)


@epoch_rules.register("reduce_on_plateau")
class ReduceOnPlateau(EpochRule):
    """A learning rate that is multiplied by `factor` when a metric has stopped getting better.

    It is after more than `patience` epochs in a row in which `monitor` (the validation loss, or the
    loss if there is none) did not improve on its best value by the part `threshold` of it; then it
    waits `cooldown` epochs before it counts again, and never goes below `minimum` (as PyTorch's
    ReduceLROnPlateau).

    >>> from caldera import optim
    >>> rule = optim.ReduceOnPlateau(0.5, factor=0.5, patience=1)
    >>> [rule.after_epoch({"loss": loss}) for loss in (2.0, 1.0, 1.0, 1.0, 0.5)]
    [0.5, 0.5, 0.5, 0.25, 0.25]
    >>> adam = optim.Adam(optim.ReduceOnPlateau(1e-3, monitor="accuracy", larger_is_better=True))
    """

    controls = "learning_rate"

    def __init__(
        self,
        initial: float,
        *,
        factor: float = 0.1,
        patience: int = 10,
        monitor: str | None = None,
        larger_is_better: bool = False,
        threshold: float = 1e-4,
        cooldown: int = 0,
        minimum: float = 0.0,
    ) -> None:
        require_positive("ReduceOnPlateau", initial)
        if not 0 < factor < 1:
            raise ConfigError.build("ReduceOnPlateau", expected="0 < factor < 1", got=f"{factor}")
        if min(patience, threshold, cooldown, minimum) < 0:
            raise ConfigError.build(
                "ReduceOnPlateau",
                expected="patience, threshold, cooldown, minimum >= 0",
                got=f"{patience}, {threshold}, {cooldown} and {minimum}",
            )
        super().__init__(initial)
        self.factor = factor
        self.patience = patience
        self.monitor = monitor
        self.larger_is_better = larger_is_better
        self.threshold = threshold
        self.cooldown = cooldown
        self.minimum = minimum
        self.memory = {"best": None, "bad epochs": 0, "waiting": 0}

    def decides_by(self, metrics: Container[str]) -> str:
        return self.monitor or ("val_loss" if "val_loss" in metrics else "loss")

    def next(self, metrics: Mapping[str, Any]) -> float:
        monitor = self.decides_by(metrics)
        if monitor not in metrics:
            raise ConfigError.build(
                "ReduceOnPlateau",
                expected=f"the metric {monitor!r} that it monitors",
                got=", ".join(metrics) or "no metrics",
                hint=nearest(monitor, metrics),
            )
        value = float(metrics[monitor])
        memory = self.memory
        if self._is_better(value, memory["best"]):
            memory["best"] = value
            memory["bad epochs"] = 0
        else:
            memory["bad epochs"] += 1
        if memory["waiting"] > 0:
            memory["waiting"] -= 1
            memory["bad epochs"] = 0
        if memory["bad epochs"] <= self.patience:
            return self.value
        memory["waiting"] = self.cooldown
        memory["bad epochs"] = 0
        return max(self.value * self.factor, self.minimum)

    def _is_better(self, value: float, best: float | None) -> bool:
        if best is None:
            return not math.isnan(value)
        margin = abs(best) * self.threshold
        return value > best + margin if self.larger_is_better else value < best - margin


@epoch_rules.register("growing_batch")
class GrowingBatch(EpochRule):
    """A batch size that is multiplied by `factor` after every `every` epochs, up to `limit`.

    It does for the noise of the gradients what a falling learning rate does, and larger batches use
    a machine better (Smith, Kindermans, Ying and Le, 2018).

    >>> from caldera import optim
    >>> rule = optim.GrowingBatch(64, factor=2, every=2, limit=200)
    >>> [rule.after_epoch({}) for _ in range(6)]
    [64, 128, 128, 200, 200, 200]
    """

    controls = "batch_size"

    def __init__(
        self, initial: int, *, factor: float = 2.0, every: int = 1, limit: int | None = None
    ) -> None:
        require_count("GrowingBatch", "an initial batch size", initial)
        require_count("GrowingBatch", "every", every)
        if not 1 <= factor < math.inf:
            raise ConfigError.build(
                "GrowingBatch", expected="a factor of 1 or more", got=f"{factor}"
            )
        if limit is not None and limit < initial:
            raise ConfigError.build(
                "GrowingBatch",
                expected=f"a limit of at least {initial}, the first size",
                got=f"{limit}",
            )
        super().__init__(initial)
        self.initial = initial
        self.factor = factor
        self.every = every
        self.limit = limit
        self.memory = {"epochs": 0}

    def next(self, metrics: Mapping[str, Any]) -> int:
        self.memory["epochs"] += 1
        grown = round(self.initial * self.factor ** (self.memory["epochs"] // self.every))
        return grown if self.limit is None else min(grown, self.limit)
