"""Parameter server, and the optimizer step of its parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from caldera import op
from caldera.comm import Request
from caldera.comm.requests import ProgressThread
from caldera.compiler.lazy import Expr, Variable, compile
from caldera.core.graph.program import substitute
from caldera.core.tensor.dtype import DType
from caldera.errors import ConfigError
from caldera.optim import Optimizer
from caldera.parallel.asynchronous.strategy import StopConsensus
from caldera.parallel.asynchronous.transport import (
    LEAVE,
    PUSH,
    Push,
    Reply,
    ServerEndpoint,
    ServerShard,
)
from caldera.parallel.distributed_variables import variable_like
from caldera.train.strategy import NO_VOTES

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
            self.gaps[self._version - push.version] += 1
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
        if not all(push.ok for push in everyone) or not whole > 0:
            return
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
        waiting = []
        for worker, number, tally in self._unanswered:
            # The next step of this worker comes after number + 1 others.
            if number + 1 - self._version <= bound:
                self._answer(worker, tally)
            else:
                waiting.append((worker, number, tally))
        self._unanswered = waiting

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
        self._own = own
        self._held = {each: variable_like(each, each.shape) for each in own.parameters}
        assignments = optimizer_assignments(optimizer, shards)
        elsewhere: set[Any] = set()
        for shard in shards:
            for each in shard.parameters if shard is not own else ():
                elsewhere |= {each.node, *(kept.node for kept in optimizer.kept_for(each))}
        roots = [each.node for each in assignments if each.node.inputs[0] not in elsewhere]
        held = {whole.node: copy.node for whole, copy in self._held.items()}
        device = own.parameters[0].tensor.device
        self._turn = device.turn
        self._plan = compile(
            [Expr(node) for node in substitute(roots, held)], device=device, remember=False
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
