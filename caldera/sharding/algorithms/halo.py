"""Halo exchange: each rank gets its part of an axis and what lies beside it, as far as it needs.

A convolution split along height or width needs, for its rows of the output, rows of the input that
other ranks have; all it needs come from their owners at once, however many of them there are. The
adjoint sends what came back, and the owners add it up in the order of the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.comm.request import Request
from caldera.sharding.algorithms.process_grid import Cuts

Range = tuple[int, int]
_TAG = 3


def halo_exchange(
    part: np.ndarray, cuts: Cuts, wanted: Sequence[Range], axis: int, comm: Communicator
) -> np.ndarray:
    """What this rank wants of an axis, of which all ranks have a part: `wanted[rank]`."""
    begin, end = wanted[comm.rank]
    found = np.empty((*part.shape[:axis], end - begin, *part.shape[axis + 1 :]), part.dtype)
    own = cuts[comm.rank]
    leaving, arriving = [], []
    for rank in range(comm.size):
        first, last = overlap((cuts[comm.rank], cuts[comm.rank + 1]), wanted[rank])
        piece = _take(part, axis, first - own, last - own)
        if rank == comm.rank:
            _take(found, axis, first - begin, last - begin)[...] = piece
        elif piece.size:
            leaving.append(comm.Isend(np.ascontiguousarray(piece), rank, _TAG))
    for rank in range(comm.size):
        first, last = overlap(wanted[comm.rank], (cuts[rank], cuts[rank + 1]))
        place = _take(found, axis, first - begin, last - begin)
        if rank != comm.rank and place.size:
            buffer = np.empty(place.shape, part.dtype)
            arriving.append((place, buffer, comm.Irecv(buffer, rank, _TAG)))
    _finish(arriving, leaving, add=False)
    return found


def halo_sum(
    part: np.ndarray, cuts: Cuts, wanted: Sequence[Range], axis: int, comm: Communicator
) -> np.ndarray:
    """The adjoint: this rank's part of the sum of what all ranks have of their `wanted`."""
    own, begin = cuts[comm.rank], wanted[comm.rank][0]
    length = cuts[comm.rank + 1] - own
    found = np.zeros((*part.shape[:axis], length, *part.shape[axis + 1 :]), part.dtype)
    leaving: list[Request] = []
    arriving: list[tuple[np.ndarray, np.ndarray, Request | None]] = []
    for rank in range(comm.size):
        first, last = overlap(wanted[comm.rank], (cuts[rank], cuts[rank + 1]))
        piece = _take(part, axis, first - begin, last - begin)
        if rank != comm.rank and piece.size:
            leaving.append(comm.Isend(np.ascontiguousarray(piece), rank, _TAG))
    for rank in range(comm.size):
        first, last = overlap((own, own + length), wanted[rank])
        place = _take(found, axis, first - own, last - own)
        if not place.size:
            continue
        if rank == comm.rank:
            arriving.append((place, _take(part, axis, first - begin, last - begin), None))
        else:
            buffer = np.empty(place.shape, part.dtype)
            arriving.append((place, buffer, comm.Irecv(buffer, rank, _TAG)))
    _finish(arriving, leaving, add=True)
    return found


def _finish(
    arriving: Sequence[tuple[np.ndarray, np.ndarray, Request | None]],
    leaving: Sequence[Request],
    *,
    add: bool,
) -> None:
    for place, buffer, request in arriving:
        if request is not None:
            request.wait()
        if add:
            place += buffer
        else:
            place[...] = buffer
    for request in leaving:
        request.wait()


def _take(x: np.ndarray, axis: int, begin: int, end: int) -> np.ndarray:
    return x[(slice(None),) * axis + (slice(begin, end),)]


def overlap(first: Range, second: Range) -> Range:
    """What is in both; an empty range if nothing is."""
    begin = max(first[0], second[0])
    return begin, max(min(first[1], second[1]), begin)


@dataclass(frozen=True)
class Window:
    """A convolution along one axis: output i sees inputs i stride - before + j dilation, for each j
    of a kernel of `taps`."""

    length: int
    taps: int
    stride: int
    before: int
    dilation: int

    @property
    def reach(self) -> int:
        """From the first to the last input that an output sees, with both."""
        return self.dilation * (self.taps - 1) + 1

    def inputs(self, outputs: Range) -> tuple[Range, Range]:
        """Which inputs some outputs see, and how much padding lies (before, behind) them."""
        if outputs[0] >= outputs[1]:
            return (0, 0), (0, 0)
        begin = outputs[0] * self.stride - self.before
        end = (outputs[1] - 1) * self.stride - self.before + self.reach
        first, last = overlap((begin, end), (0, self.length))
        if first == last:
            return (0, 0), (0, end - begin)
        return (first, last), (first - begin, end - last)

    def outputs(self, inputs: Range, count: int) -> Range:
        """Which of `count` outputs see any of these inputs."""
        if inputs[0] >= inputs[1]:
            return 0, 0
        first = -(-(inputs[0] + self.before - self.reach + 1) // self.stride)
        last = (inputs[1] - 1 + self.before) // self.stride + 1
        return overlap((first, last), (0, count))
