"""A server: it keeps some parameters, and changes them as workers send gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from caldera.comm import Request
from caldera.comm.background import BackgroundThread
from caldera.parallel.lines import LEAVE, PUSH, Desk, Push, Reply
from caldera.parallel.meeting import NOTHING, Meeting
from caldera.parallel.shards import Shard
from caldera.tensor.dtype import DType

Decoder = Callable[[np.ndarray, int, DType], np.ndarray]
"""From a message to so many elements of a dtype."""


class Server:
    """Serves all workers on a thread of its own while the steps of an epoch run.

    - `update(gradient, weight)` takes a step of the optimizer; `current()` is what there is now.
    - `bound`: pushes of one number make one update, which is taken when the last of them has come.
      A worker gets its answer when its parameters have seen all updates but `bound` of those that
      belong to its steps. None: every push is an update, taken and answered at once.
    - `means`: whether pushes are means over a worker's own samples, rather than terms of a sum.
    - `decoded`: what a message is, where gradients do not travel as they are.
    - `meeting`: for the one server that says when all workers stop or save.

    `applied` is how many updates were taken since `start`; `gaps` how often a gradient was computed
    from parameters that had not seen so many updates of those that came before it.
    """

    def __init__(
        self,
        shard: Shard,
        desk: Desk,
        workers: int,
        update: Callable[[np.ndarray, float], object],
        current: Callable[[], np.ndarray],
        *,
        bound: int | None,
        means: bool,
        meeting: bool,
        decoded: Decoder | None = None,
    ) -> None:
        self.shard = shard
        self._desk = desk
        self._workers = workers
        self._update = update
        self._current = current
        self._bound = bound
        self._means = means
        self._meets = meeting
        self._decoder = decoded
        self._thread = BackgroundThread(f"server of rank {shard.rank}")
        self._reset()

    def _reset(self) -> None:
        self.applied = 0
        self.gaps: Counter[int] = Counter()
        self._version = 0
        self._meeting = Meeting.of(self._workers) if self._meets else None
        self._pushes: dict[int, dict[int, Push]] = {}
        self._unanswered: list[tuple[int, int, tuple[float, ...]]] = []
        self._met: list[int] = []
        self._parameters: np.ndarray | None = None

    def start(self) -> Request:
        """Begin to serve, from the parameters there are now; done when all workers have left."""
        self._reset()
        self._desk.open()
        return self._thread.start(self._serve)

    def _serve(self) -> None:
        kind = PUSH
        while kind != LEAVE or self._met:
            push = self._desk.next()
            kind = push.kind
            if kind == PUSH:
                self._take(push)
            else:
                self._meet(push)
        self._desk.close()

    # --- pushes

    def _take(self, push: Push) -> None:
        told = tuple(NOTHING)
        if self._meeting is not None:
            told = tuple(self._meeting.arrived(push.worker, push.wishes))
        if self._bound is None:
            self.gaps[self._version - push.version] += 1
            if push.ok and push.weight > 0:
                self._step(self._decoded(push), push.weight)
                self._version += 1
            self._answer(push.worker, told)
            return
        self.gaps[push.number - push.version] += 1
        self._unanswered.append((push.worker, push.number, told))
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
        for worker, number, told in self._unanswered:
            # The next step of this worker comes after number + 1 others.
            if number + 1 - self._version <= bound:
                self._answer(worker, told)
            else:
                waiting.append((worker, number, told))
        self._unanswered = waiting

    def _answer(self, worker: int, told: tuple[float, ...]) -> None:
        if self._parameters is None:
            # Those of an earlier version may still be on their way.
            self._parameters = self._current()
        self._desk.reply(worker, Reply(self._parameters, self._version, told))

    def _meet(self, push: Push) -> None:
        self._met.append(push.worker)
        if len(self._met) == self._workers:
            for worker in self._met:
                self._answer(worker, tuple(NOTHING))
            self._met = []
