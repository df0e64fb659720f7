"""Halo exchange: each rank gets its part of an axis and what lies beside it, as far as it needs.

A convolution split along height or width needs, for its rows of the output, rows of the input that
other ranks have; all it needs come from their owners at once, however many of them there are. Its
gradients are convolutions, too, with windows of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import Cuts

Range = tuple[int, int]
_TAG = 3


def halo_exchange(
    part: np.ndarray,
    cuts: Cuts,
    wanted: Sequence[Range],
    axis: int,
    comm: Communicator,
    ranks: Sequence[int] | None = None,
) -> np.ndarray:
    """What this rank wants of an axis, `wanted` has that for each part; `ranks` has the rank of
    each part, if not all of them take part in their order."""
    peers = range(comm.size) if ranks is None else ranks
    here = list(peers).index(comm.rank)
    begin, end = wanted[here]
    found = np.empty((*part.shape[:axis], end - begin, *part.shape[axis + 1 :]), part.dtype)
    own = cuts[here]
    leaving, arriving = [], []
    for other, rank in enumerate(peers):
        first, last = overlap((own, cuts[here + 1]), wanted[other])
        piece = _take(part, axis, first - own, last - own)
        if other == here:
            _take(found, axis, first - begin, last - begin)[...] = piece
        elif piece.size:
            leaving.append(comm.Isend(np.ascontiguousarray(piece), rank, _TAG))
    for other, rank in enumerate(peers):
        first, last = overlap(wanted[here], (cuts[other], cuts[other + 1]))
        place = _take(found, axis, first - begin, last - begin)
        if other != here and place.size:
            buffer = np.empty(place.shape, part.dtype)
            arriving.append((place, buffer, comm.Irecv(buffer, rank, _TAG)))
    for place, buffer, request in arriving:
        request.wait()
        place[...] = buffer
    for request in leaving:
        request.wait()
    return found


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
