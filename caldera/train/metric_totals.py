"""Sums over an epoch, kept in variables: a step adds to them without the host looking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.core.memory import PendingRead
from caldera.nn.metrics import MeanMetric, Metric

SumOverRanks = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class MetricTotals:
    """The loss and the metrics of the samples seen since the last `reset`."""

    def __init__(
        self, prefix: str, metrics: Sequence[Metric], device: Any, *, shows_loss: bool = True
    ) -> None:
        self._shows_loss = shows_loss
        self._prefix = prefix
        self._metrics = {metric.name: metric for metric in metrics}
        self._device = device
        self._sums: dict[str, Variable] = {}

    def add(
        self, loss: Expr, weight: Expr, metric_sums: Sequence[tuple[Metric, dict[str, Expr]]]
    ) -> list[Expr]:
        """Return the assignments that add a batch: its summed loss, its weight, its metric sums."""
        parts = {"loss": loss, "weight": weight}
        for metric, sums in metric_sums:
            # Metrics that layers add are only known once the network has been traced.
            self._metrics.setdefault(metric.name, metric)
            parts |= {f"{metric.name}/{name}": value for name, value in sums.items()}
        return [self._added(name, value) for name, value in parts.items()]

    def _added(self, name: str, value: Expr) -> Expr:
        if name not in self._sums:
            # float64 counts any number of samples exactly.
            self._sums[name] = op.var(
                f"{self._prefix}/{name}", value.shape, dtype="float64", device=self._device
            )
        total = self._sums[name]
        return op.assign(total, total + op.cast(value, "float64"))

    def reset(self) -> None:
        """Start again from zero."""
        for variable in self._sums.values():
            variable.assign(np.zeros(variable.shape))

    def variables(self) -> dict[str, Variable]:
        """Return the sums, by name, for checkpoints."""
        return {f"{self._prefix}/{name}": variable for name, variable in self._sums.items()}

    def loss(self) -> float:
        """Return the mean loss so far (nan before the first batch); this waits for the device."""
        return self.begin_read("loss", "weight").loss()

    def results(self, sum_over_ranks: SumOverRanks | None = None) -> dict[str, Any]:
        """Return the mean loss and the value of every metric; this waits for the device.

        `sum_over_ranks` adds up, over all ranks, the sums that include only this rank's samples.
        """
        read = self.begin_read()
        return (read if sum_over_ranks is None else read.over(sum_over_ranks)).results()

    def begin_read(self, *names: str) -> TotalsReading:
        """Start reading the sums after the steps launched so far, without waiting.

        Without names, all sums are read.
        """
        chosen = {name: self._sums[name] for name in names or self._sums}
        return TotalsReading(
            list(self._metrics.values()),
            {name: variable.tensor.memory.begin_read() for name, variable in chosen.items()},
            {name: variable.shape for name, variable in chosen.items()},
            self._shows_loss,
        )


class AddedMetric(MeanMetric):
    """Mean of a value that a layer adds as a metric; see `Layer.add_metric`."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def per_sample(self, prediction: Any, target: Any) -> Expr:
        """Return the prediction, which is the value that the layer added."""
        return prediction


@dataclass(frozen=True)
class TotalsReading:
    """Sums whose copies from the device may be pending."""

    metrics: Sequence[Metric]
    readings: dict[str, PendingRead]
    shapes: dict[str, tuple[int, ...]]
    shows_loss: bool = True
    """False if results leave out the sum of the losses, which are metrics themselves."""

    def done(self) -> bool:
        """Return True once all sums have arrived."""
        return all(reading.done() for reading in self.readings.values())

    def over(self, sum_over_ranks: SumOverRanks) -> TotalsReading:
        """Return the sums over all ranks."""
        sums = sum_over_ranks([self._sum(name) for name in self.readings])
        known = {
            name: PendingRead(each.ravel()) for name, each in zip(self.readings, sums, strict=True)
        }
        return replace(self, readings=known)

    def loss(self) -> float:
        """Return the mean loss (nan before the first batch)."""
        weight = self._sum("weight")
        return float(self._sum("loss") / weight) if weight else float("nan")

    def results(self) -> dict[str, Any]:
        """Return the mean loss and the value of every metric."""
        found: dict[str, Any] = {"loss": self.loss()} if self.shows_loss else {}
        for metric in self.metrics:
            begin = f"{metric.name}/"
            sums = {
                name.removeprefix(begin): self._sum(name)
                for name in self.readings
                if name.startswith(begin)
            }
            found[metric.name] = metric.result(sums)
        return found

    def _sum(self, name: str) -> np.ndarray:
        return self.readings[name].numbers().reshape(self.shapes[name])
