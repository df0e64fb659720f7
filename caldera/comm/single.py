"""One process alone: every collective is a copy."""

from __future__ import annotations

import numpy as np

from caldera.comm.interface import Communicator


class SingleProcess(Communicator):
    """The communicator of a program that runs in one process.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> result = np.zeros(2)
    >>> SingleProcess().Allreduce(np.array([1.0, 2.0]), result)
    >>> result
    array([1., 2.])
    """

    rank = 0
    size = 1

    def Allreduce(self, send: np.ndarray, receive: np.ndarray) -> None:
        np.copyto(receive, send)

    def Barrier(self) -> None:
        return
