"""Gossip: ranks take means with few others, and agree in the long run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from caldera import op
from caldera.comm import Communicator, Request
from caldera.comm.algorithms.segments import start_receive, start_send, wait_all
from caldera.compiler.lazy import Expr, Variable
from caldera.core.graph.ops.collective import Message, all_reduce, next_number
from caldera.data.random_draws import permutation
from caldera.parallel.averaging.local_sgd import PeriodicAveraging, wide
from caldera.parallel.consistency import check_choice
from caldera.parallel.data.sums import mean_over_ranks
from caldera.train.strategy import RunSetup

_TURN = "turn of gossip"


# --- which ranks share with which, and by how much


def ring(ranks: int, turn: int, seed: int) -> np.ndarray:
    """Return weights for a mean of each rank and its two neighbours.

    >>> from caldera.parallel.averaging.gossip import ring
    >>> ring(4, turn=0, seed=0)
    array([[1, 1, 0, 1],
           [1, 1, 1, 0],
           [0, 1, 1, 1],
           [1, 0, 1, 1]])
    """
    found = np.eye(ranks, dtype=np.int64)
    for rank in range(ranks):
        for neighbour in ((rank - 1) % ranks, (rank + 1) % ranks):
            found[rank, neighbour] = 1
    return found


def random_pairs(ranks: int, turn: int, seed: int) -> np.ndarray:
    """Pair ranks at random, differently in every turn; an odd number leaves one rank unpaired.

    >>> from caldera.parallel.averaging.gossip import random_pairs
    >>> random_pairs(3, turn=0, seed=0)
    array([[1, 0, 1],
           [0, 2, 0],
           [1, 0, 1]])
    """
    found = 2 * np.eye(ranks, dtype=np.int64)
    order = permutation(ranks, seed, turn)
    for one, other in zip(order[0::2], order[1::2], strict=False):
        found[one, one] = found[other, other] = 1
        found[one, other] = found[other, one] = 1
    return found


PATTERNS: dict[str, Callable[[int, int, int], np.ndarray]] = {
    "ring": ring,
    "random pairs": random_pairs,
}
"""Functions that return integer weights of each rank for each rank; all rows and columns have the
same sum.
"""


class Gossip(PeriodicAveraging):
    """Every `every` steps each rank averages its model with the models of a few neighbours.

    `pattern` is "ring" (two neighbours) or "random pairs" (one rank, redrawn each time from `seed`;
    with an odd number of ranks one is left out). No rank waits for all ranks: updates of distant
    ranks arrive later. `mixing_matrix` returns the weights. Its rows and columns sum to 1, so the
    mean over ranks is preserved and differences shrink.

    Optimizer state stays with its rank; running statistics are sent with the parameters. Between
    epochs and after the run, every rank has the mean of all models. A request to one rank (to stop,
    to save) reaches all ranks at the exchange after the next.

    >>> from caldera import parallel
    >>> parallel.Gossip("random pairs", every=4)
    Gossip(pattern='random pairs', every=4, seed=0)
    """

    def __init__(
        self,
        pattern: str = "ring",
        every: int = 1,
        *,
        seed: int = 0,
        communicator: Communicator | None = None,
    ) -> None:
        check_choice("Gossip", "pattern", pattern, PATTERNS)
        super().__init__(every, communicator, "auto")
        self.pattern = pattern
        self.seed = seed
        self.turn = 0
        self._asking: tuple[Request, np.ndarray] | None = None

    def __repr__(self) -> str:
        return f"Gossip(pattern={self.pattern!r}, every={self.every}, seed={self.seed})"

    def counts(self, turn: int) -> np.ndarray:
        """Return the mixing matrix as integers: the weight of rank j (column) in rank i's mean
        (row).
        """
        return PATTERNS[self.pattern](self.communicator.size, turn, self.seed)

    def mixing_matrix(self, turn: int = 0) -> np.ndarray:
        """Return the matrix that an exchange applies to the models of all ranks.

        >>> from caldera import parallel
        >>> from caldera.comm import run_virtual_ranks
        >>> run_virtual_ranks(2, lambda c: parallel.Gossip(communicator=c).mixing_matrix())[0]
        array([[0.5, 0.5],
               [0.5, 0.5]])
        """
        counts = self.counts(turn)
        return counts / counts[0].sum()

    def exchanged(self) -> list[Expr]:
        variables = self.averaged()
        values = [wide(each) for each in variables]
        updates = []
        for dtype in dict.fromkeys(each.dtype for each in values):
            chosen = [i for i, each in enumerate(values) if each.dtype == dtype]
            names = tuple(str(index) for index in chosen)
            message = Message(
                "sum", "data", next_number(), now=True, exchange=_Mixer(self), names=names
            )
            mixed = all_reduce([values[index].node for index in chosen], message)
            for index, node in zip(chosen, mixed, strict=True):
                variable = variables[index]
                updates.append(op.assign(variable, op.cast(Expr(node), variable.dtype)))
        return updates

    def whole(self, variables: Sequence[Variable]) -> list[np.ndarray]:
        return mean_over_ranks(self.communicator, [each.numpy() for each in variables])

    # --- a run

    def begin(self, setup: RunSetup) -> None:
        super().begin(setup)
        self.turn, self._asking = 0, None

    def _exchange(self) -> None:
        super()._exchange()
        self.turn += 1

    def tally(self, votes: Sequence[float]) -> Sequence[float] | None:
        # Requested in the background and read later, so that no rank waits for all ranks.
        before = self._answer()
        sums = np.array(votes)
        self._asking = (self.communicator.Iallreduce(sums, sums), sums)
        return before

    def _answer(self) -> Sequence[float] | None:
        if self._asking is None:
            return None
        request, sums = self._asking
        self._asking = None
        request.wait()
        return [float(each) for each in sums]

    def end(self) -> None:
        self._answer()
        super().end()

    # --- checkpoints

    def saved(self) -> dict[str, np.ndarray]:
        return super().saved() | {_TURN: np.array(self.turn)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.turn = int(arrays.get(_TURN, 0))
        super().restore(arrays)


class _Mixer:
    """Sends a rank's values to those it shares with, and takes the mean with theirs."""

    def __init__(self, gossip: Gossip) -> None:
        self._gossip = gossip

    def exchange_all(self, values: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        row = self._gossip.counts(self._gossip.turn)[communicator.rank]
        others = [rank for rank in np.flatnonzero(row).tolist() if rank != communicator.rank]
        mine = np.concatenate([each.reshape(-1) for each in values.values()])
        theirs = {rank: np.empty_like(mine) for rank in others}
        # Sent in segments: two long messages in opposite directions would block each other.
        requests = [r for rank in others for r in start_receive(communicator, theirs[rank], rank)]
        requests += [r for rank in others for r in start_send(communicator, mine, rank)]
        wait_all(requests)
        # In rank order: ranks that average the same models get the same bits.
        everyone = {communicator.rank: mine} | theirs
        total = sum(mine.dtype.type(row[rank]) * everyone[rank] for rank in sorted(everyone))
        mean = np.asarray(total) / mine.dtype.type(row.sum())
        ends = np.cumsum([each.size for each in values.values()])[:-1]
        for each, part in zip(values.values(), np.split(mean, ends), strict=True):
            each[...] = part.reshape(each.shape)
