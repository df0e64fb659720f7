"""Plans of prediction, by the number and the sizes of samples."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.config import settings
from caldera.compiler.lazy import compile
from caldera.compiler.plan.cache import RecentPlans
from caldera.compiler.plan.plan import Plan
from caldera.core.graph import program_of
from caldera.core.memory.pool import rounded_up
from caldera.train.step import MOST_SIZES, device_of_plans
from caldera.train.step_graph import main_output

if TYPE_CHECKING:
    from caldera.train.model import Model

EXACT = 8
"""Largest number of samples with an exact plan; larger numbers are padded."""
PREDICTED_BYTES = 2 << 20
"""Largest value of a prediction batch in bytes, chosen to fit into a core's caches."""
PREDICTED_BYTES_ON_CARD = 256 << 20
MOST_PREDICTED = 1 << 14
"""Maximum number of samples in one prediction batch."""


class Predictors(RecentPlans):
    """The plans with which a model predicts, by the samples they take."""

    def __init__(self) -> None:
        super().__init__(MOST_SIZES)
        self._element_bytes: float | None = None
        self._last: tuple[tuple[int, ...], np.dtype[Any], Hashable] = ((), np.dtype(bool), None)

    def repeat(self, given: Any) -> np.ndarray | None:
        """Return the prediction for an array of the last array's shape and dtype, by its plan.

        None for any other array.
        """
        shape, dtype, key = self._last
        if type(given) is not np.ndarray or given.shape != shape or given.dtype != dtype:
            return None
        plan = self.get(key)
        return None if plan is None else plan.run({"x0": given})[0].numpy().copy()

    def predict(
        self, model: Model, arrays: Sequence[np.ndarray], batch_size: int | None
    ) -> np.ndarray:
        """Return the main output for each sample, in batches of up to `batch_size` samples."""
        samples, is_chosen = len(arrays[0]), batch_size is None
        specs = tuple(
            (array.shape[1:], dtype)
            for array, (_, dtype) in zip(arrays, model.signature.inputs, strict=True)
        )
        if model.sequences_kept:
            batch_size = samples = model.sequences_kept
            require(
                len(arrays[0]) == samples,
                "predict",
                f"{samples} sequences, the number of the stored states",
                len(arrays[0]),
            )
        elif batch_size is None:
            few = samples <= model.batch_size
            batch_size = model.batch_size if few else self._chosen(model, arrays)
        count = samples if model.sequences_kept else min(batch_size, filled_up(samples))
        plan = self._plan(model, count, specs)
        parts = []
        for start in range(0, samples, count):
            feeds = {
                f"x{i}": _padded(x[start : start + count], count) for i, x in enumerate(arrays)
            }
            parts.append(plan.run(feeds)[0].numpy()[: samples - start].copy())
        if len(parts) == 1:
            if is_chosen and len(arrays) == 1 and count == samples and not model.sequences_kept:
                self._last = arrays[0].shape, arrays[0].dtype, (count, specs)
            return parts[0]
        if not parts:
            name = next(iter(model.signature.outputs))
            return np.zeros((0, *model.signature.outputs[name]), model.dtype)
        return np.concatenate(parts)

    def _chosen(self, model: Model, arrays: Sequence[np.ndarray]) -> int:
        """Return the batch size whose largest intermediate array fits in cache or GPU memory."""
        if self._element_bytes is None:
            inputs, outputs, _ = model.expressions(model.samples_traced)
            made = {each.node for each in inputs}
            for node in program_of([each.node for each in outputs.values()]).order():
                if not made.isdisjoint(node.inputs):
                    made.add(node)
            largest = max(spec.nbytes for node in made for spec in node.outputs)
            self._element_bytes = largest / math.prod(inputs[0].shape)
        room = PREDICTED_BYTES if model.device.is_host else PREDICTED_BYTES_ON_CARD
        room = min(room, (settings.memory_limit or room << 3) >> 3)
        # Samples may be larger than those traced, where their size is open.
        fitting = int(room / (self._element_bytes * arrays[0][0].size))
        return max(model.batch_size, min(1 << fitting.bit_length() >> 1, MOST_PREDICTED))

    def _plan(
        self, model: Model, count: int, specs: tuple[tuple[tuple[int, ...], str], ...]
    ) -> Plan:
        plan = self.get((count, specs))
        if plan is None:
            _, outputs, traced = model.expressions_for(specs, count)
            _, prediction = main_output(outputs, model.objective)
            # The plan is stored with the model.
            plan = compile(
                [prediction, *traced.updates],
                device=device_of_plans(model),
                precision=model.precision,
                remember=False,
            )
            self.add((count, specs), plan)
        return plan


def filled_up(samples: int) -> int:
    """Return the plan size for a number of samples; less than a quarter is padding.

    >>> [filled_up(samples) for samples in (0, 1, 7, 8, 9, 11, 100, 1000)]
    [1, 1, 7, 8, 10, 12, 112, 1024]
    """
    return max(samples, 1) if samples <= EXACT else rounded_up(samples)


def _padded(array: np.ndarray, count: int) -> np.ndarray:
    """Pad the last samples to a whole batch; results for the padding are dropped."""
    missing = count - len(array)
    if not missing:
        return array
    return np.concatenate([array, np.repeat(array[-1:], missing, axis=0)])
