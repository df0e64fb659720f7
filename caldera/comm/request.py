"""Something that was begun and will be done."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Request(ABC):
    """What a nonblocking call returns. Its buffers belong to it until it is done.

    `source` is the rank that a received message came from, once it is there, and `received` its
    bytes.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> comm, here = SingleProcess(), np.empty(3)
    >>> request = comm.Irecv(here, source=0)
    >>> request.test()
    False
    >>> comm.Send(np.ones(3), dest=0)
    >>> request.test(), here.sum().item()
    (True, 3.0)
    """

    source: int = -1
    received: int = 0

    @abstractmethod
    def wait(self) -> None:
        """Wait until it is done; raises what went wrong."""

    @abstractmethod
    def test(self) -> bool:
        """Whether it is done; raises what went wrong."""


class Done(Request):
    """What was done at once."""

    def wait(self) -> None:
        return

    def test(self) -> bool:
        return True
