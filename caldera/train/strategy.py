"""Interface of strategies that share training between ranks, in three parts.

| who asks | protocol | for |
|---|---|---|
| the graph of a step | `GraphStrategy` | sums over ranks, gradients, updates, the rank's program |
| a run | `RunHooks` | what is done before, between and after steps and epochs |
| a checkpoint | `CheckpointLayout` | variables as one process would have them |

`Strategy` combines all three, with defaults that suit most strategies. The simplest is
`SingleProcessStrategy`, for one process. Results that other calls need are passed as values.
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
"""Name of the input by which ranks exchange requests (stop, save) with each step."""
NO_VOTES = (0.0, 0.0)
"""Votes without a request to stop or to save."""

# --- what is handed on


@dataclass(frozen=True)
class Gradients:
    """Variables that this rank's optimizer updates, and their gradients of the whole batch.

    `sharding` describes which variables are parts of larger ones; `loss` is the loss of the whole
    batch.
    """

    variables: Sequence[Variable]
    values: Sequence[Expr]
    sharding: Sharding | None = None
    loss: Expr | None = None


@dataclass(frozen=True)
class BatchSums:
    """Values that a rank computes from its samples, and placeholders for their sums over ranks."""

    values: Sequence[Expr]
    totals: Sequence[Expr]


@dataclass(frozen=True)
class StepProgram:
    """Traced step for one part of a batch.

    - `assignments`: builds the updates of the step; a strategy may need them for one part only.
    - `share`: the samples of the part; `context`: the trace of the network.
    - `sums`: the arguments and results of `sum_over_ranks`, in order.
    - `loss`, `gradients`: this part's contribution to the loss of the batch, and the result of
      `GraphStrategy.gradients` for it; None in an evaluation.
    """

    assignments: Callable[[], Sequence[Expr]]
    share: Share
    context: Context
    sums: Sequence[BatchSums] = ()
    loss: Expr | None = None
    gradients: Gradients | None = None


@dataclass(frozen=True)
class RunSetup:
    """Description of a run; the model is whole, and the same on all ranks.

    - `batch_size`: of all ranks together; `precision`: of the plans.
    - `trace`: traces the network for a number of samples, for inspection.
    - `owner`: the token of the model that owns the strategy's training state.
    - `is_new`: True if the model has never been trained; `reinitialise` sets the initial parameters
      that follow from its seed.
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
        """Shape of the whole value."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the value."""

    def numpy(self) -> np.ndarray:
        """Return the whole value; a collective call if ranks share the value."""

    def assign(self, value: Any) -> None:
        """Set the value; each rank passes the whole value."""


# --- the three protocols


class GraphStrategy(ABC):
    """Methods that build the graph of a step.

    A step is one graph, which every rank writes for its own samples. The loss of a rank is the sum
    over its samples divided by the samples of all ranks. So losses and gradients of the whole batch
    are plain sums over ranks, however unevenly the samples are spread.
    """

    plan_communicator: Communicator
    """Communicator for plans, separate as a device may lag far behind the host."""

    @property
    def is_distributed(self) -> bool:
        """True if a rank computes only a part of each step."""
        return self.plan_communicator.size > 1

    @property
    def shares_batches(self) -> bool:
        """True if the remaining ranks have samples of a batch that this rank has not."""
        return self.is_distributed

    def parts(self, share: Share) -> list[Share]:
        """Return the pieces of a rank's share of a batch, each computed like a rank's share."""
        return [share]

    def of_part(self, value: Expr, share: Share, part: Share) -> Expr:
        """Select a part's samples from a value read for this rank's share."""
        begin = part.first - share.first
        return value[begin : begin + len(part)]

    def layer_output(self, layer: Layer, result: Any) -> Any:
        """Return the output of a layer, in the layout in which ranks store it."""
        return result

    @abstractmethod
    def sum_over_ranks(self, values: Sequence[Expr]) -> list[Expr]:
        """Return the sums over ranks of values that each computes from its own samples."""

    @abstractmethod
    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        """Return the gradients of the whole batch, of which these samples are a part."""

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Gradients, ok: Expr, weight: Expr
    ) -> list[Expr]:
        """Return the optimizer's assignments and any others of a training step.

        For the arguments see `optimizer.apply`.
        """
        return optimizer.apply(
            gradients.variables, gradients.values, ok=ok, weight=weight, loss=gradients.loss
        )

    def predictions(
        self, outputs: Mapping[str, Expr], losses: Mapping[str, Loss]
    ) -> Mapping[str, Expr]:
        """Return the outputs to evaluate, by name, from the outputs of this rank's model."""
        return outputs

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        """Return the expressions that a rank runs in a step, from the program of each part."""
        (part,) = parts
        return list(part.assignments())

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        """Return the plan that `make` makes, once all ranks are agreed that it fits theirs."""
        return make()


class RunHooks(ABC):
    """Hooks called around epochs and steps. Hooks without a body are optional.

    Between epochs a model is whole on every rank; while steps run, a strategy may split it.
    """

    communicator: Communicator
    """Communicator for messages between hosts."""
    replicas_are_equal: bool = False
    """True if every rank has the whole model, with the same values, after each step."""
    batch_parts: int = 0
    """Number of parts per batch, each assigned to one rank; 0 means one per rank."""

    @property
    def reader(self) -> tuple[int, int]:
        """The (index, count) pair that selects this rank's shard of each batch."""
        return self.communicator.rank, self.communicator.size

    def rank_seed(self, given: int) -> int:
        """Return this rank's seed for shuffling and random numbers, derived from rank 0's seed."""
        return given

    def agree(self, given: Mapping[str, Any]) -> None:  # noqa: B027
        """Make sure that all ranks were given the same, which JSON can hold."""

    def begin(self, setup: RunSetup) -> None:  # noqa: B027
        """Prepare for the first plan, on all ranks, with the same model."""

    def shard(self) -> None:  # noqa: B027
        """Split the model over ranks before the steps of an epoch."""

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        """Exchange data after a step has been launched; return the sums of votes over ranks.

        Ranks with independent steps may exchange their parameters here. Returns None if no exchange
        took place.
        """
        return None

    def unshard(self) -> None:  # noqa: B027
        """Restore the whole model on every rank after the steps. All ranks have to call this."""

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the sums over all ranks of this rank's totals of an epoch."""
        return sums

    def end(self) -> None:  # noqa: B027
        """Finish the run: model and optimizer are as after training in one process."""


class CheckpointLayout(ABC):  # noqa: B024
    """Methods that save and restore a strategy's state in checkpoints."""

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        """Return the same variables, as they have to be saved and restored."""
        return variables

    def saved(self) -> dict[str, np.ndarray]:
        """Return additional arrays to save, from all ranks; a collective call."""
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Restore the arrays of `saved`, possibly from another number of ranks."""


class Strategy(GraphStrategy, RunHooks, CheckpointLayout):
    """Strategy to share the work of training between ranks."""

    def evaluating(self) -> Strategy:
        """Return the strategy for evaluation between epochs."""
        return self


class SingleProcessStrategy(Strategy):
    """Strategy of a single process, which computes the whole batch.

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
    """Return the default strategy: over all processes that were started together."""
    everyone = world()
    if everyone.size == 1:
        return SingleProcessStrategy()
    return provided("default strategy")(communicator=everyone)
