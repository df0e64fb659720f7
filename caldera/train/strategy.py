"""What training asks of a way to share it between ranks, in three parts.

| who asks | protocol | for |
|---|---|---|
| the graph of a step | `GraphStrategy` | sums over ranks, gradients, updates, the rank's program |
| a run | `RunHooks` | what is done before, between and after steps and epochs |
| a checkpoint | `CheckpointLayout` | variables as one process would have them |

`Strategy` is all three, with answers that are right for most. One process alone is the simplest:
`SingleProcessStrategy`. What one call finds and another needs is handed on as a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from caldera import op
from caldera.base.registry import provided
from caldera.comm import Communicator, SingleProcess, world
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.core.memory import Device
from caldera.data import Share
from caldera.nn import Context, Layer
from caldera.nn.losses import Loss
from caldera.optim import Optimizer
from caldera.optim.sharding import Sharding

VOTES = "votes"
"""The input by which ranks tell each other, with each step, what somebody asked of one of them."""
NO_VOTES = (0.0, 0.0)
"""To stop, and to save."""

# --- what is handed on


@dataclass(frozen=True)
class Gradients:
    """What the optimizer of this rank changes, and the gradients of the whole batch for it.

    `sharding` says which of the variables are parts of others; `loss` is that of the whole batch.
    """

    variables: Sequence[Variable]
    values: Sequence[Expr]
    sharding: Sharding | None = None
    loss: Expr | None = None


@dataclass(frozen=True)
class BatchSums:
    """Values that a rank computes from its samples, and what stands for their sums over ranks."""

    values: Sequence[Expr]
    totals: Sequence[Expr]


@dataclass(frozen=True)
class StepProgram:
    """A step as it was written down for one part of a batch.

    - `assignments`: writes down what the step changes; a strategy may need that of one part alone.
    - `share`: the samples of the part; `context`: the trace of the network.
    - `sums`: what `sum_over_ranks` was asked for, in order.
    - `loss`, `gradients`: what this part adds to the loss of the batch, and what
      `GraphStrategy.gradients` made of it; None in an evaluation.
    """

    assignments: Callable[[], Sequence[Expr]]
    share: Share
    context: Context
    sums: Sequence[BatchSums] = ()
    loss: Expr | None = None
    gradients: Gradients | None = None


@dataclass(frozen=True)
class RunSetup:
    """What a run is about: the model is whole, and all ranks are agreed on it.

    - `batch_size`: of all ranks together; `precision`: of the plans.
    - `trace`: writes the network down for so many samples, for those who look what is in it.
    - `owner`: the token of the model, to which what a strategy remembers of its training belongs.
    - `is_new`: whether the model has never been trained; `reinitialise` gives it the parameters
      that a new one with its seed would have.
    """

    model: Layer
    optimizer: Optimizer
    device: Device
    batch_size: int
    precision: str | None
    trace: Callable[[int], Context]
    is_new: bool
    reinitialise: Callable[[], None]
    owner: str = ""


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


# --- the three protocols


class GraphStrategy(ABC):
    """What the graph of a step needs.

    A step is one graph, which every rank writes for its own samples. The loss of a rank is the sum
    over its samples divided by the samples of all ranks: so losses and gradients of the whole batch
    are plain sums over ranks, however unevenly the samples are spread.
    """

    plan_communicator: Communicator
    """For what plans send: a device may still be at work on a step when the host is far ahead."""

    @property
    def is_distributed(self) -> bool:
        """Whether what a rank computes in a step is only a part of the whole."""
        return self.plan_communicator.size > 1

    @property
    def shares_batches(self) -> bool:
        """Whether others have samples of a batch that this rank has not."""
        return self.is_distributed

    def parts(self, share: Share) -> list[Share]:
        """The pieces in which a rank computes its share of a batch, each as if it were a rank."""
        return [share]

    def of_part(self, value: Expr, share: Share, part: Share) -> Expr:
        """What a rank computes a part from, where it has read the samples of its share."""
        begin = part.first - share.first
        return value[begin : begin + len(part)]

    def layer_output(self, layer: Layer, result: Any) -> Any:
        """What stands for what a layer of the network gives: the same, or where ranks have it."""
        return result

    @abstractmethod
    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        """The sums over ranks of values that each computes from its own samples."""

    @abstractmethod
    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        """The gradients of the whole batch, of which these samples have a part in the loss."""

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Gradients, ok: Expr, weight: Expr
    ) -> list[Expr]:
        """The assignments that follow, and what else a training step assigns; `optimizer.apply` has
        the names."""
        return optimizer.apply(
            gradients.variables, gradients.values, ok=ok, weight=weight, loss=gradients.loss
        )

    def predictions(
        self, outputs: Mapping[str, Expr], losses: Mapping[str, Loss]
    ) -> Mapping[str, Expr]:
        """What evaluation is about, of the outputs of this rank's model, by name."""
        return outputs

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        """What a rank runs in a step, of which there is a program for each part."""
        (part,) = parts
        return list(part.assignments())

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        """The plan that `make` makes, once all ranks are agreed that it fits theirs."""
        return make()


class RunHooks(ABC):
    """What a run needs.

    Between epochs a model is whole on every rank; while steps run, a strategy may keep it in parts.
    What does nothing here does nothing for most strategies.
    """

    communicator: Communicator
    """For what the host says to other ranks."""
    replicas_are_equal: bool = False
    """Whether every rank has the whole model, and the same one, after each step."""
    batch_parts: int = 0
    """Into how many parts each batch is cut before ranks get whole ones; 0: one for each rank."""

    @property
    def reader(self) -> tuple[int, int]:
        """As which of how many a rank reads its samples of each batch."""
        return self.communicator.rank, self.communicator.size

    def rank_seed(self, given: int) -> int:
        """What this rank's order of samples and random numbers follow from, given rank 0's seed."""
        return given

    def agree(self, given: Mapping[str, Any]) -> None:  # noqa: B027
        """Make sure that all ranks were given the same, which JSON can hold."""

    def begin(self, setup: RunSetup) -> None:  # noqa: B027
        """Before the first plan is made; all ranks have to call this, with the same model."""

    def shard(self) -> None:  # noqa: B027
        """Before the steps of an epoch."""

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        """After each step has been launched. Where ranks take steps of their own, they may exchange
        here what they have; if they did, the sums over ranks of their votes."""
        return None

    def unshard(self) -> None:  # noqa: B027
        """After them: every rank has the whole model. All ranks have to call this."""

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Over all ranks, of what this rank's training steps have added up in an epoch."""
        return sums

    def end(self) -> None:  # noqa: B027
        """After the run: model and optimizer are as one process would have left them."""


class CheckpointLayout(ABC):  # noqa: B024
    """What a checkpoint needs."""

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        """The same variables, as they have to be saved and restored."""
        return variables

    def saved(self) -> dict[str, np.ndarray]:
        """What else a checkpoint has to keep, of all ranks; all of them have to ask."""
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Take back what `saved` gave, perhaps of another number of ranks."""


class Strategy(GraphStrategy, RunHooks, CheckpointLayout):
    """How ranks share the work of training."""

    def evaluating(self) -> Strategy:
        """How ranks share the work of evaluating, between epochs."""
        return self


class SingleProcessStrategy(Strategy):
    """One process that sees the whole batch.

    >>> import caldera as cd
    >>> from caldera.train.strategy import SingleProcessStrategy
    >>> SingleProcessStrategy().sum_over_ranks([cd.tensor([1.0]) * 2.0])[0].tolist()
    [2.0]
    """

    replicas_are_equal = True

    def __init__(self) -> None:
        self.communicator = self.plan_communicator = SingleProcess()

    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        return list(values)

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        return Gradients(list(parameters), op.grad(loss, list(parameters), unused="zero"))


def default_strategy() -> Strategy:
    """How to train if nobody says: over all processes that were started together."""
    everyone = world()
    if everyone.size == 1:
        return SingleProcessStrategy()
    return provided("default strategy")(communicator=everyone)
