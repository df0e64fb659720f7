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
from caldera.nn.losses import Loss
from caldera.nn.tracing import Context
from caldera.optim import Optimizer
from caldera.plan.plan import Plan

VOTES = "wishes"
"""The input by which ranks tell each other, with each step, what somebody asked of one of them."""


class VariableView(Protocol):
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
    `plan_communicator`, for a device may still be at work on a step when the host is far ahead.
    """

    communicator: Communicator
    plan_communicator: Communicator
    batch_parts: int = 0
    """Into how many parts each batch is cut before ranks get whole ones; 0: one for each rank."""

    @property
    def is_distributed(self) -> bool:
        """Whether what a rank computes in a step is only a part of the whole."""
        return self.communicator.size > 1

    @property
    def reader(self) -> tuple[int, int]:
        """As which of how many a rank reads its samples of each batch."""
        return self.communicator.rank, self.communicator.size

    @property
    def shares_batches(self) -> bool:
        """Whether others have samples of a batch that this rank has not."""
        return self.is_distributed

    def evaluating(self) -> Strategy:
        """How ranks share the work of evaluating, between epochs."""
        return self

    # --- graphs

    @abstractmethod
    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        """The sums over ranks of values that each computes from its own samples."""

    @abstractmethod
    def gradients(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        """What this rank's optimizer changes, and the gradients of the whole batch for it."""

    def traced(self, written: Context) -> None:  # noqa: B027
        """The network has been written down for a part of a batch, layer by layer."""

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
        """The assignments that follow from what `gradients` gave, and what else a training step
        assigns; `optimizer.apply` has the names."""
        return optimizer.apply(variables, gradients, ok=ok, weight=weight)

    def predictions(
        self, outputs: Mapping[str, Expr], losses: Mapping[str, Loss]
    ) -> Mapping[str, Expr]:
        """What evaluation is about, of the outputs of this rank's model, by name."""
        return outputs

    def parts(self, share: Share) -> list[Share]:
        """The pieces in which a rank computes its share of a batch, each as if it were a rank."""
        return [share]

    def of_part(self, value: Expr, share: Share, part: Share) -> Expr:
        """What a rank computes a part from, where it has read the samples of its share."""
        begin = part.first - share.first
        return value[begin : begin + len(part)]

    def written(self, programs: Sequence[Sequence[Expr]]) -> list[Expr]:
        """The last word on a program, of which there is one for each part."""
        (program,) = programs
        return list(program)

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        """The plan that `make` makes, once all ranks are agreed that it fits theirs."""
        return make()

    # --- a run

    def rank_seed(self, given: int) -> int:
        """What this rank's order of samples and random numbers follow from, given rank 0's seed."""
        return given

    def agree(self, given: Mapping[str, Any]) -> None:  # noqa: B027
        """Make sure that all ranks were given the same, which JSON can hold."""

    def begin(self, model: Layer, optimizer: Optimizer) -> None:  # noqa: B027
        """Before the first plan is made: the model is whole, and starts the same on every rank."""

    def prepare(self, network: Callable[[int], Context]) -> None:  # noqa: B027
        """After that, and still before: `network` writes the model down for so many samples, for
        those who have to know what is in it. All ranks have to call this."""

    def shard(self) -> None:  # noqa: B027
        """Before the steps of an epoch."""

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        """After each step has been launched. Where ranks take steps of their own, they may exchange
        here what they have; if they did, the sums over ranks of what each of them wishes."""
        return None

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Over all ranks, of what this rank's training steps have added up in an epoch."""
        return sums

    def unshard(self) -> None:  # noqa: B027
        """After them: every rank has the whole model. All ranks have to call this."""

    def end(self) -> None:  # noqa: B027
        """After the run: model and optimizer are as one process would have left them."""

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        """The same variables, as they have to be saved and restored."""
        return variables

    def saved(self) -> dict[str, np.ndarray]:
        """What else a checkpoint has to keep, of all ranks; all of them have to ask."""
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Take back what `saved` gave, perhaps of another number of ranks."""


class SingleProcessStrategy(Strategy):
    """One process that sees the whole batch.

    >>> import caldera as cd
    >>> from caldera.strategy import SingleProcessStrategy
    >>> SingleProcessStrategy().sum_over_ranks([cd.tensor([1.0]) * 2.0])[0].tolist()
    [2.0]
    """

    def __init__(self) -> None:
        self.communicator = self.plan_communicator = SingleProcess()

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        return list(values)

    def gradients(
        self, loss: Expr, parameters: Sequence[Variable]
    ) -> tuple[list[Variable], list[Expr]]:
        return list(parameters), op.grad(loss, list(parameters), unused="zero")
