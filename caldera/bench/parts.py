"""What a user may replace at each level, written once in NumPy and run in every framework.

Level 0 has an `OperatorPart`; level 2 an `OptimizerPart` and a `Sampler`; level 3 a
`CompressionPart` of gradients and a `Scheme` that distributes training. `reference` has a lean one
of each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caldera.comm import Communicator

Array = np.ndarray[Any, np.dtype[Any]]


class OperatorPart(ABC):
    """Level 0: an array from arrays, and its gradients. Both are functions of their inputs alone.

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
        """The result, in the dtype of the inputs."""

    @abstractmethod
    def backward(self, gradient: Array, *inputs: Array) -> Sequence[Array]:
        """Given the gradient of the result, that of each input."""

    def flops(self, *inputs: Array) -> float:
        """Floating-point operations of `forward`; 0 if nobody counts them."""
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
        """The new value of weight `number`; steps count from 1."""


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
    """Whether every epoch has another order."""

    @abstractmethod
    def epoch(self, samples: int, batch: int, number: int) -> Iterator[Array]:
        """The indices of each batch; every sample once in an epoch."""


class CompressionPart(ABC):
    """Level 3: a gradient as a shorter message.

    What a message leaves out is added to the next gradient by the level itself, if `feedback` says
    so; no optimizer has to know.

    >>> class Half(CompressionPart):
    ...     def encode(self, values):
    ...         return values.astype(np.float16)
    ...     def decode(self, message, count):
    ...         return message
    >>> Half().encode(np.ones(3)).nbytes
    6
    """

    unbiased = False
    """Whether the mean over many messages is the gradient."""
    feedback = True

    @abstractmethod
    def encode(self, values: Array) -> Array:
        """The message for a gradient as one row."""

    @abstractmethod
    def decode(self, message: Array, count: int) -> Array:
        """The `count` numbers of a message."""


class Scheme(ABC):
    """Level 3: what ranks tell each other in a step.

    >>> class Alone(Scheme):
    ...     def gradients(self, communicator, gradients):
    ...         return gradients
    >>> Alone().equals_one_process
    True
    """

    equals_one_process = True
    """Whether weights are those of one process with the whole batch, but for rounding."""

    @abstractmethod
    def gradients(self, communicator: Communicator, gradients: list[Array]) -> list[Array]:
        """The gradients to update with. This rank's are given as its part of the whole batch's: the
        sum over ranks is the gradient of the mean loss."""

    def weights(self, communicator: Communicator, weights: list[Array], step: int) -> list[Array]:
        """The weights to go on with after an update."""
        return weights
