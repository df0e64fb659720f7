"""The singular value decomposition by a bidiagonal matrix, of matrices whose columns are dealt out.

Reflections from both sides make the matrix bidiagonal (Golub and Kahan, 1965). Of each step ranks
add up two columns once, and nothing else goes between them: the next column, which everybody makes
the next reflection of, and the matrix times the row that is to be reflected, of which its product
with the reflection follows, whatever the length of the row will be. LAPACK decomposes the
bidiagonal matrix on every rank, and each of them reflects back the vectors that are its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.lapack import subtract_product, svd_of_bidiagonal
from caldera.compiler.sharding.algorithms.process_grid import (
    cyclic_count,
    cyclic_indices,
    even_cuts,
    gather_rows,
    sum_over,
)
from caldera.errors import NonFiniteError

DEALT = 8
"""Columns that a rank has beside each other."""
DEFERRED = 8
"""Steps after which what they change is taken off the matrix at once."""
REFLECTED = 64
"""Reflections that are one product."""
Factors = tuple[np.ndarray, np.ndarray, np.ndarray]


class Bidiagonalisation:
    """A rank's columns of a matrix, as rows, while all ranks make it bidiagonal.

    A = Q B Pᴴ; `diagonal` and `above` are those of B, which are real. `left` has the reflections of
    Q in its rows, all of them on every rank, and `right` what is a rank's own of those of P.
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
        # What is not yet taken off: of the left and of the right reflections, whole columns (as
        # rows), and what is this rank's of rows.
        self._tall = np.zeros((2 * DEFERRED, m), part.dtype)
        self._wide = np.zeros((len(self.own), 2 * DEFERRED), part.dtype)
        self._waiting = 0

    def run(self) -> None:
        """All steps."""
        if not self.n:
            return
        column = self._column(0)
        self._sum(column)
        for step in range(self.n):
            column = self._step(step, column)

    def _begin(self, index: int) -> int:
        """How many of a rank's columns come before one of the matrix."""
        return cyclic_count(index, DEALT, self.comm.size, self.comm.rank)

    def _owner(self, index: int) -> int:
        return index // DEALT % self.comm.size

    def _column(self, index: int) -> np.ndarray:
        """A column of the matrix as it is now, from its `index` on, or zeros where others have
        it."""
        if self._owner(index) != self.comm.rank:
            return np.zeros(self.columns.shape[1] - index, self.columns.dtype)
        at, waiting = self._begin(index), self._waiting
        return self.columns[at, index:] - (self._wide[at, :waiting] @ self._tall[:waiting, index:])

    def _take_off(self, index: int) -> None:
        """What waits, of all rows and columns from an index on."""
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
        # Rows of A are conjugate here: Aᴴ v, of what is this rank's.
        wide, tall, here = self._wide[at:, :waiting], self._tall[:waiting, step:], self.columns[at:]
        y = here[:, step:] @ v.conj() - wide @ (tall @ v.conj())
        self._wait(step, v, factor.conj() * y)
        # The row, without what comes first in it.
        waiting = self._waiting
        wide, tall = self._wide[at:, :waiting], self._tall[:waiting]
        row = (here[:, step] - wide @ tall[:, step]).conj()
        is_first = self._owner(behind) == self.comm.rank
        rest = row[1:] if is_first else row
        # The matrix times the row, the next column, and what decides how the row is reflected.
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
    """The factor t, the real b and the scale s such that I - t v vᴴ, for v = 1 and s times what
    comes after the first, makes (first, ...) (b, 0, ...), if the others' squares are `square`."""
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
    """x becomes the product of all reflections with it; they are rows, each zero up to its place,
    which is the same distance from the diagonal for all of them."""
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
    """This rank's columns of U, s, and its columns of V, for its columns of a matrix with at least
    as many rows as columns; they come dealt out, `DEALT` at a time, and leave in `even_cuts`."""
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
    """A power of two near the largest number: no square of what it divides is too large."""
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
