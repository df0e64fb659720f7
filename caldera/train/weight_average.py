"""`WeightAverage`: a model whose weights are a moving mean over the last steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.base.arguments import guarded, require
from caldera.compiler.lazy import Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.tensor.dtype import is_float
from caldera.train.arguments import plain_number
from caldera.train.callbacks import Callback
from caldera.train.saving.snapshot import model_variables

if TYPE_CHECKING:
    from caldera.train.run import Run


@guarded
class WeightAverage(Callback):
    """Keeps an exponential moving average of the weights, and assigns it to the model at the end.

    After step t the average is d * average + (1 - d) * weights, with d = min(decay, (1 + t) / (10 +
    t)), so that the first steps are soon forgotten. Running statistics are averaged too. Validation
    results in the history refer to the trained weights; `evaluate` after `fit` uses the average
    (Polyak and Juditsky, 1992).

    >>> import caldera as cd
    >>> from caldera import nn
    >>> digits = cd.data.digits()
    >>> model = cd.NeuralNetwork([nn.Input(digits.shape), nn.Flatten(), nn.Dense(10)], epochs=5)
    >>> history = model.fit(digits.train, callbacks=[cd.WeightAverage(0.99)], verbose=0)
    >>> model.evaluate(digits.test)["accuracy"] > 0.7
    True
    """

    def __init__(self, decay: float = 0.999) -> None:
        self.decay = plain_number(decay, "decay", 0, "WeightAverage")
        require(self.decay < 1, "WeightAverage", "0 <= decay < 1", decay)
        self.steps = 0
        self._averages: dict[str, Variable] = {}
        self._taken: dict[str, np.ndarray] = {}
        self._plan: Plan | None = None

    def run_begins(self, run: Run) -> None:
        require(
            run.communicator.size == 1 or run.steps.strategy.replicas_are_equal,
            "WeightAverage",
            "all weights on every rank after each step",
            type(run.steps.strategy).__name__,
            "average with parallel.DataParallel(), or in one process",
        )
        weights = {
            name: each for name, each in model_variables(run.model).items() if is_float(each.dtype)
        }
        if self._taken:
            # Restored from a checkpoint.
            start, self._taken = self._taken, {}
        else:
            start, self.steps = {name: each.numpy() for name, each in weights.items()}, 0
        self._averages = {
            name: op.var(
                f"average/{name}",
                each.shape,
                fill=start[name],
                dtype=each.dtype,
                device=run.model.device,
            )
            for name, each in weights.items()
        }
        rate = op.input("rate", (), "float64")
        self._plan = compile(
            [
                op.assign(mean, mean + op.cast(rate, mean.dtype) * (weights[name] - mean))
                for name, mean in self._averages.items()
            ],
            device=run.model.device,
            remember=False,
        )

    def batch_ends(self, run: Run) -> None:
        self.steps += 1
        assert self._plan is not None
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        self._plan.run({"rate": np.array(1 - decay)})

    def run_ends(self, run: Run) -> None:
        if self.steps:
            variables = model_variables(run.model)
            for name, mean in self._averages.items():
                variables[name].assign(mean.numpy())
        self._plan = None

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: mean.numpy() for name, mean in self._averages.items()}

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.steps, self._taken = int(state["steps"]), dict(arrays)
