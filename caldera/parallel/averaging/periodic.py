"""What strategies share in which ranks bring their models together every so many steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.tensor.dtype import float32, promote
from caldera.optim import Optimizer
from caldera.parallel.averaging.replicas import ReplicaStrategy
from caldera.parallel.consistency import check_counts, check_same
from caldera.parallel.data.compression import State
from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.data.sums import bucketed_sums, mean_over_ranks, mean_view
from caldera.parallel.distributed_variables import PerRankVariable
from caldera.train.strategy import Gradients, RunSetup, VariableView

_STEPS = "steps since the last exchange"
_WEIGHT = "weight since the last exchange"


class PeriodicAveraging(ReplicaStrategy):
    """Base of strategies whose ranks exchange something of their models every so many steps.

    `exchanged` writes down what they do then, as assignments of one plan, and `whole` says what
    the models of all ranks amount to. Between epochs, and when the run is over, every rank has
    that; when the next epoch begins, each goes on with its own.
    """

    def __init__(self, every: int, communicator: Communicator | None, algorithm: str) -> None:
        check_counts(type(self).__name__, every=every)
        super().__init__(communicator, algorithm)
        self.every = every
        self._steps = 0
        self._weight: Variable | None = None
        self._plan: Plan | None = None
        self._own: dict[Variable, np.ndarray] = {}

    # --- what a strategy says

    @abstractmethod
    def exchanged(self) -> list[Expr]:
        """The assignments of an exchange."""

    @abstractmethod
    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        """What all ranks together have for variables of the model; all of them have to ask."""

    @property
    def is_whole(self) -> bool:
        """Whether there is nothing to bring together just now."""
        return self.communicator.size == 1

    def averaged(self) -> list[Variable]:
        """What ranks have copies of that go apart: trained parameters, and running statistics."""
        return [*self.model.trainable(), *self.model.states()]

    def kept(self) -> list[Variable]:
        """What the optimizer keeps for parameters."""
        state = self.optimizer.state
        return [each for p in self.model.trainable() for each in state.get(p, {}).values()]

    @property
    def weight(self) -> Variable:
        """The weight of this rank's samples since the last exchange."""
        return self._in_a_run(self._weight)

    # --- graphs

    def apply_gradients(
        self, optimizer: Optimizer, gradients: Gradients, ok: Expr, weight: Expr
    ) -> list[Expr]:
        counted = op.assign(self.weight, self.weight + op.cast(weight, "float64"))
        return [*super().apply_gradients(optimizer, gradients, ok, weight), counted]

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        self.together.begin(setup)
        super().begin(setup)
        self._steps, self._plan, self._own = 0, None, {}
        self._weight = op.var("weight", (), dtype="float64", device=setup.device)

    def after_step(self, votes: Sequence[float]) -> Sequence[float] | None:
        self._steps += 1
        if self._steps < self.every:
            return None
        if not self.is_whole:
            self._meet("an exchange")
            self._exchange()
        self._steps = 0
        return self.tally(votes)

    def _meet(self, here: str) -> None:
        """Ranks that read streams of their own may come to an end while others go on."""
        check_same(self.communicator, "where ranks meet", [here])

    def _exchange(self) -> None:
        if self._plan is None:
            self._plan = self.together.compiled(self._plan_of_exchange)
        self._plan.run()

    def _plan_of_exchange(self) -> Plan:
        return compile(
            [*self.exchanged(), op.assign(self.weight, op.cast(0.0, "float64"))],
            device=self.weight.tensor.device,
            communicator=self.plan_communicator,
            remember=False,
        )

    def tally(self, votes: Sequence[float]) -> Sequence[float] | None:
        """The sums over ranks of their votes."""
        sums = np.array(votes)
        self.communicator.Allreduce(sums, sums)
        return [float(each) for each in sums]

    def shard(self) -> None:
        for variable, value in self._own.items():
            variable.assign(value)
        self._own = {}

    def unshard(self) -> None:
        self._meet("the end of an epoch")
        if self.is_whole:
            return
        self._own = {each: each.numpy() for each in self.averaged()}
        for variable, value in zip(self._own, self.whole(list(self._own)), strict=True):
            variable.assign(value)

    def end(self) -> None:
        self._own = {}
        kept = self.kept() if self.communicator.size > 1 else []
        means = mean_over_ranks(self.communicator, [each.numpy() for each in kept])
        for variable, value in zip(kept, means, strict=True):
            variable.assign(value)

    # --- checkpoints

    def _checkpoint_view(self, name: str, variable: Variable) -> VariableView:
        if self.communicator.size > 1:
            if variable in set(self.averaged()) and not self.is_whole and not self._own:
                return PerRankVariable(
                    variable, self.communicator, lambda own: self.whole([variable])[0]
                )
            if variable in set(self.kept()):
                return mean_view(variable, self.communicator)
        return super()._checkpoint_view(name, variable)

    def own(self) -> dict[str, np.ndarray]:
        apart = {name: self._own.get(each) for name, each in self._named.items()}
        own = {name: value for name, value in apart.items() if value is not None}
        since = {_WEIGHT: self.weight.numpy(), _STEPS: np.array(self._steps)}
        return super().own() | own | since

    def take_back(self, own: State) -> None:
        self._steps = int(own[_STEPS])
        self.weight.assign(own[_WEIGHT])
        apart = set(self.averaged())
        for name, variable in self._named.items():
            if variable in apart:
                # The model is whole until the next epoch begins.
                self._own[variable] = own[name]
            else:
                variable.assign(own[name])


def sums(values: Sequence[Expr]) -> list[Expr]:
    """The sums over ranks of values that are there at once, in a plan."""
    found = bucketed_sums(values, range(len(values)), BUCKET_BYTES)
    return [found[index] for index in range(len(values))]


def wide(variable: Variable) -> Expr:
    """A value in float32 at least: what is added up is not rounded to halves."""
    return op.cast(variable, promote(variable.dtype, float32))
