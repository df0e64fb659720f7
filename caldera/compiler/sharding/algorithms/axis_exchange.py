"""Exchanges along a distributed axis: halos, sorting, running sums and Fourier transforms.

A redistribution sends each element to its owner directly.

A convolution split along height or width reads input rows of other ranks for its output rows. They
arrive from their owners in one exchange, regardless of the number of owners. Gradients of
convolutions are convolutions, too, with separate windows.

Sorting is sample sort (Shi and Schaeffer, Parallel sorting by regular sampling, 1992). Each rank
sorts its part, and samples of all parts determine the limits. Every element is sent to its
destination in one exchange and merged there. The key of an element is its value and, among equal
values, its index: the order is stable, and many equal values are distributed like any others. In
the end each rank has exactly its share.

A transform of n1 n2 numbers is n2 transforms of n1 and n1 transforms of n2 (Cooley and Tukey; as
matrices, Bailey's six steps, 1990). The numbers are a matrix with n1 rows, which is transposed over
the ranks three times. A length without two factors of the right size becomes a convolution whose
length is a power of two (Bluestein, 1970).

More axes may follow the transformed axis. Arrays with several long axes do not need these
exchanges: axes that are whole on a rank are transformed locally, and a redistribution in between
makes the remaining axes whole (slabs, or pencils on a grid).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts, gather_rows


def move_rows(part: np.ndarray, before: Cuts, after: Cuts, comm: Communicator) -> np.ndarray:
    """Redistribute rows from the cuts `before` to the cuts `after`.

    If `after` ends first, the remaining rows are dropped; if it ends later, they are zeros.
    """
    if before == after:
        return part
    rank, width = comm.rank, int(np.prod(part.shape[1:], dtype=np.int64))
    end = min(before[-1], after[-1])
    leaving = [_common(before, rank, after, other, end) for other in range(comm.size)]
    arriving = [_common(after, rank, before, other, end) for other in range(comm.size)]
    # Both cuts cover all rows up to the end, so the rows sent and received are contiguous.
    sent = part[: sum(b - a for a, b in leaving)]
    found = np.zeros((after[rank + 1] - after[rank], *part.shape[1:]), part.dtype)
    received = found[: sum(b - a for a, b in arriving)]
    comm.Alltoall(
        np.ascontiguousarray(sent),
        received,
        [(b - a) * width for a, b in leaving],
        [(b - a) * width for a, b in arriving],
    )
    return found


def _common(mine: Cuts, rank: int, others: Cuts, other: int, end: int) -> tuple[int, int]:
    begin = max(mine[rank], others[other])
    return begin, max(min(mine[rank + 1], others[other + 1], end), begin)


def rows_to_columns(part: np.ndarray, rows: Cuts, columns: Cuts, comm: Communicator) -> np.ndarray:
    """Convert whole rows of a matrix to whole columns; more axes may follow."""
    if comm.size == 1:
        return part
    height, width = rows[-1], columns[comm.rank + 1] - columns[comm.rank]
    more = part.shape[2:]
    each = int(np.prod(more, dtype=np.int64))
    pieces = [part[:, a:b].reshape(-1) for a, b in itertools.pairwise(columns)]
    sent = np.concatenate(pieces)
    received = np.empty((height, width, *more), part.dtype)
    comm.Alltoall(
        sent,
        received,
        [piece.size for piece in pieces],
        [int(h) * width * each for h in np.diff(rows)],
    )
    return received


def columns_to_rows(part: np.ndarray, rows: Cuts, columns: Cuts, comm: Communicator) -> np.ndarray:
    """Convert whole columns of a matrix to whole rows."""
    turned = rows_to_columns(part.swapaxes(0, 1), columns, rows, comm)
    return turned.swapaxes(0, 1)


Range = tuple[int, int]
_TAG = 4


def halo_exchange(
    part: np.ndarray,
    cuts: Cuts,
    wanted: Sequence[Range],
    axis: int,
    comm: Communicator,
    ranks: Sequence[int] | None = None,
) -> np.ndarray:
    """Return this rank's range of an axis, fetched from its owners.

    `wanted` has the range that each part requires. `ranks` has the rank of each part, unless all
    ranks take part in their order.
    """
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
    """Return the intersection of two ranges, which may be empty."""
    begin = max(first[0], second[0])
    return begin, max(min(first[1], second[1]), begin)


@dataclass(frozen=True)
class ConvolutionWindow:
    """A convolution along one axis: output i sees inputs i stride - before + j dilation, for each j
    of a kernel of `taps`."""

    length: int
    taps: int
    stride: int
    before: int
    dilation: int

    @property
    def reach(self) -> int:
        """Distance from the first to the last input of an output, both included."""
        return self.dilation * (self.taps - 1) + 1

    def inputs(self, outputs: Range) -> tuple[Range, Range]:
        """Return the range of inputs that some outputs read, and the padding (before, behind)."""
        if outputs[0] >= outputs[1]:
            return (0, 0), (0, 0)
        begin = outputs[0] * self.stride - self.before
        end = (outputs[1] - 1) * self.stride - self.before + self.reach
        first, last = overlap((begin, end), (0, self.length))
        if first == last:
            return (0, 0), (0, end - begin)
        return (first, last), (first - begin, end - last)

    def outputs(self, inputs: Range, count: int) -> Range:
        """Return the range of the `count` outputs that depend on any of these inputs."""
        if inputs[0] >= inputs[1]:
            return 0, 0
        first = -(-(inputs[0] + self.before - self.reach + 1) // self.stride)
        last = (inputs[1] - 1 + self.before) // self.stride + 1
        return overlap((first, last), (0, count))


SAMPLES = 32
"""Samples of each rank for each limit; more samples make the parts more equal."""


def sort(
    part: np.ndarray, cuts: Cuts, comm: Communicator, *, descending: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's part of the sorted numbers, and their indices before sorting.

    The result has the same cuts as the input. nan is last, as in NumPy.
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
    # Elements arrive in order, rank by rank, and lower ranks have lower indices: a stable merge.
    order = np.argsort(sort_keys(found, descending), kind="stable")
    there = _cuts_of(len(found), comm)
    return (
        move_rows(found[order], there, cuts, comm),
        move_rows(source[order], there, cuts, comm),
    )


def sort_keys(x: np.ndarray, descending: bool) -> np.ndarray:
    """Return keys whose ascending order is the requested order; equal elements keep theirs."""
    if not descending:
        return x
    # For whole numbers the complement cannot overflow.
    return -x if x.dtype.kind not in "iub" else ~x


def _ends(keys: np.ndarray, index: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return the end of each rank's share in this rank's sorted numbers."""
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
    """Return the number of pairs (key, index) before this pair."""
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
    """Return the k largest along the first axis, largest first, and their indices, on all ranks.

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
    """Return this rank's part of the running sum along the first axis, from the end if `reverse`.

    Every rank adds up the sums of all ranks in the same order.
    """
    found = np.cumsum(part[::-1] if reverse else part, axis=0, dtype=part.dtype)
    if comm.size > 1:
        own = found[-1:] if len(found) else np.zeros((1, *part.shape[1:]), part.dtype)
        totals = gather_rows(own, [1] * comm.size, comm)
        before = totals[: comm.rank : -1] if reverse else totals[: comm.rank]
        if len(before):
            found += np.cumsum(before, axis=0, dtype=part.dtype)[-1]
    return np.ascontiguousarray(found[::-1]) if reverse else found


SHORT = 1 << 14
"""Signals of this length are transformed on every rank: transposing them takes longer."""


def factors(n: int, ranks: int) -> tuple[int, int] | None:
    """Return two factors that are as equal as possible, neither smaller than the number of ranks;
    None if there are none."""
    for first in range(isqrt(n), max(ranks, 2) - 1, -1):
        if n % first == 0:
            return first, n // first
    return None


def input_cuts(n: int, ranks: int) -> Cuts:
    """Return the cuts that `fft` requires of its signal."""
    found = factors(n, ranks) if n > SHORT else None
    if found is None:
        return even_cuts(n, ranks)
    return tuple(cut * found[1] for cut in even_cuts(found[0], ranks))


def output_cuts(n: int, ranks: int) -> Cuts:
    """Return the cuts of the transform that `fft` returns."""
    found = factors(n, ranks) if n > SHORT else None
    if found is None:
        return even_cuts(n, ranks)
    return tuple(cut * found[0] for cut in even_cuts(found[1], ranks))


def fft(part: np.ndarray, n: int, comm: Communicator, *, inverse: bool = False) -> np.ndarray:
    """Return this rank's part of the transform along the first axis, without a scale factor.

    The signal is partitioned by `input_cuts`, the transform by `output_cuts`.
    """
    if comm.size == 1:
        return transform(part, inverse)
    if n <= SHORT:
        cuts = even_cuts(n, comm.size)
        whole = gather_rows(part, [int(each) for each in np.diff(cuts)], comm)
        return transform(whole, inverse)[cuts[comm.rank] : cuts[comm.rank + 1]]
    found = factors(n, comm.size)
    if found is None:
        return _bluestein(part, n, comm, inverse)
    return _six_steps(part, *found, comm, inverse)


def transform(x: np.ndarray, inverse: bool) -> np.ndarray:
    """Return the transform along the first axis, here; real numbers become complex ones."""
    if x.shape[0] == 0:
        return x.astype(np.result_type(x.dtype, np.complex64))
    # "forward" has the inverse without a factor.
    return np.fft.ifft(x, axis=0, norm="forward") if inverse else np.fft.fft(x, axis=0)


def _six_steps(part: np.ndarray, n1: int, n2: int, comm: Communicator, inverse: bool) -> np.ndarray:
    rows, columns, more = even_cuts(n1, comm.size), even_cuts(n2, comm.size), part.shape[1:]
    own = columns[comm.rank], columns[comm.rank + 1]
    matrix = rows_to_columns(part.reshape(len(part) // n2, n2, *more), rows, columns, comm)
    matrix = transform(matrix, inverse)
    matrix *= _twiddles(n1, n2, own, inverse, matrix.dtype).reshape(n1, -1, *[1] * len(more))
    matrix = columns_to_rows(matrix, rows, columns, comm)
    matrix = transform(matrix.swapaxes(0, 1), inverse)
    # Now it is (n2, some of n1); frequencies are in order if its rows lie end to end.
    matrix = columns_to_rows(matrix, columns, rows, comm)
    return np.ascontiguousarray(matrix).reshape(len(matrix) * n1, *more)


def _twiddles(
    n1: int, n2: int, columns: tuple[int, int], inverse: bool, dtype: np.dtype
) -> np.ndarray:
    turns = np.outer(np.arange(n1), np.arange(*columns)) % (n1 * n2)
    return _root(turns, n1 * n2, inverse).astype(dtype)


def _root(turns: np.ndarray, n: int, inverse: bool) -> np.ndarray:
    """exp(-2 pi i turns / n), or with + for the inverse."""
    return np.exp((2j if inverse else -2j) * np.pi / n * turns)


def _bluestein(part: np.ndarray, n: int, comm: Communicator, inverse: bool) -> np.ndarray:
    """Transform by a convolution with a chirp, as kt = (k² + t² - (k - t)²) / 2."""
    ranks, rank = comm.size, comm.rank
    longer = 1 << (2 * n - 1).bit_length()
    cuts, wide = even_cuts(n, ranks), input_cuts(longer, ranks)
    behind = [1] * (part.ndim - 1)
    dtype = np.result_type(part.dtype, np.complex64)
    own = _chirp(np.arange(cuts[rank], cuts[rank + 1]), n, inverse).astype(dtype)
    own = own.reshape(-1, *behind)
    signal = move_rows((part * own).astype(dtype), cuts, wide, comm)
    place = np.arange(wide[rank], wide[rank + 1])
    # The chirp on both sides of 0, and zeros in between.
    distance = np.minimum(place, longer - place)
    other = np.where(distance < n, _chirp(distance, n, not inverse), 0).astype(dtype)
    spectrum = fft(signal, longer, comm) * fft(other, longer, comm).reshape(-1, *behind)
    spectrum = move_rows(spectrum, output_cuts(longer, ranks), wide, comm)
    found = fft(spectrum, longer, comm, inverse=True) / longer
    found = move_rows(found, output_cuts(longer, ranks), cuts, comm)
    return (found * own).astype(dtype)


def _chirp(place: np.ndarray, n: int, inverse: bool) -> np.ndarray:
    # Reduced as an integer first: a float has too few digits for the square.
    return _root(place * place % (2 * n), 2 * n, inverse)


def spectrum_to_signal(part: np.ndarray, n: int, begin: int) -> np.ndarray:
    """Return scaled frequencies of a real signal, from frequency `begin` on.

    The real part of their complex transform, with zeros for the remaining frequencies, is the
    signal times n.
    """
    number = np.arange(begin, begin + len(part))
    alone = (number == 0) | (2 * number == n)
    scaled: np.ndarray = part * np.where(alone, 1, 2).reshape(-1, *[1] * (part.ndim - 1))
    return scaled.astype(part.dtype)
