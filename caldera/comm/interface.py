"""What a communicator is: ranks that exchange buffers, with MPI's names for what they do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class Communicator(ABC):
    """A group of ranks; each holds an object of its own with its `rank`.

    >>> from caldera.comm import SingleProcess
    >>> comm = SingleProcess()
    >>> comm.rank, comm.size
    (0, 1)
    """

    rank: int
    size: int

    @abstractmethod
    def Allreduce(self, send: np.ndarray, receive: np.ndarray) -> None:
        """`receive` becomes the sum of `send` over all ranks, the same bits on each of them."""

    @abstractmethod
    def Barrier(self) -> None:
        """Wait until all ranks are here."""
