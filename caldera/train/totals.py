"""Sums over an epoch, kept in variables: a step adds to them without the host looking."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.lazy import Expr, Variable
from caldera.nn.metrics import Metric


class Totals:
    """The loss and the metrics of the samples seen since the last `reset`."""

    def __init__(self, prefix: str, metrics: list[Metric], device: Any) -> None:
        self._prefix = prefix
        self._metrics = metrics
        self._device = device
        self._sums: dict[str, Variable] = {}

    def add(self, loss: Expr, weight: Expr, metric_sums: list[dict[str, Expr]]) -> list[Expr]:
        """The assignments that add one batch: its summed loss, its weight, its metrics' sums."""
        parts = {"loss": loss, "weight": weight}
        for metric, sums in zip(self._metrics, metric_sums, strict=True):
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
        """The sums, by name, for checkpoints."""
        return {f"{self._prefix}/{name}": variable for name, variable in self._sums.items()}

    def loss(self) -> float:
        """The mean loss so far (nan before the first batch)."""
        weight = self._sums["weight"].numpy()
        return float(self._sums["loss"].numpy() / weight) if weight else float("nan")

    def results(self) -> dict[str, Any]:
        """The mean loss and the value of every metric."""
        found: dict[str, Any] = {"loss": self.loss()}
        for metric in self._metrics:
            begin = f"{metric.name}/"
            sums = {
                name.removeprefix(begin): variable.numpy()
                for name, variable in self._sums.items()
                if name.startswith(begin)
            }
            found[metric.name] = metric.result(sums)
        return found
