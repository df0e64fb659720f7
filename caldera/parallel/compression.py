"""What `DataParallel` asks of something that sums gradients with fewer bytes, and what becomes of
that in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from caldera.comm import Communicator

State = Mapping[str, np.ndarray]
SUMMED = ("residual", "velocity")
"""Kinds of state that are about what a rank has not sent yet: their sum over ranks is what counts.
Everything else is alike on all ranks."""
_RANK = "rank"


class Compression(Protocol):
    """A way to sum gradients over ranks; `caldera.compress` has several.

    - `mean`: whether it takes the mean instead, which is not what gradients need here.
    - `exchange_all` puts the sums over all ranks in the place of gradients, by the names of their
      parameters; the same bits on every rank.
    - `state` is what a rank keeps between exchanges, by "kind/parameter" (see `SUMMED`), and
      `restore` takes it back.
    """

    mean: bool

    def exchange_all(self, gradients: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        """Sum gradients over all ranks, in place and in one message."""

    def state(self) -> State:
        """What this rank keeps."""

    def restore(self, state: State) -> None:
        """Take up what `state` gave."""


def of_all_ranks(communicator: Communicator, own: State) -> dict[str, np.ndarray]:
    """The arrays of all ranks, by rank and name; all ranks have the same names and shapes."""
    found: dict[str, np.ndarray] = {}
    for name in sorted(own):
        mine = np.asarray(own[name], order="C")
        everyone = np.empty((communicator.size, *mine.shape), mine.dtype)
        communicator.Allgather(mine.reshape(-1), everyone.reshape(-1))
        for rank, array in enumerate(everyone):
            found[f"{_RANK} {rank}/{name}"] = np.asarray(array)
    return found


def by_rank(arrays: State) -> list[dict[str, np.ndarray]]:
    """The arrays that `of_all_ranks` gave, for each rank that there was.

    >>> import numpy as np
    >>> from caldera.parallel.compression import by_rank
    >>> by_rank({"rank 0/residual/w": np.array([1.0]), "rank 1/residual/w": np.array([2.0])})
    [{'residual/w': array([1.])}, {'residual/w': array([2.])}]
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        owner, name = key.split("/", 1)
        found.setdefault(int(owner.removeprefix(f"{_RANK} ")), {})[name] = array
    return [found[rank] for rank in sorted(found)]


def for_rank(states: Sequence[State], rank: int, ranks: int) -> dict[str, np.ndarray]:
    """What one of `ranks` ranks gets of states that were saved by some number of them.

    What old ranks had goes to the new ones in turn, and adds up there: nothing is lost.

    >>> import numpy as np
    >>> from caldera.parallel.compression import for_rank
    >>> four = [{"residual/w": np.array([float(rank)])} for rank in range(4)]
    >>> [for_rank(four, rank, 3)["residual/w"].item() for rank in range(3)]
    [3.0, 1.0, 2.0]
    """
    found: dict[str, np.ndarray] = {}
    for key, first in states[0].items():
        if key.split("/")[0] not in SUMMED:
            found[key] = first
            continue
        found[key] = np.zeros_like(first)
        for state in states[rank::ranks]:
            found[key] += state[key]
    return found
