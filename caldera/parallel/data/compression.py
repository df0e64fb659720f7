"""What `DataParallel` asks of something that sums gradients with fewer bytes, and what becomes of
that in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from caldera.base.configurable import Configurable
from caldera.comm import Communicator

State = Mapping[str, np.ndarray]
_RANK = "rank"


@runtime_checkable
class Compression(Protocol):
    """A way to sum gradients over ranks; `caldera.compress` has several.

    - `mean`: whether it takes the mean instead, which is not what gradients need here.
    - `exchange_all` puts the sums over all ranks in the place of gradients, by the names of their
      parameters; the same bits on every rank.
    - `state` is what a rank keeps between exchanges, by "kind/parameter" (see
      `caldera.compress.redistribute`), and `restore` takes it back.
    """

    mean: bool

    def exchange_all(self, gradients: Mapping[str, np.ndarray], communicator: Communicator) -> None:
        """Sum gradients over all ranks, in place and in one message."""

    def state(self) -> State:
        """What this rank keeps."""

    def restore(self, state: State) -> None:
        """Take up what `state` gave."""


def described(compression: Compression | None) -> str:
    """What it was made with, if it says so.

    >>> from caldera.compress import QSGD
    >>> from caldera.parallel.data.compression import described
    >>> described(QSGD(4))
    'QSGD(4)'
    """
    if compression is None or isinstance(compression, Configurable):
        return repr(compression)
    return type(compression).__name__


def gather_states(communicator: Communicator, own: State) -> dict[str, np.ndarray]:
    """The arrays of all ranks, by rank and name; all ranks have the same names and shapes."""
    found: dict[str, np.ndarray] = {}
    for name in sorted(own):
        mine = np.asarray(own[name], order="C")
        everyone = np.empty((communicator.size, *mine.shape), mine.dtype)
        communicator.Allgather(mine.reshape(-1), everyone.reshape(-1))
        for rank, array in enumerate(everyone):
            found[f"{_RANK} {rank}/{name}"] = np.asarray(array)
    return found


def states_by_rank(arrays: State) -> list[dict[str, np.ndarray]]:
    """The arrays that `gather_states` gave, for each rank that there was; others are left out.

    >>> import numpy as np
    >>> from caldera.parallel.data.compression import states_by_rank
    >>> states_by_rank({"rank 0/residual/w": np.array([1.0]), "rank 1/residual/w": np.array([2.0])})
    [{'residual/w': array([1.])}, {'residual/w': array([2.])}]
    """
    found: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        owner, _, name = key.partition("/")
        if owner.startswith(f"{_RANK} "):
            found.setdefault(int(owner.removeprefix(f"{_RANK} ")), {})[name] = array
    return [found[rank] for rank in sorted(found)]
