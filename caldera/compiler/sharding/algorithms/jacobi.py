"""One-sided block Jacobi: the columns of a matrix are turned until they are orthogonal.

Each rank has two blocks of columns and makes all of their columns orthogonal, by the singular value
decomposition of their triangle; then blocks move on, as players in a tournament do, so that each
meets every other once in a sweep. The lengths of the columns in the end are the singular values.
It is accurate also for small singular values (Demmel and Veselić, 1992), all its work is products,
and clusters of values do it no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts
from caldera.errors import NonFiniteError

MOST_SWEEPS = 40
ROUGH = 1e-3
"""The cosine between two columns above which rotations need not be exact: errors of the squares of
lengths matter only where columns are nearly orthogonal already."""
_TO_LEFT, _TO_RIGHT = 1, 2


@dataclass
class ColumnBlock:
    """Columns that move together: of the matrix, and of the rotations where they are wanted."""

    number: int
    columns: np.ndarray
    rotations: np.ndarray


def jacobi_cuts(n: int, ranks: int) -> Cuts:
    """How columns are spread over ranks: two blocks each, all of nearly the same width."""
    return even_cuts(n, 2 * ranks)[::2]


def one_sided_jacobi(
    part: np.ndarray, n: int, comm: Communicator, *, rotations: bool
) -> tuple[np.ndarray, np.ndarray]:
    """This rank's columns of A V, which are orthogonal, and of V (no rows if not wanted).

    Columns are cut by `jacobi_cuts`; longer ones come before shorter ones, nearly always.
    """
    cuts = even_cuts(n, 2 * comm.size)
    begin, middle, end = cuts[2 * comm.rank : 2 * comm.rank + 3]
    v = np.zeros((n if rotations else 0, end - begin), part.dtype)
    if rotations:
        v[np.arange(begin, end), np.arange(end - begin)] = 1
    here = middle - begin
    first = ColumnBlock(2 * comm.rank, part[:, :here], v[:, :here])
    second = ColumnBlock(2 * comm.rank + 1, part[:, here:], v[:, here:])
    negligible = _negligible(part, n, comm)
    for _ in range(MOST_SWEEPS):
        turned = False
        for _ in range(max(2 * comm.size - 1, 1)):
            turned |= _make_orthogonal(first, second, negligible)
            first, second = _move_on(first, second, part.shape[0], cuts, comm)
        flag = np.array([turned], np.int8)
        comm.Allreduce(flag, flag, "max")
        if not flag[0]:
            break
    else:
        raise NonFiniteError.build(
            "dmath.svd",
            expected=f"columns that are orthogonal after {MOST_SWEEPS} sweeps",
            got="some that are not",
            hint="look for nan or infinity in the matrix",
        )
    return (
        np.concatenate((first.columns, second.columns), 1),
        np.concatenate((first.rotations, second.rotations), 1),
    )


def _negligible(part: np.ndarray, n: int, comm: Communicator) -> float:
    """Columns shorter than this are nothing but rounding errors."""
    total = np.array([np.sum(np.abs(part) ** 2, dtype=np.float64)])
    comm.Allreduce(total, total)
    return float(np.sqrt(total[0]) * np.finfo(part.dtype).eps)


def _make_orthogonal(first: ColumnBlock, second: ColumnBlock, negligible: float) -> bool:
    """Turn the columns of two blocks until all of them are orthogonal; whether any was not.

    The longer ones go to the block with the lower number, which sorts all of them in the end.
    """
    both = [first, second] if first.number < second.number else [second, first]
    columns = np.concatenate([block.columns for block in both], 1)
    gram = columns.conj().T @ columns
    lengths = np.sqrt(np.abs(np.diagonal(gram)))
    real = np.where(lengths > negligible, lengths, np.inf)
    angles = np.abs(gram) / real[:, None] / real
    np.fill_diagonal(angles, 0)
    unsorted = np.any(np.diff(lengths) > 1e-3 * lengths[:-1] + negligible)
    limit = np.finfo(columns.dtype).eps * np.sqrt(len(columns)) * 2
    if angles.size == 0 or not (unsorted or np.max(angles) > limit):
        return bool(angles.size) and bool(np.isnan(angles).any())
    turned, v = _rotated(columns, gram, float(np.max(angles)))
    rotations = np.concatenate([block.rotations for block in both], 1) @ v
    split = both[0].columns.shape[1]
    both[0].columns, both[1].columns = turned[:, :split], turned[:, split:]
    both[0].rotations, both[1].rotations = rotations[:, :split], rotations[:, split:]
    return True


def _rotated(columns: np.ndarray, gram: np.ndarray, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Columns that are orthogonal, the longer ones first, and the rotations that made them so."""
    if angle > ROUGH:
        # Any rotation is right as long as another sweep follows, and this one is soon found.
        v = np.ascontiguousarray(np.linalg.eigh(gram)[1][:, ::-1])
        return columns @ v, v
    q, r = np.linalg.qr(columns)
    u, s, vh = np.linalg.svd(r, full_matrices=False)
    if len(s) < columns.shape[1]:
        # More columns than rows: the others become zero.
        first = vh
        vh = np.linalg.qr(vh.conj().T, mode="complete")[0].conj().T
        vh[: len(s)] = first
    turned = np.zeros_like(columns)
    turned[:, : len(s)] = q @ (u * s)
    return turned, vh.conj().T


def _move_on(
    first: ColumnBlock, second: ColumnBlock, rows: int, cuts: Cuts, comm: Communicator
) -> tuple[ColumnBlock, ColumnBlock]:
    """The next pair: rank 0 keeps its first block, all others go round the ring of places."""
    ranks, rank = comm.size, comm.rank
    if ranks == 1:
        return first, second
    last = ranks - 1
    # First places pass to the right, second ones to the left; both turn round at the ends.
    rightward = second if rank == 0 else first
    leaving = []
    if rank < last:
        leaving += _send(rightward, rank + 1, _TO_RIGHT, comm)
    if rank > 0:
        leaving += _send(second, rank - 1, _TO_LEFT, comm)
    new_first = first if rank == 0 else _receive(rows, first, rank - 1, _TO_RIGHT, cuts, comm)
    new_second = first if rank == last else _receive(rows, first, rank + 1, _TO_LEFT, cuts, comm)
    for request in leaving:
        request.wait()
    return new_first, new_second


def _send(block: ColumnBlock, to: int, tag: int, comm: Communicator) -> list:
    number = np.array([block.number], np.int64)
    data = np.ascontiguousarray(np.concatenate((block.columns, block.rotations)))
    return [comm.Isend(number, to, tag), comm.Isend(data, to, tag)]


def _receive(
    rows: int, like: ColumnBlock, source: int, tag: int, cuts: Cuts, comm: Communicator
) -> ColumnBlock:
    number = np.empty(1, np.int64)
    comm.Recv(number, source, tag)
    width = cuts[number[0] + 1] - cuts[number[0]]
    data = np.empty((rows + len(like.rotations), width), like.columns.dtype)
    comm.Recv(data, source, tag)
    return ColumnBlock(int(number[0]), data[:rows], data[rows:])
