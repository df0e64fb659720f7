"""What `fit` asks of a way to train in parallel. One process alone is the simplest answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from caldera.comm import Communicator, SingleProcess
from caldera.lazy import Expr


class Strategy(ABC):
    """How ranks share the work of one training step.

    `fit` builds each step as one graph and leaves two places open: sums over all samples of the
    batch, wherever they are, and the gradients between backward pass and update.
    """

    communicator: Communicator

    @abstractmethod
    def over_all(self, value: Expr) -> Expr:
        """The sum over ranks of a value that each computes from its own samples."""

    @abstractmethod
    def exchange(self, gradients: Sequence[Expr]) -> list[Expr]:
        """The gradients of the whole batch, from those of each rank's part."""


class Alone(Strategy):
    """One process that sees the whole batch.

    >>> import caldera as cd
    >>> from caldera.strategy import Alone
    >>> Alone().over_all(cd.tensor([1.0]) * 2.0).tolist()
    [2.0]
    """

    def __init__(self) -> None:
        self.communicator = SingleProcess()

    def over_all(self, value: Expr) -> Expr:
        return value

    def exchange(self, gradients: Sequence[Expr]) -> list[Expr]:
        return list(gradients)
