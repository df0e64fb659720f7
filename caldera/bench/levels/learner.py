"""A network with weights, in any framework: the interface for levels 1 to 3."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from caldera import nn
from caldera.base.config import settings
from caldera.base.registry import nearest
from caldera.bench.contestants import ALL_PEERS
from caldera.bench.frameworks import FRAMEWORKS, Framework
from caldera.bench.parts import Array
from caldera.bench.workloads import Rule, TrainingCase
from caldera.errors import ConfigError

REFERENCE = "reference"
"""Name of the lean network in NumPy, used like the name of a framework."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "caldera": {"accuracy": "strict"},
    "torch": {"compiled": False},
    "jax": {},
    "tensorflow": {},
}


class Learner(Protocol):
    """Weights, the gradients of a batch, and predictions; every trainer of the bench is one."""

    def weights(self) -> list[Array]:
        """Return the parameters as they are now."""

    def load(self, weights: Sequence[Array]) -> None:
        """Replace the weights."""

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        """Return the mean loss of a batch, and its gradients."""

    def predict(self, x: Array) -> Array:
        """Return a score for each class."""


class Perceptron:
    """The lean reference: layers with tanh between them and cross entropy, in float64.

    >>> learner = Perceptron([np.zeros((2, 3)), np.zeros(3)])
    >>> round(learner.gradients_at(np.ones((1, 2)), np.array([0]))[0], 4)
    1.0986
    """

    def __init__(self, weights: Sequence[Array]) -> None:
        self.load(weights)

    def weights(self) -> list[Array]:
        """Return the parameters: matrix and bias, layer by layer."""
        return [each.copy() for each in self._weights]

    def load(self, weights: Sequence[Array]) -> None:
        """Replace the weights."""
        self._weights = [np.array(each, np.float64) for each in weights]

    def _forward(self, x: Array) -> list[Array]:
        values = [x]
        for number in range(0, len(self._weights), 2):
            x = x @ self._weights[number] + self._weights[number + 1]
            if number + 2 < len(self._weights):
                x = np.tanh(x)
            values.append(x)
        return values

    def gradients_at(self, x: Array, y: Array) -> tuple[float, list[Array]]:
        """Return the mean loss of a batch, and its gradients."""
        values = self._forward(np.asarray(x, np.float64))
        scores = values[-1] - values[-1].max(1, keepdims=True)
        logarithms = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        rows = np.arange(len(y))
        slope = np.exp(logarithms)
        slope[rows, y] -= 1.0
        slope /= len(y)
        found: list[Array] = []
        for number in range(len(self._weights) - 2, -1, -2):
            below = values[number // 2]
            found[:0] = [below.T @ slope, slope.sum(0)]
            slope = (slope @ self._weights[number].T) * (1.0 - below**2)
        return float(-logarithms[rows, y].mean()), found

    def predict(self, x: Array) -> Array:
        """Return a score for each class."""
        return self._forward(np.asarray(x, np.float64))[-1]


INPUTS, HIDDEN, CLASSES = 12, 16, 4


PROBLEM = TrainingCase(
    "validation",
    layers=lambda: [nn.Input((INPUTS,)), nn.Dense(HIDDEN, activation="tanh"), nn.Dense(CLASSES)],
    batch=24,
    shape=(INPUTS,),
    classes=CLASSES,
    rule=Rule("sgd", 0.1),
)
"""The small network that parts are validated with: as small as finds their errors."""


def frameworks() -> list[str]:
    """Return the frameworks that are installed here, and the lean reference.

    >>> frameworks()[:2]
    ['reference', 'caldera']
    """
    return [REFERENCE, "caldera", *(peer for peer in ALL_PEERS if find_spec(peer) is not None)]


@contextmanager
def framework_here(name: str, device: str = "cpu") -> Iterator[Framework]:
    """A framework in this process; the settings of Caldera are put back at the end."""
    if name not in _OPTIONS:
        raise ConfigError.build(
            "framework",
            expected=f"one of {', '.join([REFERENCE, *_OPTIONS])}",
            got=repr(name),
            hint=nearest(str(name), _OPTIONS),
        )
    with settings.override(threads=settings.threads, accuracy=settings.accuracy):
        options = {**_OPTIONS[name], "device": device, "graph": device != "cpu"}
        yield FRAMEWORKS[name](options, settings.threads)


def learner(name: str, case: TrainingCase = PROBLEM, dtype: str = "float64") -> Learner:
    """Return the network of a case in a framework, with the common initial weights.

    >>> learner("reference").weights()[0].shape
    (12, 16)
    """
    if name == REFERENCE:
        with framework_here("caldera") as ours:
            return Perceptron(ours.trainer(case, "float64").weights())
    with framework_here(name) as framework:
        return framework.trainer(case, dtype)
