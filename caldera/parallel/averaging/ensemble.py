"""Ranks with separate models: replicas with individual checkpoints, and ensembles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.data import Share
from caldera.errors import CheckpointError, ConfigError
from caldera.nn.layer import Layer
from caldera.nn.losses import Loss
from caldera.optim import Optimizer
from caldera.parallel.consistency import check_choice, check_same
from caldera.parallel.data.data_parallel import DataParallel
from caldera.parallel.data.sums import (
    EPOCH_SUMS,
    State,
    allreduce_arrays,
    gather_states,
    mean_over_ranks,
    states_by_rank,
    sum_view,
)
from caldera.train.strategy import (
    RunSetup,
    SingleProcessStrategy,
    StepProgram,
    Strategy,
    VariableView,
)

Part = TypeVar("Part")
OWN = "own/"
"""Prefix of checkpoint entries that belong to a single rank."""


class ReplicaStrategy(SingleProcessStrategy):
    """Base of strategies in which a step uses only the rank's own samples.

    Losses are divided by the number of the rank's samples, batch normalisation is over them, and a
    step sends no messages. A rank without a sample of a batch counts the step without an update.
    Sums of an epoch are combined over ranks at its end.

    A checkpoint contains the variables of every rank and their combination. The same number of
    ranks continues to the bit; another number continues from the combination.
    """

    replicas_are_equal = False

    def __init__(self, communicator: Communicator | None, algorithm: str = "auto") -> None:
        self.together = DataParallel(communicator=communicator, algorithm=algorithm)
        self.communicator = self.together.communicator
        self.plan_communicator = self.together.plan_communicator
        self._model: Layer | None = None
        self._optimizer: Optimizer | None = None
        self._named: Mapping[str, Variable] = {}

    @property
    def is_distributed(self) -> bool:
        return False

    def evaluating(self) -> Strategy:
        return self.together

    @property
    def model(self) -> Layer:
        """The model that is being trained."""
        return self._in_a_run(self._model)

    @property
    def optimizer(self) -> Optimizer:
        """Optimizer of the training."""
        return self._in_a_run(self._optimizer)

    def _in_a_run(self, part: Part | None) -> Part:
        if part is None:
            raise ConfigError.build(
                type(self).__name__,
                expected="a call during a run",
                got="no run yet",
                hint="pass it to fit(..., parallel=...)",
            )
        return part

    # --- graphs

    def parts(self, share: Share) -> list[Share]:
        own = len(share)
        return [Share(share.start, share.first, own, own, share.size)]

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        (part,) = parts
        assignments = list(part.assignments())
        if len(part.share):
            return assignments
        # An empty batch has no mean and no gradient, but it counts as a step.
        learned = [*self.model.parameters(), *self.model.states(), *self.optimizer.variables()]
        still = {each.node for each in learned} - {self.optimizer.step.node}
        return [each for each in assignments if each.node.inputs[0] not in still]

    # --- a run

    def agree(self, given: Mapping[str, Any]) -> None:
        self.together.agree({**given, "parallel": repr(self)})

    def begin(self, setup: RunSetup) -> None:
        self._model, self._optimizer, self._named = setup.model, setup.optimizer, {}

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return allreduce_arrays(self.communicator, sums)

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        self._named = variables
        return {name: self._checkpoint_view(name, each) for name, each in variables.items()}

    def _checkpoint_view(self, name: str, variable: Variable) -> VariableView:
        """Return the view of a variable for the combined part of a checkpoint."""
        return sum_view(variable, self.communicator) if name.startswith(EPOCH_SUMS) else variable

    def saved(self) -> dict[str, np.ndarray]:
        everyone = gather_states(self.communicator, self.own())
        return {f"{OWN}{name}": each for name, each in everyone.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        own = {k.removeprefix(OWN): each for k, each in arrays.items() if k.startswith(OWN)}
        mine = self.chosen(states_by_rank(own))
        if mine is not None:
            self.take_back(mine)

    def own(self) -> dict[str, np.ndarray]:
        """Return the values of this rank only, by name."""
        return {name: each.numpy() for name, each in self._named.items()}

    def chosen(self, saved: Sequence[State]) -> State | None:
        """Return the saved state from which this rank continues, or None for the combination."""
        ranks = self.communicator
        return saved[ranks.rank] if len(saved) == ranks.size else None

    def take_back(self, own: State) -> None:
        """Restore the values that `own` returned."""
        for name, variable in self._named.items():
            variable.assign(own[name])


START = ("new", "given")


class Predictor(Protocol):
    """Interface of models that `Ensemble.predict` uses."""

    dtype: Any
    objective: Any

    def predict(self, *inputs: Any, batch_size: int | None = None) -> np.ndarray:
        """Return the network's output for each sample."""


class Ensemble(ReplicaStrategy):
    """Every rank trains a separate model on all samples, without communication.

    Each member equals, to the bit, the result of one process with the member's seed: rank 0's seed
    plus the rank, or the rank's element of `seeds`. The seed determines the initial parameters, the
    order of samples and all random numbers. With `start="given"` members start from the model's
    current parameters, such as loaded ones; so do models that `fit` has trained before.

    Training losses and metrics are means over members. Validation and `predict` use the mean of the
    members' predictions. Callbacks such as early stopping act on all members together.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> y = (x[:, 0] > 0).astype("int64")
    >>> models = [cd.NeuralNetwork([nn.Input((1,)), nn.Dense(2)]) for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.Ensemble(communicator=comm)
    ...     models[comm.rank].fit((x, y), parallel=strategy, verbose=0)
    ...     return strategy.predict(models[comm.rank], x)
    >>> first, second = run_virtual_ranks(2, work)
    >>> np.array_equal(first, second), models[0].seed, models[1].seed
    (True, 0, 1)
    """

    def __init__(
        self,
        seeds: Sequence[int] | None = None,
        *,
        start: str = "new",
        communicator: Communicator | None = None,
    ) -> None:
        super().__init__(communicator)
        ranks = self.communicator.size
        if seeds is not None and (len(seeds) != ranks or len(set(seeds)) != ranks):
            raise ConfigError.build(
                "Ensemble",
                expected=f"a different seed for each of {ranks} ranks",
                got=f"seeds={list(seeds)}",
            )
        check_choice("Ensemble", "start", start, START)
        self.seeds = None if seeds is None else list(seeds)
        self.start = start

    def __repr__(self) -> str:
        return f"Ensemble(seeds={self.seeds}, start={self.start!r})"

    @property
    def reader(self) -> tuple[int, int]:
        return 0, 1

    def evaluating(self) -> Strategy:
        return _MeanOfMembers(self.together)

    # --- a run

    def rank_seed(self, given: int) -> int:
        rank = self.communicator.rank
        return given + rank if self.seeds is None else self.seeds[rank]

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        if self.start == "new" and setup.is_new:
            setup.reinitialise()

    # --- checkpoints

    def chosen(self, saved: Sequence[State]) -> State | None:
        rank, ranks = self.communicator.rank, self.communicator.size
        if len(saved) < ranks:
            raise CheckpointError.build(
                "Ensemble",
                expected=f"a checkpoint of {ranks} members or more",
                got=f"one of {len(saved)}",
                hint="resume on at most the earlier number of ranks",
            )
        return saved[rank]

    # --- using it

    def predict(self, model: Predictor, *inputs: Any, batch_size: int | None = None) -> np.ndarray:
        """Return the mean of all members' predictions, on every rank.

        Where the loss takes logits, probabilities are averaged. All ranks must call it with the
        same inputs, each with its member.
        """
        arrays = [np.ascontiguousarray(each) for each in inputs]
        described = [
            f"{each.dtype}{list(each.shape)} {hashlib.blake2b(each.tobytes()).hexdigest()[:16]}"
            for each in arrays
        ]
        check_same(self.communicator, "Ensemble.predict", described)
        loss = next(iter(model.objective.losses.values()))
        own = loss.meaning(op.cast(model.predict(*arrays, batch_size=batch_size), model.dtype))
        return mean_over_ranks(self.communicator, [own.numpy()])[0]


class _MeanOfMembers(SingleProcessStrategy):
    """Every rank evaluates all samples, and predictions are averaged over members."""

    def __init__(self, together: DataParallel) -> None:
        self._together = together
        self.communicator, self.plan_communicator = (
            together.communicator,
            together.plan_communicator,
        )

    @property
    def reader(self) -> tuple[int, int]:
        return 0, 1

    def predictions(
        self, outputs: Mapping[str, Expr], losses: Mapping[str, Loss]
    ) -> Mapping[str, Expr]:
        found = dict(outputs)
        for name, loss in losses.items():
            if name in outputs:
                own = loss.meaning(outputs[name])
                message = Message("sum", "data", next_number(), now=True)
                total = Expr(all_reduce([own.node], message)[0])
                found[name] = loss.prediction_of(total / float(self.communicator.size))
        return found

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        return self._together.compiled(make)
