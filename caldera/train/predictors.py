"""What a network gives for samples, however many there are: a few plans, one for each size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.compiler.lazy import compile
from caldera.compiler.plan.cache import RecentPlans
from caldera.compiler.plan.plan import Plan
from caldera.core.memory.pool import rounded_up
from caldera.train.step import MOST_SIZES, device_of_plans
from caldera.train.step_graph import main_output

if TYPE_CHECKING:
    from caldera.train.model import Model

EXACT = 8
"""Samples up to which every number has a plan of its own."""


class Predictors(RecentPlans):
    """The plans with which a model predicts, by the samples they take."""

    def __init__(self) -> None:
        super().__init__(MOST_SIZES)

    def predict(self, model: Model, arrays: Sequence[np.ndarray], batch_size: int) -> np.ndarray:
        """The main output for each sample; so many samples at most are computed at once."""
        samples = len(arrays[0])
        count = min(batch_size, filled_up(samples))
        specs = tuple(
            (array.shape[1:], dtype)
            for array, (_, dtype) in zip(arrays, model.signature.inputs, strict=True)
        )
        plan = self._plan(model, count, specs)
        parts = []
        for start in range(0, samples, count):
            feeds = {
                f"x{i}": _padded(x[start : start + count], count) for i, x in enumerate(arrays)
            }
            parts.append(plan.run(feeds)[0].numpy()[: samples - start].copy())
        if not parts:
            name = next(iter(model.signature.outputs))
            return np.zeros((0, *model.signature.outputs[name]), model.dtype)
        return np.concatenate(parts)

    def _plan(
        self, model: Model, count: int, specs: tuple[tuple[tuple[int, ...], str], ...]
    ) -> Plan:
        plan = self.get((count, specs))
        if plan is None:
            _, outputs, _ = model.expressions_for(specs, count)
            _, prediction = main_output(outputs, model.objective)
            # It goes with the model.
            plan = compile(
                prediction,
                device=device_of_plans(model),
                precision=model.precision,
                remember=False,
            )
            self.add((count, specs), plan)
        return plan


def filled_up(samples: int) -> int:
    """The size of the plan for so many samples: less than a quarter of it is filling.

    >>> [filled_up(samples) for samples in (0, 1, 7, 8, 9, 11, 100, 1000)]
    [1, 1, 7, 8, 10, 12, 112, 1024]
    """
    return max(samples, 1) if samples <= EXACT else rounded_up(samples)


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    """The last samples filled up to a whole batch; what is computed for the filling is dropped."""
    missing = count - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
