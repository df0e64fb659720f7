"""Base class of asynchronous strategies, and consensus on a common last step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from caldera import op
from caldera.comm import Communicator
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.plan import Plan
from caldera.data import Share
from caldera.parallel.data.data_parallel import DataParallel
from caldera.parallel.data.sums import (
    EPOCH_SUMS,
    allreduce_arrays,
    mean_over_ranks,
    mean_view,
    sum_view,
)
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
    """

    replicas_are_equal = False

    def __init__(self, communicator: Communicator | None, *, lockstep: bool) -> None:
        super().__init__(communicator=communicator)
        self.lockstep = lockstep or not self.has_others
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

    >>> from caldera.parallel.asynchronous.strategy import StopConsensus
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
