"""What `fit` asks of a way to train in parallel. One process alone is the simplest answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from caldera import op
from caldera.comm import Communicator, SingleProcess
from caldera.data import Share
from caldera.lazy import Expr, Variable
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.plan.plan import Plan


class Holder(Protocol):
    """Something that has a value a checkpoint keeps: a variable, or one that ranks share."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole value."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its dtype."""

    def numpy(self) -> np.ndarray:
        """The whole value; where ranks share it, all of them have to ask."""

    def assign(self, value: Any) -> None:
        """Set the value, each rank with all of it."""


class Strategy(ABC):
    """How ranks share the work of training.

    `fit` writes each step as one graph, every rank for its own samples, and asks the strategy
    wherever other ranks matter: for sums over all samples of the batch, for what the optimizer
    changes and by which gradients, and for the last word on the program. The loss of a rank is the
    sum over its samples divided by the samples of all ranks: so losses and gradients of the whole
    batch are plain sums over ranks, however unevenly the samples are spread.

    Between epochs a model is whole on every rank; while steps run, a strategy may keep it in parts.
    Methods that do nothing here do nothing for most strategies.

    `communicator` is for what the host says to other ranks; plans have one of their own,
    `in_plans`, for a device may still be at work on a step when the host is far ahead.
    """

    communicator: Communicator
    in_plans: Communicator
    batch_parts: int = 0
    """Into how many parts each batch is cut before ranks get whole ones; 0: one for each rank."""
    lockstep: bool = True
    """Whether plans talk to those of other ranks, which then take every step together. Where they
    do not, each rank divides its loss by the samples it has itself."""

    @property
    def several(self) -> bool:
        """Whether what a rank computes is only a part of the whole."""
        return self.communicator.size > 1

    # --- graphs

    @abstractmethod
    def over_all(self, values: Sequence[Expr]) -> list[Expr]:
        """The sums over ranks of values that each computes from its own samples."""

    @abstractmethod
    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        """What this rank's optimizer changes, and the gradients of the whole batch for it."""

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Around what an optimizer writes down about those."""
        yield

    def changes(
        self,
        optimizer: Optimizer,
        variables: Sequence[Variable],
        gradients: Sequence[Expr],
        ok: Expr,
        weight: Expr,
    ) -> list[Expr]:
        """The assignments that follow from what `slopes` gave; `optimizer.apply` has the names."""
        return optimizer.apply(variables, gradients, ok=ok, weight=weight)

    def parts(self, share: Share) -> list[Share]:
        """The pieces in which a rank computes its share of a batch, each as if it were a rank."""
        return [share]

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        """The last word on a program, of which there is one for each part."""
        (program,) = programs
        return list(program)

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        """The plan that `make` makes, once all ranks are agreed that it fits theirs."""
        return make()

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:  # noqa: B027
        """Make sure that all ranks were given the same, which JSON can hold."""

    def begin(self, model: Layer, optimizer: Optimizer) -> None:  # noqa: B027
        """Before the first plan is made: the model is whole, and starts the same on every rank."""

    def take_apart(self) -> None:  # noqa: B027
        """Before the steps of an epoch."""

    def step_taken(self, wishes: Sequence[float]) -> Sequence[float] | None:
        """After each step was launched. `wishes` is what this rank was asked for (to stop, and to
        save); where plans do not exchange them, what all ranks have to do now."""
        return None

    def add_up(self, sums: Sequence[Variable]) -> None:  # noqa: B027
        """Sums that each rank kept for itself become those of all ranks."""

    def make_whole(self) -> None:  # noqa: B027
        """After them: every rank has the whole model. All ranks have to call this."""

    def end(self) -> None:  # noqa: B027
        """After the run: model and optimizer are as one process would have left them."""

    # --- checkpoints

    def holders(self, variables: Mapping[str, Variable]) -> Mapping[str, Holder]:
        """The same variables, as they have to be saved and restored."""
        return variables

    def saved(self) -> dict[str, np.ndarray]:
        """What else a checkpoint has to keep, of all ranks; all of them have to ask."""
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Take back what `saved` gave, perhaps of another number of ranks."""


class Alone(Strategy):
    """One process that sees the whole batch.

    >>> import caldera as cd
    >>> from caldera.strategy import Alone
    >>> Alone().over_all([cd.tensor([1.0]) * 2.0])[0].tolist()
    [2.0]
    """

    def __init__(self) -> None:
        self.communicator = self.in_plans = SingleProcess()

    def over_all(self, values: Sequence[Expr]) -> list[Expr]:
        return list(values)

    def slopes(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        return list(parameters), op.grad(loss, list(parameters), unused="zero")
