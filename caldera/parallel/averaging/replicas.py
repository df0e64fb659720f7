"""Ranks that take steps of their own, each with a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.nn.layer import Layer
from caldera.optim import Optimizer
from caldera.parallel.data.compression import State, gather_states, states_by_rank
from caldera.parallel.data.data_parallel import DataParallel
from caldera.parallel.data.sums import EPOCH_SUMS, allreduce_arrays, sum_view
from caldera.train.strategy import (
    RunSetup,
    SingleProcessStrategy,
    StepProgram,
    Strategy,
    VariableView,
)

Part = TypeVar("Part")
OWN = "own/"
"""What a checkpoint has of each rank for itself."""


class ReplicaStrategy(SingleProcessStrategy):
    """Base of strategies in which a step of a rank is about its own samples and nobody else's.

    Losses are divided by the rank's own samples, batch normalisation is over them, and nothing is
    sent in a step. A rank that has no sample of a batch counts the step and changes nothing. Sums
    of an epoch are added up over ranks at its end.

    A checkpoint has the variables of every rank, and what all of them amount to together: as many
    ranks as there were go on to the bit, and another number of them goes on from the latter.
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
        """What trains it."""
        return self._in_a_run(self._optimizer)

    def _in_a_run(self, part: Part | None) -> Part:
        if part is None:
            raise ConfigError.build(
                type(self).__name__,
                expected="to be asked during a run",
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
        # There is nothing to learn from, and no mean of nothing. But it was a step.
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
        """What stands for a variable in a checkpoint, beside what each rank has."""
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
        """What this rank has for itself, by name."""
        return {name: each.numpy() for name, each in self._named.items()}

    def chosen(self, saved: Sequence[State]) -> State | None:
        """Of what each rank had, what this one goes on with; None for what all amount to."""
        ranks = self.communicator
        return saved[ranks.rank] if len(saved) == ranks.size else None

    def take_back(self, own: State) -> None:
        """Go on with what `own` gave."""
        for name, variable in self._named.items():
            variable.assign(own[name])
