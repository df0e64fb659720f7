"""One process alone: every collective is a copy."""

from __future__ import annotations

import numpy as np

from caldera.comm.interface import Communicator
from caldera.comm.mailboxes import Fate, Mailboxes
from caldera.comm.request import Request
from caldera.comm.traffic import Traffic


class SingleProcess(Communicator):
    """The communicator of a program that runs in one process.

    >>> import numpy as np
    >>> from caldera.comm import SingleProcess
    >>> result = np.zeros(2)
    >>> SingleProcess().Allreduce(np.array([1.0, 2.0]), result)
    >>> result
    array([1., 2.])
    """

    name = "one process"

    def __init__(self, traffic: Traffic | None = None) -> None:
        super().__init__(0, 1, traffic)
        self._boxes = Mailboxes(1, Fate())
        # Nobody else can send: a message that is not there never comes.
        self._boxes.patience_s = 0.0

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self._boxes.send(0, dest, tag, buffer)

    def _start_receive(self, buffer: np.ndarray, source: int, tag: int) -> Request:
        return self._boxes.receive(0, buffer, source, tag)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        return None if color is None else SingleProcess()

    def _twin(self) -> Communicator:
        return SingleProcess(self.traffic)
