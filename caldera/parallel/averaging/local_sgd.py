"""Ranks that take independent steps and exchange parameters periodically.

In local SGD, ranks train independently and average their models periodically. In elastic
averaging, ranks are drawn to a common centre, and the centre to the ranks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.core.tensor.dtype import float32, promote
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.parallel.averaging.ensemble import ReplicaStrategy
from caldera.parallel.consistency import check_choice, check_counts, check_same
from caldera.parallel.data.data_parallel import BUCKET_BYTES
from caldera.parallel.data.sums import State, bucketed_sums, mean_over_ranks, mean_view
from caldera.parallel.distributed_variables import PerRankVariable
from caldera.train.strategy import Gradients, RunSetup, VariableView

Start = Callable[[Variable], np.ndarray]
_STEPS = "steps since the last exchange"
_WEIGHT = "weight since the last exchange"


class PeriodicAveraging(ReplicaStrategy):
    """Base of strategies whose ranks exchange model variables every `every` steps.

    `exchanged` builds the exchange as assignments of one plan, and `whole` returns the combination
    of all ranks' models. Between epochs and after the run, every rank has the combination; at the
    next epoch each continues with its own model.
    """

    def __init__(self, every: int, communicator: Communicator | None, algorithm: str) -> None:
        check_counts(type(self).__name__, every=every)
        super().__init__(communicator, algorithm)
        self.every = every
        self._steps = 0
        self._weight: Variable | None = None
        self._plan: Plan | None = None
        self._own: dict[Variable, np.ndarray] = {}
        self._followed: dict[str, tuple[dict[Variable, Variable], Start]] = {}

    # --- what a strategy says

    @abstractmethod
    def exchanged(self) -> list[Expr]:
        """Return the assignments of an exchange."""

    @abstractmethod
    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        """Return the combined values of model variables over all ranks; all ranks must call it."""

    @property
    def is_whole(self) -> bool:
        """True if the ranks' variables are already combined."""
        return self.communicator.size == 1

    def averaged(self) -> list[Variable]:
        """Return variables whose copies diverge between ranks: trained parameters and running
        statistics.
        """
        return [*self.model.trainable(), *self.model.states()]

    def kept(self) -> list[Variable]:
        """State variables of the optimizer."""
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
        self._steps, self._plan, self._own, self._followed = 0, None, {}, {}
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
        """Ranks with separate streams of data may reach their end while others continue."""
        check_same(self.communicator, "between averages", [here])

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
        """Return the sums over ranks of their votes."""
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

    def _follow(
        self, prefix: str, parameters: Iterable[Variable], start: Start
    ) -> dict[Variable, Variable]:
        """Return wide counterparts of parameters, which are saved and initialised by `start`."""
        made = {
            each: op.var(
                each.name,
                each.shape,
                fill=start(each),
                dtype=promote(each.dtype, float32),
                device=each.tensor.device,
            )
            for each in parameters
        }
        self._followed[prefix] = made, start
        return made

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

    def saved(self) -> dict[str, np.ndarray]:
        return super().saved() | {
            f"{prefix}{each.name}": kept.numpy()
            for prefix, (made, _) in self._followed.items()
            for each, kept in made.items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for prefix, (made, start) in self._followed.items():
            for each, kept in made.items():
                kept.assign(arrays.get(f"{prefix}{each.name}", start(each)))
        super().restore(arrays)

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
    """Return the sums of values over ranks, reduced together in a plan."""
    found = bucketed_sums(values, range(len(values)), BUCKET_BYTES)
    return [found[index] for index in range(len(values))]


def wide(variable: Variable) -> Expr:
    """Return a value in float32 or wider, so that sums are not rounded to half precision."""
    return op.cast(variable, promote(variable.dtype, float32))


def _value(variable: Variable) -> np.ndarray:
    return wide(variable).numpy()


STATE = ("average", "keep")
BEGAN, UPDATE = "block/", "block update/"


class LocalSGD(PeriodicAveraging):
    """Every rank takes `every` steps on its own samples, then all ranks average their models.

    `batch_size` is the size of the whole batch, which ranks share. A rank is weighted by the
    samples it has seen since the last mean (by their weights, if there are any). Optimizer state is
    averaged as well, or stays with its rank with `state="keep"`, which sends fewer bytes.

    `momentum` is block momentum (Chen and Huo, 2016): the change of the mean model since the last
    exchange is treated as a gradient, and SGD with this momentum computes the next common model.
    Averaging makes steps smaller, as the ranks' differences cancel, and momentum compensates for
    it. The authors recommend 1 - 1 / ranks.

    With `every=1` and SGD, with or without momentum, this equals `DataParallel` up to rounding.
    Batch normalisation is by rank, and the running statistics are averaged with the parameters.
    Between epochs every rank has the mean model, which validation uses. At the next epoch each rank
    continues with its own model, so `every` does not have to divide an epoch.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn, parallel
    >>> from caldera.comm import run_virtual_ranks
    >>> x = np.linspace(-1, 1, 12, dtype="float32")[:, None]
    >>> def model():
    ...     return cd.NeuralNetwork([nn.Input((1,)), nn.Dense(1)], loss="mse", batch_size=4)
    >>> models = [model() for _ in range(2)]
    >>> def work(comm):
    ...     strategy = parallel.LocalSGD(every=2, communicator=comm)
    ...     return models[comm.rank].fit((x, 2 * x), parallel=strategy, verbose=0)["loss"]
    >>> losses = run_virtual_ranks(2, work)
    >>> losses[0] == losses[1]
    True
    >>> np.array_equal(models[0].predict(x), models[1].predict(x))
    True
    """

    def __init__(
        self,
        every: int = 8,
        *,
        state: str = "average",
        momentum: float = 0.0,
        algorithm: str = "auto",
        communicator: Communicator | None = None,
    ) -> None:
        check_choice("LocalSGD", "state", state, STATE)
        if not 0 <= momentum < 1:
            raise ConfigError.build(
                "LocalSGD",
                expected="0 <= momentum < 1",
                got=repr(momentum),
                hint="with 1, parameters would never converge",
            )
        super().__init__(every, communicator, algorithm)
        self.state = state
        self.momentum = float(momentum)
        self._began: dict[Variable, Variable] = {}
        self._update: dict[Variable, Variable] = {}

    def __repr__(self) -> str:
        momentum = f", momentum={self.momentum:g}" if self.momentum else ""
        return f"LocalSGD(every={self.every}, state={self.state!r}{momentum})"

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        chosen = setup.model.trainable() if self.momentum else []
        # A run without block momentum has none of these: then a block begins with the model.
        self._began = self._follow(BEGAN, chosen, _value)
        self._update = self._follow(UPDATE, chosen, lambda each: np.zeros_like(_value(each)))

    @property
    def is_whole(self) -> bool:
        return super().is_whole or self._steps == 0

    def exchanged(self) -> list[Expr]:
        variables = self.averaged() + (self.kept() if self.state == "average" else [])
        message = Message("sum", "data", next_number(), now=True)
        total = Expr(all_reduce([self.weight.node], message)[0])
        # If no rank has seen a sample that counts, all are alike.
        own = op.where(total > 0.0, self.weight, 1.0)
        everyone = op.where(total > 0.0, total, float(self.communicator.size))
        # Whole numbers of samples, and one division at the end: there is no drift by rounding.
        parts = [op.cast(own, each.dtype) * each for each in map(wide, variables)]
        means = [each / op.cast(everyone, each.dtype) for each in sums(parts)]
        found = dict(zip(variables, means, strict=True))
        updates = []
        for each, began in self._began.items():
            update = self.momentum * self._update[each] + (found[each] - began)
            found[each] = began + update
            updates += [op.assign(self._update[each], update), op.assign(began, found[each])]
        return [op.assign(each, op.cast(new, each.dtype)) for each, new in found.items()] + updates

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        values = [each.numpy() for each in variables]
        return mean_over_ranks(self.communicator, values, float(self.weight.numpy()))


CENTRE = "centre/"


class ElasticAveraging(PeriodicAveraging):
    """EASGD (Zhang, Choromanska, LeCun 2015): ranks explore independently, coupled to a centre.

    Every `every` steps, the parameters x of each of n ranks and the centre c become

        x - coupling / n * (x - c)    and    c + coupling / n * (sum over ranks of x - c)

    The sum of the centre and all ranks is preserved. With `coupling=1` the centre becomes the mean
    of the ranks. The result of training, and the model that validation uses, is the centre with the
    mean of the ranks' running statistics.

    With `coupling=0` there are n independent runs without exchange, and every rank ends with its
    own model. On one rank this is plain training.

    >>> from caldera import parallel
    >>> parallel.ElasticAveraging(coupling=0.5, every=4)
    ElasticAveraging(coupling=0.5, every=4)
    """

    def __init__(
        self,
        coupling: float = 0.9,
        every: int = 10,
        *,
        algorithm: str = "auto",
        communicator: Communicator | None = None,
    ) -> None:
        if not 0 <= coupling <= 1:
            raise ConfigError.build(
                "ElasticAveraging",
                expected="0 <= coupling <= 1",
                got=repr(coupling),
                hint="beyond 1 the centre overshoots the mean of the ranks",
            )
        super().__init__(every, communicator, algorithm)
        self.coupling = float(coupling)
        self._centre: dict[Variable, Variable] = {}

    def __repr__(self) -> str:
        return f"ElasticAveraging(coupling={self.coupling:g}, every={self.every})"

    @property
    def is_whole(self) -> bool:
        return super().is_whole or not self.coupling

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        # A run of another strategy has no centre: then it begins where the model is.
        self._centre = self._follow(
            CENTRE, [] if self.is_whole else setup.model.trainable(), _value
        )

    def exchanged(self) -> list[Expr]:
        rate = self.coupling / self.communicator.size
        away = {each: wide(each) - centre for each, centre in self._centre.items()}
        pulls = sums(list(away.values()))
        updates = [
            op.assign(each, op.cast(wide(each) - rate * away[each], each.dtype)) for each in away
        ]
        for centre, pull in zip(self._centre.values(), pulls, strict=True):
            updates.append(op.assign(centre, centre + rate * pull))
        return updates

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        others = [each for each in variables if each not in self._centre]
        means = mean_over_ranks(self.communicator, [each.numpy() for each in others])
        found = dict(zip(others, means, strict=True))
        found |= {each: centre.numpy().astype(each.dtype) for each, centre in self._centre.items()}
        return [found[each] for each in variables]

    def end(self) -> None:
        if self.coupling:
            super().end()
