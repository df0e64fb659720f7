"""QR and bidiagonal matrices by reflections.

On a grid the ranks of a column gather a panel and factorise it redundantly, by LAPACK, which needs
a single message per panel instead of a message per column. On grids with few rows, TSQR along the
column would save no work. Its tree factorises triangles, and its Q has to be converted to
reflections. The ranks update the matrix right of the panel as in LAPACK: H = I - Y T Yᴴ, only by
products. A panel is factorised and sent while all ranks reflect the columns behind it (look-ahead).

TSQR (Demmel et al., 2012): each rank factorises its own rows, and the triangles are factorised in
pairs along a binary tree. This sends log2(p) messages of n² numbers up the tree, and log2(p) down
the tree for Q. Parts may be empty.

Reflections from both sides make the matrix bidiagonal (Golub and Kahan, 1965). In each step, ranks
add up two columns once, which is the only communication. The first is the next column, from which
each rank computes the next reflection. The second is the matrix times the next row to reflect: its
product with the reflection follows from it for any length of the row. LAPACK decomposes the
bidiagonal matrix on every rank, and each rank reflects its own vectors back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.lapack import (
    householder,
    reflected,
    subtract_product,
    svd_of_bidiagonal,
)
from caldera.compiler.sharding.algorithms.lu import Cyclic, diagonal_of
from caldera.compiler.sharding.algorithms.process_grid import (
    Broadcast,
    ProcessGrid,
    cyclic_count,
    cyclic_indices,
    even_cuts,
    gather_rows,
    sum_over,
)
from caldera.errors import NonFiniteError


@dataclass
class Reflectors:
    """Some Householder reflections together, I - Y T Yᴴ: this rank's rows of Y, from row `begin` of
    the matrix on, on every rank of a row of the grid."""

    begin: int
    y: np.ndarray
    t: np.ndarray

    def apply(self, x: np.ndarray, grid: ProcessGrid, *, adjoint: bool) -> None:
        """Replace x by H x or Hᴴ x; x and Y have the same rows."""
        inner = sum_over(self.y.conj().T @ x, grid.along_column)
        factor = self.t.conj().T if adjoint else self.t
        subtract_product(x, self.y, factor @ inner)


def qr(
    part: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's parts of Q and R, reduced, block-cyclic as the matrix is; the diagonal of
    R is not negative."""
    a = np.ascontiguousarray(part).copy()
    m, n = shape
    k = min(m, n)
    where = Cyclic(shape, block, grid)
    found = _reflected(a, k, where)
    of_q = Cyclic((m, k), block, grid)
    q = (of_q.rows[:, None] == of_q.columns).astype(a.dtype)
    for step in reversed(found):
        # The remainder of this column is zero in the reflected rows.
        right = of_q.local_columns(step.begin, k)
        rows = of_q.local_rows(step.begin, m)
        step.apply(q[rows, right], grid, adjoint=False)
    r = a[: where.local_rows(0, k).stop]
    r[where.rows[: len(r), None] > where.columns] = 0
    return _with_positive_diagonal(q, r, (k, n), block, grid)


def _reflected(a: np.ndarray, k: int, where: Cyclic) -> list[Reflectors]:
    """Return the reflections that make zeros below the diagonal of `a`, which becomes R."""
    grid, (m, n), block = where.grid, where.shape, where.block
    found = []
    ahead = _panel(a, 0, min(block, k), where) if k else None
    while ahead is not None:
        (step, arriving), ahead = ahead, None
        arriving.wait()
        rows, end = where.local_rows(step.begin, m), step.begin + len(step.t)
        right = where.local_columns(end, n)
        if end < k:
            # The next panel is sent while all ranks reflect the matrix behind it.
            soon = where.local_columns(end, min(end + block, k))
            if soon.stop > soon.start:
                step.apply(a[rows, soon], grid, adjoint=True)
            ahead = _panel(a, end, min(end + block, k), where)
            right = slice(soon.stop, right.stop)
        step.apply(a[rows, right], grid, adjoint=True)
        found.append(step)
    return found


def _panel(a: np.ndarray, begin: int, end: int, where: Cyclic) -> tuple[Reflectors, Broadcast]:
    """Factorise a panel in place, and start to send its reflections to the remaining ranks."""
    grid, m, width = where.grid, where.shape[0], end - begin
    owner = where.column_owner(begin)
    rows = where.local_rows(begin, m)
    # T above Y: one message.
    both = np.empty((width + rows.stop - rows.start, width), a.dtype)
    t, y = both[:width], both[width:]
    if grid.column == owner:
        here = where.local_columns(begin, end)
        whole, own = _whole_panel(a[rows, here], begin, where)
        all_y, t[:], r = householder(whole)
        y[:] = all_y[own]
        if grid.row == where.row_owner(begin):
            a[where.local_rows(begin, end), here] = r
    return Reflectors(begin, y, t), Broadcast([both], owner, grid.along_row)


def _whole_panel(part: np.ndarray, begin: int, where: Cyclic) -> tuple[np.ndarray, slice]:
    """Return all rows of a panel from `begin` on, as LAPACK requires, and this rank's slice.

    The rows of the diagonal are first. The remaining rows are in the order of the ranks, which does
    not affect reflections.
    """
    grid, counts = where.grid, where.row_counts(begin)
    gathered = gather_rows(part, counts, grid.along_column)
    total = len(gathered)
    first = sum(counts[: int(where.row_owner(begin))])
    whole = np.empty(gathered.shape, part.dtype, order="F")
    whole[: total - first], whole[total - first :] = gathered[first:], gathered[:first]
    at = (sum(counts[: grid.row]) - first) % max(total, 1)
    return whole, slice(at, at + counts[grid.row])


def _with_positive_diagonal(
    q: np.ndarray, r: np.ndarray, shape: tuple[int, int], block: int, grid: ProcessGrid
) -> tuple[np.ndarray, np.ndarray]:
    where = Cyclic(shape, block, grid)
    diagonal = diagonal_of(r, shape, block, grid)
    sign, size = _signs(diagonal)
    r *= sign.conj()[where.rows, None]
    if np.iscomplexobj(r):
        # Remove the rounding errors of the diagonal, which is real.
        r[where.rows[:, None] == where.columns] = size[np.intersect1d(where.rows, where.columns)]
    columns = Cyclic((1, shape[0]), block, grid).columns
    q *= sign[columns]
    return q, r


def _signs(diagonal: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sign of each number, 1 for 0, and its magnitude."""
    size = np.abs(diagonal)
    return np.where(size == 0, 1, diagonal / np.where(size == 0, 1, size)).astype(
        diagonal.dtype
    ), size


_UP, _DOWN = 1, 2
"""Tags of messages towards the root of the tree and away from it."""


def tsqr(part: np.ndarray, comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's rows of Q, and R on all ranks; the diagonal of R is not negative.

    The number of columns of Q is the smaller of the numbers of rows and columns of the matrix.
    """
    columns = part.shape[1]
    y, t, r = householder(part)
    heights = _heights(len(part), columns, comm)
    levels: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    distance = 1
    while distance < comm.size:
        if comm.rank % (2 * distance):
            comm.Send(np.ascontiguousarray(r), comm.rank - distance, _UP)
            break
        other = comm.rank + distance
        if other < comm.size:
            below = np.empty((heights[distance][other], columns), part.dtype)
            comm.Recv(below, other, _UP)
            above = len(r)
            inner_y, inner_t, r = householder(np.concatenate((r, below)))
            levels.append((other, above, inner_y, inner_t))
        distance *= 2
    whole = np.empty((heights[distance if comm.rank == 0 else 0][0], columns), part.dtype)
    if comm.rank == 0:
        r, sign = positive_diagonal(r)
        np.copyto(whole, r)
        factor = np.diag(sign)
    comm.Bcast(whole, 0)
    if comm.rank:
        factor = np.empty((heights[distance][comm.rank], len(whole)), part.dtype)
        comm.Recv(factor, comm.rank - distance, _DOWN)
    for other, above, inner_y, inner_t in reversed(levels):
        product = reflected(inner_y, inner_t, factor)
        comm.Send(np.ascontiguousarray(product[above:]), other, _DOWN)
        factor = product[:above]
    return reflected(y, t, factor), whole


def _heights(rows: int, columns: int, comm: Communicator) -> dict[int, list[int]]:
    """For each step up the tree, the rows of each rank's triangle before it; 0: at the end."""
    own = np.array([min(rows, columns)], np.int64)
    all_rows = np.empty(comm.size, np.int64)
    comm.Allgather(own, all_rows)
    heights = [int(each) for each in all_rows]
    found: dict[int, list[int]] = {}
    distance = 1
    while distance < comm.size:
        found[distance] = heights.copy()
        for rank in range(0, comm.size - distance, 2 * distance):
            heights[rank] = min(heights[rank] + heights[rank + distance], columns)
        distance *= 2
    found[distance] = found[0] = heights
    return found


def positive_diagonal(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R with a diagonal that is not negative, and the factors of the columns of Q for that."""
    sign, size = _signs(np.diagonal(r))
    r = r * sign.conj()[:, None]
    np.fill_diagonal(r, size)
    return np.triu(r), sign


DEALT = 8
"""Number of adjacent columns on a rank."""
DEFERRED = 8
"""Number of steps whose updates are subtracted from the matrix together."""
REFLECTED = 64
"""Reflections that are one product."""
Factors = tuple[np.ndarray, np.ndarray, np.ndarray]


class Bidiagonalisation:
    """A rank's columns of a matrix, as rows, while all ranks make it bidiagonal.

    A = Q B Pᴴ; B has the real `diagonal` and `above`. Rows of `left` are the reflections of Q, all
    on every rank. Rows of `right` are this rank's parts of the reflections of P.
    """

    def __init__(self, part: np.ndarray, n: int, comm: Communicator) -> None:
        m = len(part)
        self.columns = np.array(part.T, order="C")
        self.n, self.comm = n, comm
        self.own = cyclic_indices(n, DEALT, comm.size, comm.rank)
        real = part.real.dtype
        self.diagonal, self.above = np.zeros(n, real), np.zeros(max(n - 1, 0), real)
        self.left = np.zeros((n, m), part.dtype)
        self.right = np.zeros((n, len(self.own)), part.dtype)
        self.left_factors, self.right_factors = np.zeros(n, part.dtype), np.zeros(n, part.dtype)
        # Deferred updates by left and right reflections: whole columns (as rows), and this rank's
        # part of the rows.
        self._tall = np.zeros((2 * DEFERRED, m), part.dtype)
        self._wide = np.zeros((len(self.own), 2 * DEFERRED), part.dtype)
        self._waiting = 0

    def run(self) -> None:
        """Run all steps."""
        if not self.n:
            return
        column = self._column(0)
        self._sum(column)
        for step in range(self.n):
            column = self._step(step, column)

    def _begin(self, index: int) -> int:
        """Return the number of this rank's columns before a column of the matrix."""
        return cyclic_count(index, DEALT, self.comm.size, self.comm.rank)

    def _owner(self, index: int) -> int:
        return index // DEALT % self.comm.size

    def _column(self, index: int) -> np.ndarray:
        """Return a column of the matrix as it is now, from its `index` on, or zeros where others
        have it."""
        if self._owner(index) != self.comm.rank:
            return np.zeros(self.columns.shape[1] - index, self.columns.dtype)
        at, waiting = self._begin(index), self._waiting
        return self.columns[at, index:] - (self._wide[at, :waiting] @ self._tall[:waiting, index:])

    def _take_off(self, index: int) -> None:
        """Subtract the deferred updates from all rows and columns from an index on."""
        at, waiting = self._begin(index), self._waiting
        subtract_product(
            self.columns[at:, index:], self._wide[at:, :waiting], self._tall[:waiting, index:]
        )
        self._waiting = 0

    def _wait(self, index: int, tall: np.ndarray, wide: np.ndarray) -> None:
        """A column times a row to be taken off, both from an index on."""
        self._tall[self._waiting, index:] = tall
        self._wide[self._begin(self.n) - len(wide) :, self._waiting] = wide
        self._waiting += 1

    def _step(self, step: int, column: np.ndarray) -> np.ndarray:
        """Reflect a column and the row behind it; the next column."""
        v, factor, beta = reflection(column[0], column[1:])
        self.left[step, step:], self.left_factors[step], self.diagonal[step] = v, factor, beta
        behind = step + 1
        if behind == self.n:
            return column[:0]
        if self._waiting + 2 > 2 * DEFERRED:
            self._take_off(step)
        at, waiting = self._begin(behind), self._waiting
        # Rows of A are conjugate here: this rank's part of Aᴴ v.
        wide, tall, here = self._wide[at:, :waiting], self._tall[:waiting, step:], self.columns[at:]
        y = here[:, step:] @ v.conj() - wide @ (tall @ v.conj())
        self._wait(step, v, factor.conj() * y)
        # The row, without the elements before it.
        waiting = self._waiting
        wide, tall = self._wide[at:, :waiting], self._tall[:waiting]
        row = (here[:, step] - wide @ tall[:, step]).conj()
        is_first = self._owner(behind) == self.comm.rank
        rest = row[1:] if is_first else row
        # The matrix times the row, the next column, and the two numbers that determine the
        # reflection of the row.
        size = self.columns.shape[1] - behind
        sums = np.empty(2 * size + 2, self.columns.dtype)
        np.matmul(row, here[:, behind:], out=sums[:size])
        sums[:size] -= (row @ wide) @ tall[:, behind:]
        sums[size : 2 * size] = self._column(behind)
        sums[-2] = row[0] if is_first else 0
        sums[-1] = np.vdot(rest, rest).real
        self._sum(sums)
        product, following = sums[:size], sums[size : 2 * size]
        first, square = sums[-2], float(sums[-1].real)
        factor, beta, scale = householder_of(first, square)
        self.right_factors[step], self.above[step] = factor, beta
        u = row * scale
        if is_first:
            u[0] = 1
        self.right[step, at:] = u
        x = factor * scale * (product - beta * following) if factor else np.zeros_like(product)
        self._wait(behind, x, u.conj())
        return following - x

    def _sum(self, sums: np.ndarray) -> None:
        """Over the ranks, in place; complex numbers are pairs of real ones."""
        sum_over(sums.view(sums.real.dtype), self.comm)


def householder_of(first: Any, square: float) -> tuple[Any, float, Any]:
    """Return the factor t, the real b and the scale s of a reflection.

    v is 1 followed by s times the remaining elements; I - t v vᴴ maps (first, ...) to (b, 0, ...).
    `square` is the sum of the squares of the remaining elements.
    """
    kind = np.asarray(first).dtype.type
    if square == 0 and first.imag == 0:
        return kind(0), float(first.real), kind(0)
    length = float(np.sqrt(first.real**2 + first.imag**2 + square))
    beta = -length if first.real > 0 else length
    return kind((beta - first) / beta), beta, kind(1 / (first - beta))


def reflection(first: Any, rest: np.ndarray) -> tuple[np.ndarray, Any, float]:
    """v, which begins with 1, t and b such that (I - t v vᴴ)ᴴ makes a column (b, 0, ...)."""
    factor, beta, scale = householder_of(first, float(np.vdot(rest, rest).real))
    v = np.empty(len(rest) + 1, rest.dtype)
    v[0] = 1
    np.multiply(rest, scale, out=v[1:])
    return v, factor, beta


def reflect_back(x: np.ndarray, reflections: np.ndarray, factors: np.ndarray) -> None:
    """Replace x by its product with all reflections.

    The reflections are rows. Each is zero up to its position, at a constant distance from the
    diagonal.
    """
    count = len(reflections)
    for begin in range((count - 1) // REFLECTED * REFLECTED, -1, -REFLECTED):
        end = min(begin + REFLECTED, count)
        v, factor = reflections[begin:end, begin:], factors[begin:end]
        none = factor == 0
        if none.any():
            v = np.where(none[:, None], 0, v)
        # I - V T Vᴴ, of which the inverse of T is known.
        adjoint = v.conj() if np.iscomplexobj(v) else v
        inverse = np.triu(adjoint @ v.T, 1)
        inverse[np.diag_indices(end - begin)] = 1 / np.where(none, 1, factor)
        subtract_product(x[begin:], v.T, np.linalg.solve(inverse, adjoint @ x[begin:]))


def svd_by_bidiagonal(part: np.ndarray, n: int, comm: Communicator) -> Factors:
    """Return this rank's columns of U, s, and its columns of V, for its columns of a matrix.

    The matrix has at least n rows for n columns. Its columns are dealt out, `DEALT` at a time;
    columns of the result are in `even_cuts`.
    """
    m, cuts = len(part), even_cuts(n, comm.size)
    own = slice(cuts[comm.rank], cuts[comm.rank + 1])
    scale = _scale(part, comm)
    found = Bidiagonalisation(part * part.real.dtype.type(1 / scale), n, comm)
    found.run()
    u, s, vt = svd_of_bidiagonal(found.diagonal, found.above)
    left = np.zeros((m, own.stop - own.start), part.dtype)
    left[:n] = u[:, own]
    reflect_back(left, found.left, found.left_factors)
    right = np.ascontiguousarray(vt[own].T, part.dtype)
    counts = [cyclic_count(n, DEALT, comm.size, rank) for rank in range(comm.size)]
    order = np.concatenate([cyclic_indices(n, DEALT, comm.size, r) for r in range(comm.size)])
    whole = np.empty((n, n), part.dtype)
    whole[order] = gather_rows(np.ascontiguousarray(found.right.T), counts, comm)
    if n > 1:
        reflect_back(right[1:], whole.T[:-1, 1:], found.right_factors[:-1])
    return left, s * s.dtype.type(scale), right


def _scale(part: np.ndarray, comm: Communicator) -> float:
    """Return a power of two near the largest number; squares of scaled numbers cannot overflow."""
    largest = np.array([np.max(np.abs(part), initial=0)], np.float64)
    comm.Allreduce(largest, largest, "max")
    if not np.isfinite(largest[0]):
        raise NonFiniteError.build(
            "dmath.svd",
            expected="finite numbers",
            got="nan or infinity",
            hint="look for nan or infinity in the matrix",
        )
    exponent = int(np.frexp(largest[0])[1])
    return float(np.ldexp(1.0, exponent))
