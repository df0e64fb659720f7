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
    """Each rank treats its share of each batch as a separate batch.

    Plans do not communicate, so losses and metrics are summed at the end of an epoch. Batch
    normalisation is over a rank's samples. Its running statistics are separate during an epoch, and
    averaged over ranks between epochs and in checkpoints. With `lockstep` plans communicate as in
    `DataParallel`.

    Each rank has its own loss scale. A rank whose gradients overflow skips its step; where ranks
    take a step together, all ranks skip it.

    Gradients from older parameters act like momentum: `implicit_momentum` is measured over the last
    epoch. With `momentum="corrected"` it is subtracted from the momentum of the optimizer.
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
        # With workers of equal speed, each remaining worker pushes once between two steps of a
        # worker.
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
        """True if there is more than one rank."""
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
        # Local gradients: plans of this strategy contain no collectives.
        return Gradients(list(parameters), op.grad(loss, list(parameters), unused="zero"))

    def parts(self, share: Share) -> list[Share]:
        return [share] if self.lockstep else [replace(share, count=share.samples)]

    def program(self, parts: Sequence[StepProgram]) -> list[Expr]:
        (part,) = parts
        # The mean of an empty batch is undefined.
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
    """Agreement on a common step at which all ranks stop or save.

    A request may reach a rank when others are many steps ahead or behind. All ranks follow it after
    the same number of steps: one more than the fastest rank has taken. `table` stores the counters
    and may be shared memory; ranks then access it one at a time.

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
        """Return a consensus with a private table."""
        return cls(np.zeros(cls.size(ranks), np.int64))

    @staticmethod
    def size(ranks: int) -> int:
        """Return the number of int64 elements in the table for `ranks` ranks."""
        return _TAKEN + ranks

    def arrived(self, rank: int, votes: Sequence[float]) -> Sequence[float]:
        """Count a rank's step and vote; return the next action of all ranks."""
        taken = self.table[_TAKEN:]
        taken[rank] += 1
        if not self.table[_PLACE] and any(votes):
            self.table[_PLACE] = taken.max() + 1
            self.table[_VOTES] = votes
        if taken[rank] != self.table[_PLACE]:
            return NO_VOTES
        stop, save = (float(each) for each in self.table[_VOTES])
        if taken.min() >= self.table[_PLACE]:
            # All ranks have seen the vote; the next one starts from zero.
            self.table[_PLACE] = 0
        return stop, save


Decoder = Callable[[np.ndarray, int, DType], np.ndarray]
"""Function from a message, a number of elements and a dtype to the decoded array."""


class ServerThread:
    """Thread that serves all workers during an epoch.

    - `update(gradient, weight)` takes a step of the optimizer; `current()` returns the current
      parameters.
    - `bound`: pushes with the same step number form one update, applied when the last push has
      arrived. A worker receives its answer when its parameters lack at most `bound` updates. None:
      every push is a separate update, applied and answered immediately.
    - `means`: True if pushes are means over a worker's samples, False if they are terms of a sum.
    - `decoded`: decoder of compressed gradients.
    - `consensus`: on the server that decides when all workers stop or save.

    `applied` is the number of updates since `start`; `gaps` counts gradients by the number of
    updates that their parameters lacked.
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
        """Take a step with the pushes of all workers, added in rank order for reproducibility."""
        everyone = [pushes[worker] for worker in range(self._workers)]
        weights = [push.weight for push in everyone]
        whole = sum(weights) if self._means else max(weights)
        if not all(push.ok for push in everyone):
            return
        # A batch whose samples all have weight 0 is still a step: momentum and decay continue.
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
        # The next step of a worker follows number + 1 updates.
        last = self._version + bound - 1
        for worker, number, tally in self._unanswered:
            if number <= last:
                self._answer(worker, tally)
        self._unanswered = [each for each in self._unanswered if each[1] > last]

    def _answer(self, worker: int, tally: tuple[float, ...]) -> None:
        if self._parameters is None:
            # Copied: replies with an earlier version may still be in flight.
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
    """Optimizer step of one server on its shard of the gradients.

    The server copies its parameters, since workers still compute with older ones. Optimizer state
    is stored in the usual variables, on the server's rank only. The step runs on a separate thread,
    and alternates on the device with the worker of its rank.
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
        """Load the parameters of the model."""
        for whole, copy in self._held.items():
            copy.assign(whole.numpy())

    def current(self) -> np.ndarray:
        """Return the parameters, as a message."""
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
    """Return the rank that has the last word on each variable of an optimizer."""
    found = dict.fromkeys(optimizer.variables(), shards[0].rank)
    for shard in shards:
        for parameter in shard.parameters:
            found |= dict.fromkeys(optimizer.kept_for(parameter), shard.rank)
    return found
