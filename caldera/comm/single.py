"""One process alone: every collective is a copy."""

from __future__ import annotations

import numpy as np

from caldera.comm.communicator import Communicator
from caldera.comm.mailboxes import JobFailure, Mailboxes
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
        self._boxes = Mailboxes(1, JobFailure())
        # Nobody else can send: a message that is not there never comes.
        self._boxes.boxes[0].timeout_s = 0.0

    def _start_send(self, buffer: np.ndarray, dest: int, tag: int) -> Request:
        return self._boxes.send(0, dest, tag, buffer)

    def _start_receive(
        self, buffer: np.ndarray, source: int, tag: int, shorter: bool = False
    ) -> Request:
        return self._boxes.receive(0, buffer, source, tag, shorter)

    def _split(self, color: int | None, key: int) -> Communicator | None:
        return None if color is None else SingleProcess()

    def _dup(self) -> Communicator:
        return SingleProcess(self.traffic)

    def Revoke(self, reason: str) -> None:
        # Nobody else waits.
        return

    def _broadcast(self, buffer: np.ndarray, root: int) -> None:
        return

    def _reduce(self, send: np.ndarray, receive: np.ndarray | None, root: int, op: str) -> None:
        assert receive is not None
        _copy(receive, send)

    def _allreduce(self, send: np.ndarray, receive: np.ndarray, op: str) -> None:
        _copy(receive, send)

    def _reduce_scatter(
        self, send: np.ndarray, receive: np.ndarray, counts: list[int], op: str
    ) -> None:
        _copy(receive, send)

    def _allgather(self, send: np.ndarray, receive: np.ndarray, counts: list[int]) -> None:
        _copy(receive, send)

    def _alltoall(
        self, send: np.ndarray, receive: np.ndarray, leaving: list[int], arriving: list[int]
    ) -> None:
        _copy(receive, send)

    def _barrier(self) -> None:
        return


def _copy(target: np.ndarray, source: np.ndarray) -> None:
    np.copyto(target.reshape(-1), source.reshape(-1))
