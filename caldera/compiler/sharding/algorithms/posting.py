"""Rows of a panel from one rank to some others, who go on with something else meanwhile.

`Messages` sends to each of them what it needs. Ranks that have memory in common need not wait until
a busy sender comes back to its messages: with `Posting` it leaves the panel there and says where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from caldera.comm import Communicator
from caldera.comm.algorithms.shared_post import post_bytes, shared_post
from caldera.comm.request import Request

Places = slice | np.ndarray
"""Some of the first axis."""
ALL, NONE = slice(None), slice(0, 0)
Arriving = Callable[[], np.ndarray]
"""Waits, and has what was sent."""


class Carrier(Protocol):
    """How arrays get to other ranks."""

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for an array that will be sent."""

    def send(self, array: np.ndarray, places: Places, rank: int, tag: int) -> None:
        """Some rows of an array that `place` has made, which is not changed any more."""

    def receive(
        self, shape: tuple[int, ...], dtype: np.dtype, places: Places, rank: int, tag: int
    ) -> Arriving:
        """Some rows of an array of this shape, as their sender gives them; begins at once."""

    def finish(self) -> None:
        """All that was sent has left."""


class Messages:
    """Each rank is sent the rows that it needs."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._leaving: list[Request] = []

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for an array that will be sent."""
        return np.empty(shape, dtype)

    def send(self, array: np.ndarray, places: Places, rank: int, tag: int) -> None:
        """Some rows of it."""
        self._leaving.append(self._comm.Isend(np.ascontiguousarray(array[places]), rank, tag))

    def receive(
        self, shape: tuple[int, ...], dtype: np.dtype, places: Places, rank: int, tag: int
    ) -> Arriving:
        """Some rows of it."""
        count = shape[0] if isinstance(places, slice) else len(places)
        rows = np.empty((count, *shape[1:]), dtype)
        request = self._comm.Irecv(rows, rank, tag)

        def arrived() -> np.ndarray:
            request.wait()
            return rows

        return arrived

    def finish(self) -> None:
        """All that was sent has left."""
        for request in self._leaving:
            request.wait()
        self._leaving.clear()


class Posting:
    """Arrays stay where they were made, and everybody reads them there, until all ranks have
    met after `finish`."""

    def __init__(self, comm: Communicator) -> None:
        self._post = shared_post(comm)
        self._post.clear()
        self._leaving: list[Request] = []
        self._sent = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Room for an array that others will read."""
        return self._post.place(shape, dtype)

    def send(self, array: np.ndarray, places: Places, rank: int, tag: int) -> None:
        """Say where it is; what is read of it counts as sent."""
        rows = len(array) if isinstance(places, slice) else len(places)
        self._sent += array.nbytes // max(len(array), 1) * rows
        self._leaving.append(self._post.tell(array, rank, tag))

    def receive(
        self, shape: tuple[int, ...], dtype: np.dtype, places: Places, rank: int, tag: int
    ) -> Arriving:
        """Some rows of it, where they are if they lie together."""
        arriving = self._post.listen(rank, tag)
        return lambda: self._post.read(arriving, rank, shape, dtype)[places]

    def finish(self) -> None:
        """All that was sent has left."""
        for request in self._leaving:
            request.wait()
        self._post.count(len(self._leaving), self._sent)
        self._leaving.clear()


def carrier(comm: Communicator, most_bytes: int) -> Carrier:
    """For arrays that have as many bytes together on the rank that sends most; all ranks ask."""
    if comm.size > 1 and comm.shares_memory and most_bytes <= post_bytes(comm.size):
        return Posting(comm)
    return Messages(comm)
