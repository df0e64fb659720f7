"""How ranks that go at their own pace agree on a step after which all of them do the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.train.strategy import NO_VOTES

_PLACE, _VOTES, _TAKEN = 0, slice(1, 3), 3


class StopConsensus:
    """Counts the steps of every rank, and finds one that none of them has come to yet.

    A rank may be asked to stop, or to save, when others are many steps ahead of it or behind. All
    of them do it after the same number of steps: one more than the fastest has taken. `table` is
    where it keeps its numbers, which ranks may share; then they ask one at a time.

    >>> from caldera.parallel.asynchronous.stop_consensus import StopConsensus
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
