"""Asynchronous strategies: their base class, and the server of parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Communicator, Request
from caldera.comm.requests import ProgressThread
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.program import substitute
from caldera.core.tensor.dtype import DType
from caldera.data import Share
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.parallel.asynchronous.staleness import MomentumCorrection, implicit_momentum
from caldera.parallel.asynchronous.transport import (
    LEAVE,
    PUSH,
    Push,
    Reply,
    ServerEndpoint,
    ServerShard,
)
from caldera.parallel.data.data_parallel import DataParallel
from caldera.parallel.data.sums import (
    EPOCH_SUMS,
    allreduce_arrays,
    mean_over_ranks,
    mean_view,
    sum_view,
)
from caldera.parallel.distributed_variables import variable_like
from caldera.train.strategy import (
    NO_VOTES,
    Gradients,
    RunSetup,
    StepProgram,
    Strategy,
    VariableView,
)


class AsynchronousStrategy(DataParallel):
    """Each rank computes on its share of each batch as if that were a batch of its own.

    Plans do not talk to those of other ranks, so losses and metrics are added up at the end of an
    epoch. Batch normalisation is over a rank's own samples; its running statistics are each rank's
    own while steps run, and the mean over ranks between epochs and in checkpoints. With `lockstep`
    plans talk, and everything is as in `DataParallel`.

    A loss scale is each rank's own: one whose gradients overflow skips its step alone, or where
    ranks take a step together, that of all.

    Gradients from older parameters act like momentum: `implicit_momentum` is that of the last
    epoch. With `momentum="corrected"` it is taken off the momentum of the optimizer.
    """

    replicas_are_equal = False

    def __init__(
        self,
        communicator: Communicator | None,
        momentum: str,
        *,
        lockstep: bool,
        bound: int | None = None,
    ) -> None:
        super().__init__(communicator=communicator)
        self.lockstep = lockstep or not self.has_others
        # Where every worker is as fast as the others, all others push between two of its steps.
        others = float(self.communicator.size - 1)
        expected = 0.0 if self.lockstep else others if bound is None else bound / 2
        self._correction = MomentumCorrection(
            type(self).__name__, corrects=momentum == "corrected", age=expected
        )
        # Between epochs all ranks evaluate together.
        everyone = self.communicator
        self._together = self if self.lockstep else DataParallel(communicator=everyone)
        self._is_stepping = False
        self._statistics: list[Variable] = []

    @property
    def has_others(self) -> bool:
        """Whether there are other ranks."""
        return self.communicator.size > 1

    @property
    def implicit_momentum(self) -> float:
        """Momentum that the age of gradients added in the last epoch; 0 before there was one."""
        return implicit_momentum(self._correction.measured)

    @property
    def is_distributed(self) -> bool:
        return self.lockstep and super().is_distributed

    def evaluating(self) -> Strategy:
        return self._together

    # --- graphs

    def gradients(self, loss: Expr, parameters: Sequence[Variable], share: Share) -> Gradients:
        # Of this rank's samples alone: nothing is summed on the way.
        return Gradients(list(parameters), op.grad(loss, list(parameters), unused="zero"))

    def parts(self, share: Share) -> list[Share]:
        return [share] if self.lockstep else [replace(share, count=share.samples)]

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        (part,) = parts
        # Nothing has no mean.
        still = set() if part.share.samples else {each.node for each in self._statistics}
        return [each for each in part.assignments() if not still.intersection(each.node.inputs[:1])]

    def compiled(self, make: Callable[[], Plan]) -> Plan:
        return super().compiled(make) if self.lockstep else make()

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self._correction.check(setup.optimizer)
        self._statistics = [] if self.lockstep else setup.model.states()

    def shard(self) -> None:
        self._is_stepping = True

    def unshard(self) -> None:
        if self._is_stepping:
            here = [each.numpy() for each in self._statistics]
            means = mean_over_ranks(self.communicator, here) if here else []
            for variable, mean in zip(self._statistics, means, strict=True):
                variable.assign(mean)
        self._is_stepping = False

    def epoch_sums(self, sums: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return sums if self.lockstep else allreduce_arrays(self.communicator, sums)

    # --- checkpoints

    def checkpoint_views(self, variables: Mapping[str, Variable]) -> Mapping[str, VariableView]:
        if self.lockstep:
            return variables
        return {name: self._checkpoint_view(name, each) for name, each in variables.items()}

    def _checkpoint_view(self, name: str, variable: Variable) -> VariableView:
        if name.startswith(EPOCH_SUMS):
            return sum_view(variable, self.communicator)
        if self._is_stepping and variable in set(self._statistics):
            return mean_view(variable, self.communicator)
        return variable


_PLACE, _VOTES, _TAKEN = 0, slice(1, 3), 3


class StopConsensus:
    """Counts the steps of every rank, and finds one that none of them has come to yet.

    A rank may be asked to stop, or to save, when others are many steps ahead of it or behind. All
    of them do it after the same number of steps: one more than the fastest has taken. `table` is
    where it keeps its numbers, which ranks may share; then they ask one at a time.

    >>> from caldera.parallel.asynchronous.server import StopConsensus
    >>> consensus = StopConsensus.of(2)
    >>> consensus.arrived(0, (0, 0)), consensus.arrived(0, (0, 0))
    ((0.0, 0.0), (0.0, 0.0))
    >>> consensus.arrived(1, (1, 0))          # rank 1 wants to stop: after three steps
    (0.0, 0.0)
    >>> consensus.arrived(0, (0, 0)), consensus.arrived(1, (1, 0)), consensus.arrived(1, (1, 0))
    ((1.0, 0.0), (0.0, 0.0), (1.0, 0.0))
    """

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    @classmethod
    def of(cls, ranks: int) -> StopConsensus:
        """One that nobody else writes to."""
        return cls(np.zeros(cls.size(ranks), np.int64))

    @staticmethod
    def size(ranks: int) -> int:
        """How many numbers (int64) a table for so many ranks has."""
        return _TAKEN + ranks

    def arrived(self, rank: int, votes: Sequence[float]) -> Sequence[float]:
        """A rank has taken a step and votes; what all ranks do after this one."""
        taken = self.table[_TAKEN:]
        taken[rank] += 1
        if not self.table[_PLACE] and any(votes):
            self.table[_PLACE] = taken.max() + 1
            self.table[_VOTES] = votes
        if taken[rank] != self.table[_PLACE]:
            return NO_VOTES
        stop, save = (float(each) for each in self.table[_VOTES])
        if taken.min() >= self.table[_PLACE]:
            # All know of it; the next vote is another one.
            self.table[_PLACE] = 0
        return stop, save


Decoder = Callable[[np.ndarray, int, DType], np.ndarray]
"""From a message to so many elements of a dtype."""


class ServerThread:
    """Serves all workers on a thread of its own while the steps of an epoch run.

    - `update(gradient, weight)` takes a step of the optimizer; `current()` is what there is now.
    - `bound`: pushes of one number make one update, which is taken when the last of them has come.
      A worker gets its answer when its parameters have seen all updates but `bound` of those that
      belong to its steps. None: every push is an update, taken and answered at once.
    - `means`: whether pushes are means over a worker's own samples, rather than terms of a sum.
    - `decoded`: what a message is, where gradients do not travel as they are.
    - `consensus`: for the one server that says when all workers stop or save.

    `applied` is how many updates were taken since `start`; `gaps` how often a gradient was computed
    from parameters that had not seen so many updates of those that came before it.
    """

    def __init__(
        self,
        shard: ServerShard,
        endpoint: ServerEndpoint,
        workers: int,
        update: Callable[[np.ndarray, float], object],
        current: Callable[[], np.ndarray],
        *,
        bound: int | None,
        means: bool,
        consensus: bool,
        decoded: Decoder | None = None,
    ) -> None:
        self.shard = shard
        self._endpoint = endpoint
        self._workers = workers
        self._update = update
        self._current = current
        self._bound = bound
        self._means = means
        self._meets = consensus
        self._decoder = decoded
        self._thread = ProgressThread(f"server of rank {shard.rank}")
        self._reset()

    def _reset(self) -> None:
        self.applied = 0
        self.gaps: Counter[int] = Counter()
        self._version = 0
        self._consensus = StopConsensus.of(self._workers) if self._meets else None
        self._pushes: dict[int, dict[int, Push]] = {}
        self._unanswered: list[tuple[int, int, tuple[float, ...]]] = []
        self._met: list[int] = []
        self._parameters: np.ndarray | None = None

    def start(self) -> Request:
        """Begin to serve, from the parameters there are now; done when all workers have left."""
        self._reset()
        self._endpoint.open()
        return self._thread.start(self._serve)

    def _serve(self) -> None:
        kind = PUSH
        while kind != LEAVE or self._met:
            push = self._endpoint.next()
            kind = push.kind
            if kind == PUSH:
                self._take(push)
            else:
                self._meet(push)
        self._endpoint.close()

    # --- pushes

    def _take(self, push: Push) -> None:
        tally = tuple(NO_VOTES)
        if self._consensus is not None:
            tally = tuple(self._consensus.arrived(push.worker, push.votes))
        if self._bound is None:
            self.gaps[self._version - push.version] += push.weight > 0
            if push.ok and push.weight > 0:
                self._step(self._decoded(push), push.weight)
                self._version += 1
            self._answer(push.worker, tally)
            return
        self.gaps[push.number - push.version] += 1
        self._unanswered.append((push.worker, push.number, tally))
        self._pushes.setdefault(push.number, {})[push.worker] = push
        while len(self._pushes.get(self._version, ())) == self._workers:
            self._step_together(self._pushes.pop(self._version))
            self._version += 1
        self._answer_those_who_may_go_on(self._bound)

    def _step_together(self, pushes: dict[int, Push]) -> None:
        """Take a step by what all workers sent, in the order of the ranks: the same every time."""
        everyone = [pushes[worker] for worker in range(self._workers)]
        weights = [push.weight for push in everyone]
        whole = sum(weights) if self._means else max(weights)
        if not all(push.ok for push in everyone):
            return
        # A batch whose samples all count for nothing is a step too: momentum and decay go on.
        total = np.zeros(self.shard.size, self.shard.dtype)
        for push in everyone:
            factor = push.weight / whole if self._means else 1.0
            if push.weight > 0:
                total += self._decoded(push) * self.shard.dtype.type(factor)
        self._step(total, whole)

    def _decoded(self, push: Push) -> np.ndarray:
        assert push.payload is not None
        if self._decoder is None:
            return push.payload.view(self.shard.dtype)
        return self._decoder(push.payload, self.shard.size, self.shard.dtype)

    def _step(self, gradient: np.ndarray, weight: float) -> None:
        self._update(gradient, weight)
        self._parameters = None
        self.applied += 1

    # --- answers

    def _answer_those_who_may_go_on(self, bound: int) -> None:
        # The next step of a worker comes after number + 1 others.
        last = self._version + bound - 1
        for worker, number, tally in self._unanswered:
            if number <= last:
                self._answer(worker, tally)
        self._unanswered = [each for each in self._unanswered if each[1] > last]

    def _answer(self, worker: int, tally: tuple[float, ...]) -> None:
        if self._parameters is None:
            # Those of an earlier version may still be on their way.
            self._parameters = self._current()
        self._endpoint.reply(worker, Reply(self._parameters, self._version, tally))

    def _meet(self, push: Push) -> None:
        self._met.append(push.worker)
        if len(self._met) == self._workers:
            for worker in self._met:
                self._answer(worker, tuple(NO_VOTES))
            self._met = []


_WEIGHT = "weight"


class ServerOptimizer:
    """What an optimizer does with the gradients of one shard.

    The server has copies of its parameters, since workers still compute with older ones. What the
    optimizer keeps for them it keeps where it always does, on the server's rank alone. It works on
    a thread of its own, and takes turns on the device with the worker of its rank.
    """

    def __init__(
        self, optimizer: Optimizer, shards: Sequence[ServerShard], own: ServerShard
    ) -> None:
        self._own, self._shards = own, shards
        self._held = {each: variable_like(each, each.shape) for each in own.parameters}
        self.optimizer: Optimizer | None = None
        self._turn = own.parameters[0].tensor.device.turn
        self.use(optimizer)

    def use(self, optimizer: Optimizer) -> None:
        """Take steps by the rule of this optimizer from now on."""
        self.optimizer, shards, own = optimizer, self._shards, self._own
        assignments = optimizer_assignments(optimizer, shards)
        elsewhere: set[Any] = set()
        for shard in shards:
            for each in shard.parameters if shard is not own else ():
                elsewhere |= {each.node, *(kept.node for kept in optimizer.kept_for(each))}
        roots = [each.node for each in assignments if each.node.inputs[0] not in elsewhere]
        held = {whole.node: copy.node for whole, copy in self._held.items()}
        self._plan = compile(
            [Expr(node) for node in substitute(roots, held)],
            device=own.parameters[0].tensor.device,
            remember=False,
        )
        known = {_WEIGHT, *(each.name for each in own.parameters)}
        if not known.issuperset(self._plan.inputs):
            raise ConfigError.build(
                "ParameterServer",
                expected="an optimizer that needs one parameter at a time",
                got=f"{type(optimizer).__name__} with {optimizer.clip} over {len(shards)} servers",
                hint="take servers=1, which has all gradients, or optim.ClipValue",
            )

    def take_over(self) -> None:
        """Go on from the parameters of the model."""
        for whole, copy in self._held.items():
            copy.assign(whole.numpy())

    def current(self) -> np.ndarray:
        """The parameters, as a message."""
        with self._turn:
            return self._own.packed(self._held)

    def update(self, gradient: np.ndarray, weight: float) -> None:
        """Take a step."""
        feeds: dict[str, Any] = {**self._own.parts(gradient), _WEIGHT: np.float64(weight)}
        with self._turn:
            self._plan.run({name: feeds[name] for name in self._plan.inputs})


def optimizer_assignments(optimizer: Optimizer, shards: Sequence[ServerShard]) -> list[Expr]:
    """The assignments of a step by gradients that are fed, under the names of the parameters.

    All ranks write them, which makes the variables of the optimizer.
    """
    parameters = [each for shard in shards for each in shard.parameters]
    gradients = [
        op.input(each.name, each.shape, shard.dtype)
        for shard in shards
        for each in shard.parameters
    ]
    return optimizer.apply(parameters, gradients, weight=op.input(_WEIGHT, (), "float64"))


def owners(optimizer: Optimizer, shards: Sequence[ServerShard]) -> Mapping[Variable, int]:
    """The rank that has the last word on each variable of an optimizer."""
    found = dict.fromkeys(optimizer.variables(), shards[0].rank)
    for shard in shards:
        for parameter in shard.parameters:
            found |= dict.fromkeys(optimizer.kept_for(parameter), shard.rank)
    return found
