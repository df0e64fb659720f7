"""Singular values and symmetric eigenvalues on ranks: block Jacobi and Krylov iteration.

Each rank has two blocks of columns and makes all their columns orthogonal, by the singular value
decomposition of their triangle. Then blocks move on like players in a tournament, so that each pair
of blocks is on a rank once in a sweep. The lengths of the final columns are the singular values.
The method is accurate for small singular values, too (Demmel and Veselić, 1992), all its work is
products, and it handles clusters of values.

A matrix that fits into every rank's memory is reduced to a bidiagonal one by all ranks. For a
larger one A = Q R, and R's adjoint, whose columns are nearly orthogonal already, is made orthogonal
by block Jacobi: Rᴴ V = U S. Then A = (Q V) S Uᴴ. A symmetric matrix is made positive definite by
adding a multiple of the identity, and the orthogonalised columns are its eigenvectors.

The largest singular values come from a randomised block Krylov method (Musco and Musco, 2015), with
an error bound. Rows are spread over ranks. Products with A and Aᴴ alternate, and every block found
stays in the basis; the iteration stops when the bound is met. For each triple (u, s, v) the bound
is the length of Aᴴ u - s v: A has a singular value that near to s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.panels import LocalMatrix, multiply, qr
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts, gather_rows, sum_over
from caldera.compiler.sharding.algorithms.qr import DEALT, svd_by_bidiagonal, tsqr
from caldera.compiler.sharding.algorithms.variant import axis_layout
from caldera.compiler.sharding.axis_split import AxisSplit, cyclic_split
from caldera.compiler.sharding.layout import CartesianLayout, replicated
from caldera.core.graph.ops.factorisation import ABOUT_EQUAL
from caldera.errors import NonFiniteError

MOST_SWEEPS = 40
ROUGH = 1e-3
"""Cosine between two columns above which rotations may be approximate.

Errors of the squares of lengths matter only if columns are nearly orthogonal already.
"""
_TO_LEFT, _TO_RIGHT = 1, 2


@dataclass
class ColumnBlock:
    """Columns that move together: of the matrix, and of the rotations if requested."""

    number: int
    columns: np.ndarray
    rotations: np.ndarray


def jacobi_cuts(n: int, ranks: int) -> Cuts:
    """Return the cuts of columns over ranks: two blocks each, all of nearly the same width."""
    return even_cuts(n, 2 * ranks)[::2]


def one_sided_jacobi(
    part: np.ndarray, n: int, comm: Communicator, *, rotations: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's columns of A V, which are orthogonal, and of V (no rows if unwanted).

    Columns are partitioned by `jacobi_cuts`; longer columns nearly always precede shorter ones.
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
    """Return the length below which columns are only rounding errors."""
    total = np.array([np.sum(np.abs(part) ** 2, dtype=np.float64)])
    comm.Allreduce(total, total)
    return float(np.sqrt(total[0]) * np.finfo(part.dtype).eps)


def _make_orthogonal(first: ColumnBlock, second: ColumnBlock, negligible: float) -> bool:
    """Orthogonalise the columns of two blocks; return True if any pair was not orthogonal.

    The longer columns are moved to the block with the lower number, which sorts all columns in the
    end.
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
        # With more columns than rows, the surplus columns become zero.
        first = vh
        vh = np.linalg.qr(vh.conj().T, mode="complete")[0].conj().T
        vh[: len(s)] = first
    turned = np.zeros_like(columns)
    turned[:, : len(s)] = q @ (u * s)
    return turned, vh.conj().T


def _move_on(
    first: ColumnBlock, second: ColumnBlock, rows: int, cuts: Cuts, comm: Communicator
) -> tuple[ColumnBlock, ColumnBlock]:
    """Return the next pair; rank 0 keeps its first block, the remaining blocks rotate."""
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


TALL = 2
"""Rows for each column from which on a QR comes first: less is left to be made bidiagonal."""


Factors = tuple[LocalMatrix, np.ndarray, LocalMatrix]


def svd(a: LocalMatrix, *, bidiagonal: bool = False) -> Factors:
    """Return U with its columns spread over the ranks, s on all ranks, and Vᴴ with its rows spread.

    `bidiagonal` reduces the matrix to bidiagonal form, for which every rank needs room for the
    smaller factor.
    """
    m, n = a.shape
    if m < n:
        u, s, vh = svd(a.adjoint, bidiagonal=bidiagonal)
        return _with_signs(vh.adjoint, s, u.adjoint)
    if bidiagonal and (m == n or m < TALL * n):
        return _with_signs(*_by_bidiagonal(a))
    q, r = qr(a)
    u, s, vh = _by_bidiagonal(r) if bidiagonal else _by_jacobi(r)
    return _with_signs(multiply(q, u), s, vh)


def _by_jacobi(r: LocalMatrix) -> Factors:
    n, comm = r.shape[0], r.comm
    given = r.adjoint.to(axis_layout((n, n), -1, jacobi_cuts(n, comm.size)))
    turned, rotations = one_sided_jacobi(given.part, n, comm, rotations=True)
    lengths, (right, left) = _in_order((turned, rotations), n, comm, descending=True)
    return left, lengths, _normalised(right, lengths, n).adjoint


def dealt_columns(shape: tuple[int, int], ranks: int) -> CartesianLayout:
    """Return the layout of columns dealt out to the ranks, for `_by_bidiagonal`.

    Rows are dealt out if the matrix has more columns than rows.
    """
    split = cyclic_split(min(shape), ranks, DEALT)
    splits = (None, split) if shape[0] >= shape[1] else (split, None)
    return CartesianLayout(shape, splits, tuple(range(ranks)))


def _by_bidiagonal(a: LocalMatrix) -> Factors:
    (m, n), comm = a.shape, a.comm
    given = a.to(dealt_columns((m, n), comm.size))
    left, lengths, right = svd_by_bidiagonal(given.part, n, comm)
    u, v = (axis_layout((rows, n), -1, even_cuts(n, comm.size)) for rows in (m, n))
    return LocalMatrix(left, u, comm), lengths, LocalMatrix(right, v, comm).adjoint


def eigh(a: LocalMatrix, *, together: bool = True) -> tuple[np.ndarray, LocalMatrix]:
    """Return the ascending eigenvalues of (A + Aᴴ) / 2 on all ranks, and the eigenvectors.

    Columns of the eigenvectors are spread over the ranks. They are computed by all ranks
    `together`, or redundantly by LAPACK on each rank.
    """
    n, comm = a.shape[0], a.comm
    if not together:
        whole = a.hermitian(replicated((n, n), range(comm.size))).part
        values, found = np.linalg.eigh(whole)
        own = np.ascontiguousarray(found[:, _own_columns(n, comm)])
        even = axis_layout((n, n), -1, even_cuts(n, comm.size))
        return values, LocalMatrix(own * sign_of_columns(own).conj(), even, comm)
    where = axis_layout((n, n), -1, jacobi_cuts(n, comm.size))
    part = a.hermitian(where).part
    shift = _norm_bound(part, comm)
    begin = jacobi_cuts(n, comm.size)[comm.rank]
    own = np.arange(part.shape[1])
    part[begin + own, own] += part.dtype.type(shift)
    turned, _ = one_sided_jacobi(part, n, comm, rotations=False)
    lengths, (vectors,) = _in_order((turned,), n, comm, descending=False)
    if shift:
        vectors = _normalised(vectors, lengths, n)
    else:
        vectors = LocalMatrix(
            np.eye(n, dtype=part.dtype)[:, _own_columns(n, comm)], vectors.layout, comm
        )
    sign = sign_of_columns(vectors.part)
    return lengths - lengths.dtype.type(shift), LocalMatrix(
        vectors.part * sign.conj(), vectors.layout, comm
    )


def _norm_bound(part: np.ndarray, comm: Communicator) -> float:
    """Twice what no eigenvalue is larger than: the largest column sum, or the Frobenius norm."""
    column = np.max(np.sum(np.abs(part), axis=0, dtype=np.float64), initial=0)
    found = np.array([column])
    comm.Allreduce(found, found, "max")
    square = sum_over(np.array([np.sum(np.abs(part) ** 2, dtype=np.float64)]), comm)
    return 2 * float(min(found[0], np.sqrt(square[0])))


def _own_columns(n: int, comm: Communicator) -> slice:
    return slice(*even_cuts(n, comm.size)[comm.rank : comm.rank + 2])


def _in_order(
    parts: tuple[np.ndarray, ...], n: int, comm: Communicator, *, descending: bool
) -> tuple[np.ndarray, list[LocalMatrix]]:
    """Return the lengths of the first part's columns in order, and all columns in that order,
    evenly spread."""
    cuts = jacobi_cuts(n, comm.size)
    counts = [int(count) for count in np.diff(cuts)]
    own = np.sqrt(np.sum(np.abs(parts[0]) ** 2, axis=0))
    lengths = gather_rows(own, counts, comm)
    order = np.argsort(-lengths if descending else lengths, kind="stable")
    owners = np.repeat(np.arange(comm.size), counts)[order]
    split = AxisSplit(comm.size, tuple(range(n + 1)), tuple(owners.tolist()))
    mine = order[owners == comm.rank] - cuts[comm.rank]
    found = []
    for part in parts:
        shape = (len(part), n)
        layout = CartesianLayout(shape, (None, split), tuple(range(comm.size)))
        even = axis_layout(shape, -1, even_cuts(n, comm.size))
        found.append(LocalMatrix(np.ascontiguousarray(part[:, mine]), layout, comm).to(even))
    return lengths[order], found


def _normalised(columns: LocalMatrix, lengths: np.ndarray, n: int) -> LocalMatrix:
    """Return columns of length 1.

    Columns too short to have a direction are replaced by any columns orthogonal to the rest.
    """
    if not n:
        return columns
    own = lengths[_own_columns(n, columns.comm)]
    limit = np.max(lengths) * np.finfo(lengths.dtype).eps * n
    safe = own > limit
    part = np.where(safe, columns.part / np.where(safe, own, 1), 0).astype(columns.part.dtype)
    found = LocalMatrix(part, columns.layout, columns.comm)
    if np.all(lengths > limit):
        return found
    # Householder's Q continues the columns that are there, in order, but for their signs.
    order_last = qr(found)[0].to(columns.layout).part
    part = np.where(safe, part, order_last)
    return LocalMatrix(np.ascontiguousarray(part), columns.layout, columns.comm)


def _with_signs(u: LocalMatrix, s: np.ndarray, vh: LocalMatrix) -> Factors:
    """The signs that `op.svd` has: the first of the largest components of each u is positive."""
    m, k = u.shape
    ranks = u.comm.size
    columns = axis_layout((m, k), -1, even_cuts(k, ranks))
    rows = axis_layout((vh.shape[1], k), -1, even_cuts(k, ranks)).transposed((1, 0))
    u, vh = u.to(columns), vh.to(rows)
    sign = sign_of_columns(u.part)
    return (
        LocalMatrix(u.part * sign.conj(), columns, u.comm),
        s,
        LocalMatrix(vh.part * sign[:, None], rows, u.comm),
    )


def sign_of_columns(vectors: np.ndarray) -> np.ndarray:
    """Return the sign (or phase) of each column's first largest component."""
    if vectors.size == 0:
        return np.ones(vectors.shape[1], vectors.dtype)
    size = np.abs(vectors)
    first = np.argmax(size >= ABOUT_EQUAL * size.max(axis=0), axis=0)
    deciding = vectors[first, np.arange(vectors.shape[1])]
    length = np.abs(deciding)
    safe = np.where(length == 0, 1, length)
    return np.where(length == 0, 1, deciding / safe).astype(vectors.dtype)


OVERSAMPLING = 8
"""Number of vectors in a block in excess of the requested number."""


def largest_singular(
    part: np.ndarray,
    rows: int,
    k: int,
    comm: Communicator,
    *,
    seed: int = 0,
    tolerance: float | None = None,
    most_steps: int = 60,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return this rank's rows of U, and on all ranks s, Vᴴ and a bound for the error of each s."""
    n, dtype = part.shape[1], part.dtype
    k = min(k, rows, n)
    width = min(k + OVERSAMPLING, rows, n)
    epsilon = float(np.finfo(dtype).eps)
    tolerance = epsilon * 50 if tolerance is None else tolerance
    # The same numbers on every rank, however many there are.
    start = np.random.default_rng(seed).standard_normal((n, width)).astype(dtype)
    basis = np.empty((len(part), 0), dtype)
    images = np.empty((0, n), dtype)
    block = tsqr(part @ start, comm)[0]
    for _ in range(most_steps):
        basis = np.concatenate((basis, block), 1)
        images = np.concatenate((images, sum_over(block.conj().T @ part, comm)))
        u, s, vh = np.linalg.svd(images, full_matrices=False)
        bound = _bound(part, basis @ u[:, :k], s[:k], vh[:k], comm)
        wide = min(width, min(rows, n) - basis.shape[1])
        if wide <= 0 or np.all(bound <= tolerance * max(s[0] if len(s) else 0, 1e-300)):
            break
        block = _orthogonal_to(basis, part @ images[-width:].conj().T, comm)[:, :wide]
    return basis @ u[:, :k], s[:k], vh[:k], bound


def _bound(
    part: np.ndarray, u: np.ndarray, s: np.ndarray, vh: np.ndarray, comm: Communicator
) -> np.ndarray:
    """Return the distance between A v and s u; Aᴴ u is s v by construction."""
    rest = part @ vh.conj().T - u * s
    squares = np.add.reduce(np.abs(rest) ** 2, axis=0, dtype=np.float64)
    return np.sqrt(sum_over(np.asarray(squares), comm))


def _orthogonal_to(basis: np.ndarray, block: np.ndarray, comm: Communicator) -> np.ndarray:
    """Return an orthonormal basis of a block's part outside a basis.

    It is orthogonalised twice, as once is not enough.
    """
    for _ in range(2):
        block = block - basis @ sum_over(basis.conj().T @ block, comm)
        block = tsqr(block, comm)[0]
    return block
