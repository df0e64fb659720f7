"""Sorting an axis that is spread over ranks, the largest of it, and running sums along it.

Sample sort (Shi and Schaeffer, Parallel sorting by regular sampling, 1992): each rank sorts what
it has, samples of all of them give the limits, everything goes to where it belongs in one exchange,
and is merged there. An element's key is its value and, among equal ones, its index: the order is
stable, and many equal values are shared out like any others. In the end each rank has exactly its
share.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.exchange import move_rows
from caldera.compiler.sharding.algorithms.process_grid import Cuts, gather_rows

SAMPLES = 32
"""Samples of each rank for each limit; more of them make the parts more equal."""


def sort(
    part: np.ndarray, cuts: Cuts, comm: Communicator, *, descending: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """This rank's part of the numbers in order, cut as they were, and the index each came from.

    nan is last, as NumPy has it.
    """
    keys, index = sort_keys(part, descending), np.arange(cuts[comm.rank], cuts[comm.rank + 1])
    order = np.argsort(keys, kind="stable")
    values, keys, index = part[order], keys[order], index[order]
    if comm.size == 1:
        return values, index
    ends = _ends(keys, index, comm)
    leaving = np.diff(ends, prepend=0).tolist()
    arriving = _exchanged(leaving, comm)
    found, source = _send(values, leaving, arriving, comm), _send(index, leaving, arriving, comm)
    # What comes is in order, rank by rank, and lower ranks have lower indices: a stable merge.
    order = np.argsort(sort_keys(found, descending), kind="stable")
    there = _cuts_of(len(found), comm)
    return (
        move_rows(found[order], there, cuts, comm),
        move_rows(source[order], there, cuts, comm),
    )


def sort_keys(x: np.ndarray, descending: bool) -> np.ndarray:
    """Numbers whose ascending order is the one that is wanted, equal ones in their places."""
    if not descending:
        return x
    # For whole numbers the complement cannot overflow.
    return -x if x.dtype.kind not in "iub" else ~x


def _ends(keys: np.ndarray, index: np.ndarray, comm: Communicator) -> np.ndarray:
    """Where in this rank's sorted numbers the share of each rank ends."""
    # Regular samples, each with its index, so that any two differ.
    count = min(SAMPLES * comm.size, len(keys))
    chosen = (np.arange(count) * len(keys) + len(keys) // 2) // max(count, 1)
    counts = _exchanged_one(count, comm)
    sampled = gather_rows(keys[chosen], counts, comm)
    places = gather_rows(index[chosen], counts, comm)
    order = np.lexsort((places, sampled))
    total = len(order)
    limits: Sequence[int] | np.ndarray = []
    if total:
        limits = order[[total * (rank + 1) // comm.size for rank in range(comm.size - 1)]]
    ends = [_count_before(keys, index, sampled[at], places[at]) for at in limits]
    ends += [len(keys)] * (comm.size - len(ends))
    return np.array(ends, np.int64)


def _count_before(keys: np.ndarray, index: np.ndarray, key: np.generic, place: int) -> int:
    """How many (key, index) come before this one."""
    begin, end = np.searchsorted(keys, key, "left"), np.searchsorted(keys, key, "right")
    return int(begin + np.searchsorted(index[begin:end], place))


def _exchanged_one(number: int, comm: Communicator) -> list[int]:
    found = np.empty(comm.size, np.int64)
    comm.Allgather(np.array([number], np.int64), found)
    return [int(each) for each in found]


def _exchanged(leaving: list[int], comm: Communicator) -> list[int]:
    arriving = np.empty(comm.size, np.int64)
    comm.Alltoall(np.array(leaving, np.int64), arriving)
    return [int(each) for each in arriving]


def _send(x: np.ndarray, leaving: list[int], arriving: list[int], comm: Communicator) -> np.ndarray:
    found = np.empty(sum(arriving), x.dtype)
    comm.Alltoall(np.ascontiguousarray(x), found, leaving, arriving)
    return found


def _cuts_of(length: int, comm: Communicator) -> Cuts:
    return (0, *(int(each) for each in np.cumsum(_exchanged_one(length, comm))))


def top_k(
    part: np.ndarray, cuts: Cuts, k: int, comm: Communicator
) -> tuple[np.ndarray, np.ndarray]:
    """The k largest along the first axis, largest first, and their indices, on all ranks.

    Each rank sends its own k largest and no more.
    """
    order = np.argsort(sort_keys(part, True), axis=0, kind="stable")[:k]
    values = np.take_along_axis(part, order, 0)
    counts = [min(k, cuts[rank + 1] - cuts[rank]) for rank in range(comm.size)]
    index = gather_rows(order + cuts[comm.rank], counts, comm)
    values = gather_rows(values, counts, comm)
    best = np.argsort(sort_keys(values, True), axis=0, kind="stable")[:k]
    return np.take_along_axis(values, best, 0), np.take_along_axis(index, best, 0)


def cumulative_sum(part: np.ndarray, comm: Communicator, *, reverse: bool = False) -> np.ndarray:
    """This rank's part of the running sum along the first axis, from the end if `reverse`.

    The ranks' own sums are added up in their order, on each of them alike.
    """
    found = np.cumsum(part[::-1] if reverse else part, axis=0, dtype=part.dtype)
    if comm.size > 1:
        own = found[-1:] if len(found) else np.zeros((1, *part.shape[1:]), part.dtype)
        totals = gather_rows(own, [1] * comm.size, comm)
        before = totals[: comm.rank : -1] if reverse else totals[: comm.rank]
        if len(before):
            found += np.cumsum(before, axis=0, dtype=part.dtype)[-1]
    return np.ascontiguousarray(found[::-1]) if reverse else found
