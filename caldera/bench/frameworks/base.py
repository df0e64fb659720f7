"""Interface between a worker and a framework: tasks to time, and trainers that are also checked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caldera import optim
from caldera.bench.equality import REFERENCE_PRECISION
from caldera.bench.parts import OperatorPart
from caldera.bench.workloads import (
    Case,
    ConvolutionCase,
    FormulaCase,
    InputCase,
    ProductCase,
    Rule,
    TrainingCase,
    UpdateCase,
)
from caldera.bench.workloads.base import read_batches
from caldera.errors import ConfigError
from caldera.nn.noise import Dropout
from caldera.train.neural_network import NeuralNetwork

Array = np.ndarray[Any, np.dtype[Any]]
Batches = Sequence[tuple[Array, Array]]
"""Inputs and classes."""


class BenchTask(ABC):
    """Something to compute again and again."""

    steps_per_call = 1
    held_for_others = 0
    """Bytes that are here only because the network was built in Caldera first."""

    @abstractmethod
    def call(self) -> None:
        """Compute once; the result may still be on its way."""

    def wait(self) -> None:  # noqa: B027 - most frameworks compute at once
        """Wait until all submitted work is done."""

    @abstractmethod
    def results(self) -> list[Array]:
        """Return the results of one computation from the initial state, for comparison."""


class EpochTask(BenchTask):
    """Batches of a loader, epoch after epoch; the result is the sum of the inputs of an epoch."""

    def __init__(self, loader: Any, inputs_of: Callable[[Any], Array]) -> None:
        self._loader = loader
        self._inputs_of = inputs_of
        self._batches = iter(loader)

    def call(self) -> None:
        if next(self._batches, None) is None:
            self._batches = iter(self._loader)
            next(self._batches)

    def results(self) -> list[Array]:
        sums = (self._inputs_of(batch).sum(0, np.float64) for batch in self._loader)
        return [sum(sums, np.zeros(()))]


@dataclass
class FunctionTask(BenchTask):
    """A function without arguments, its results as arrays, and a function that waits for its
    result.
    """

    run: Callable[[], Any]
    computed: Callable[[], list[Array]]
    ready: Callable[[Any], object] = id
    last: Any = None

    def call(self) -> None:
        self.last = self.run()

    def wait(self) -> None:
        self.ready(self.last)

    def results(self) -> list[Array]:
        return self.computed()


def updating(
    run: Callable[[], Any],
    parameters: Callable[[], list[Array]],
    ready: Callable[[Any], object] = id,
) -> FunctionTask:
    """Return a task whose results are the parameters after a call."""

    def computed() -> list[Array]:
        run()
        return parameters()

    return FunctionTask(run, computed, ready)


class Trainer(BenchTask):
    """A network in training; `call` makes a step (or several) on the next of its batches."""

    def __init__(self, case: TrainingCase, dtype: str, given: Batches) -> None:
        self.case = case
        self.dtype = dtype
        self.given = given
        self._next = 0

    def turn(self) -> int:
        """Return the number of the next batch."""
        number = self._next % len(self.given)
        self._next += 1
        return number

    @abstractmethod
    def gradients(self) -> tuple[float, list[Array]]:
        """Return the loss on the first batch and its gradients, as Caldera orders parameters."""

    @abstractmethod
    def losses(self, steps: int) -> list[float]:
        """Run steps and return their losses."""

    @abstractmethod
    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        """The loss on a batch from outside and its gradients, with the weights as they are."""

    @abstractmethod
    def weights(self) -> list[Array]:
        """Return the parameters as they are now, as Caldera orders them."""

    @abstractmethod
    def load(self, weights: Sequence[Array]) -> None:
        """Replace the weights."""

    @abstractmethod
    def train(self, x: Array, y: Array) -> None:
        """A step on a batch from outside."""

    @abstractmethod
    def predict(self, x: Array) -> Array:
        """Return the scores of samples, computed by the network in inference mode."""

    def results(self) -> list[Array]:
        return self.gradients()[1]


class Restartable(Trainer):
    """Trainer for a GPU that can be restarted, so that no step is compiled twice."""

    @abstractmethod
    def restart(self) -> None:
        """Restore the initial weights and the first batch."""


OPERATIONS: Mapping[type[Case], str] = {
    ConvolutionCase: "convolution",
    ProductCase: "product",
    FormulaCase: "formula",
    UpdateCase: "update",
    InputCase: "loader",
}
"""The method of a framework that builds the task of a case; it may lack some."""


class Framework(ABC):
    """A framework in one setting, inside its own process.

    In addition to the framework's own options, there are `device` ("cpu" or a GPU), `precision` and
    `data`, the folder with the batches of the measured case.
    """

    def __init__(self, options: Mapping[str, Any], threads: int) -> None:
        self.options = dict(options)
        self.threads = threads
        self.device: str = self.options.get("device", "cpu")
        self.precision: str = self.options.get("precision", REFERENCE_PRECISION)

    @property
    def on_card(self) -> bool:
        """True if it computes on a device with separate memory."""
        return self.device != "cpu"

    def batches(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Batches:
        """Return the batches of a case, or the first samples of each."""
        folder = self.options.get("data")
        return read_batches(case, Path(folder), dtype, batch) if folder else case.data(dtype, batch)

    def reset_card_peak(self) -> None:  # noqa: B027 - only some can
        """Reset the peak of GPU memory."""

    def card_peak(self) -> int:
        """Return the peak of GPU memory in bytes, as counted by the framework."""
        return 0

    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Return the names and versions of the libraries that compute."""

    @abstractmethod
    def trainer(self, case: TrainingCase, dtype: str, batch: int | None = None) -> Trainer:
        """Return the network of a case with its initial weights."""

    def custom(self, operator: OperatorPart, inputs: Sequence[Array], seed: Array) -> BenchTask:
        """Return a user's operator as an operator of this framework.

        `seed` is its result's gradient.
        """
        raise ConfigError.build(
            type(self).__name__, expected="a framework with operators of a user", got="this one"
        )

    def task(self, case: Case) -> BenchTask:
        """Return the task that computes a case; OPERATIONS names the method that builds it."""
        if isinstance(case, TrainingCase):
            return self.trainer(case, "float32")
        build = getattr(self, OPERATIONS.get(type(case), ""), None)
        if build is None:
            raise ConfigError.build(
                type(self).__name__, expected="a case that is measured with it", got=case.name
            )
        task: BenchTask = build(case)
        return task


def caldera_optimizer(rule: Rule) -> optim.Optimizer:
    """Return a rule as Caldera's optimizer.

    >>> from caldera.bench.workloads import Rule
    >>> type(caldera_optimizer(Rule("adam", 1e-3))).__name__
    'Adam'
    """
    if rule.name == "sgd":
        return optim.SGD(rule.learning_rate, momentum=rule.momentum, weight_decay=rule.weight_decay)
    made: dict[str, type[optim.Optimizer]] = {
        "adam": optim.Adam,
        "adamw": optim.AdamW,
        "rmsprop": optim.RMSProp,
    }
    return made[rule.name](rule.learning_rate, weight_decay=rule.weight_decay)


def built(
    case: TrainingCase, dtype: str = "float32", device: str = "cpu", precision: str | None = None
) -> NeuralNetwork:
    """Return the network of a case in Caldera, dropout off."""
    model = NeuralNetwork(
        case.layers(),
        loss="cross_entropy",
        optimizer=caldera_optimizer(case.rule),
        metrics=[],
        batch_size=case.batch,
        dtype=dtype,
        precision=precision,
        seed=0,
        device=device,
    )
    for layer in model.walk():
        if isinstance(layer, Dropout):
            layer.rate = 0.0
    return model


def initial_weights(model: NeuralNetwork) -> list[Array]:
    """Return the initial parameters of a network."""
    return [parameter.numpy() for parameter in model.parameters()]


def held_by(model: NeuralNetwork) -> int:
    """Return the bytes of a network's variables, which its translation stores as well."""
    kept = (*model.parameters(), *model.states())
    return sum(each.size * np.dtype(each.dtype).itemsize for each in kept)


def as_dtype(arrays: Sequence[Array], dtype: str) -> list[Array]:
    """Return arrays in the precision of a trainer."""
    return [array.astype(dtype) for array in arrays]
