"""Replaceable parts of each level, written once in NumPy and run in every framework.

Level 0 has an `OperatorPart`; level 2 an `OptimizerPart` and a `Sampler`; level 3 a
`CompressionPart` of gradients and a `Scheme` that distributes training. `reference` has a lean
implementation of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caldera.comm import Communicator

Array = np.ndarray[Any, np.dtype[Any]]


class OperatorPart(ABC):
    """Level 0: an array computed from arrays, and its gradients.

    Both methods must depend only on their inputs.

    >>> class Square(OperatorPart):
    ...     def forward(self, x):
    ...         return x * x
    ...     def backward(self, gradient, x):
    ...         return [2 * x * gradient]
    >>> Square().forward(np.array([3.0]))
    array([9.])
    """

    @abstractmethod
    def forward(self, *inputs: Array) -> Array:
        """Return the result, in the dtype of the inputs."""

    @abstractmethod
    def backward(self, gradient: Array, *inputs: Array) -> Sequence[Array]:
        """Return the gradients of the inputs, given the gradient of the result."""

    def flops(self, *inputs: Array) -> float:
        """Return the floating-point operations of `forward`; 0 if unknown."""
        return 0.0


class OptimizerPart(ABC):
    """Level 2: new weights from gradients. State is kept by the number of the weight.

    >>> class Plain(OptimizerPart):
    ...     def update(self, number, weight, gradient, step):
    ...         return weight - 0.1 * gradient
    >>> Plain().update(0, np.array([1.0]), np.array([1.0]), 1)
    array([0.9])
    """

    @abstractmethod
    def update(self, number: int, weight: Array, gradient: Array, step: int) -> Array:
        """Return the new value of weight `number`; steps count from 1."""


class Sampler(ABC):
    """Level 2: which samples make up the batches of an epoch.

    >>> class InOrder(Sampler):
    ...     shuffles = False
    ...     def epoch(self, samples, batch, number):
    ...         return iter(np.split(np.arange(samples), range(batch, samples, batch)))
    >>> [len(each) for each in InOrder().epoch(5, 2, 0)]
    [2, 2, 1]
    """

    shuffles = True
    """True if every epoch has another order."""

    @abstractmethod
    def epoch(self, samples: int, batch: int, number: int) -> Iterator[Array]:
        """Return the indices of each batch; every sample once in an epoch."""


class CompressionPart(ABC):
    """Level 3: a gradient as a shorter message.

    With `feedback`, the level adds the part of a gradient that a message omits to the next
    gradient; optimizers are not affected.

    >>> class Half(CompressionPart):
    ...     def encode(self, values):
    ...         return values.astype(np.float16)
    ...     def decode(self, message, count):
    ...         return message
    >>> Half().encode(np.ones(3)).nbytes
    6
    """

    unbiased = False
    """True if the mean over many messages is the gradient."""
    feedback = True

    @abstractmethod
    def encode(self, values: Array) -> Array:
        """Return the message of a gradient that is a vector."""

    @abstractmethod
    def decode(self, message: Array, count: int) -> Array:
        """Return the `count` numbers of a message."""


class Scheme(ABC):
    """Level 3: communication of ranks in a step.

    >>> class Alone(Scheme):
    ...     def gradients(self, communicator, gradients):
    ...         return gradients
    >>> Alone().equals_one_process
    True
    """

    equals_one_process = True
    """True if weights equal, except for rounding, one process training on the whole batch."""

    @abstractmethod
    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        """Return the gradients to update with. This rank's are given as its part of the whole
        batch's: the sum over ranks is the gradient of the mean loss."""

    def weights(self, communicator: Communicator, weights: list[Array], step: int) -> list[Array]:
        """Return the weights to use after an update."""
        return weights
