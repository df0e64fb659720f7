"""The largest singular values by a randomised block Krylov method (Musco and Musco, 2015), with a
bound for their error.

Rows are spread over ranks. Products with A and Aᴴ alternate, and every block that is found stays in
the basis; it ends when the bound is met. For each triple (u, s, v) the bound is the length of
Aᴴ u - s v: A has a singular value that near to s.
"""

from __future__ import annotations

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms.process_grid import sum_over
from caldera.compiler.sharding.algorithms.tsqr import tsqr

OVERSAMPLING = 8
"""Vectors in a block beyond those that are wanted."""


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
    """This rank's rows of U, and on all ranks s, Vᴴ and a bound for the error of each s."""
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
    """How far A v is from s u; Aᴴ u is s v by construction."""
    rest = part @ vh.conj().T - u * s
    squares = np.add.reduce(np.abs(rest) ** 2, axis=0, dtype=np.float64)
    return np.sqrt(sum_over(np.asarray(squares), comm))


def _orthogonal_to(basis: np.ndarray, block: np.ndarray, comm: Communicator) -> np.ndarray:
    """An orthonormal basis of what a block adds to a basis; twice, as once is not enough."""
    for _ in range(2):
        block = block - basis @ sum_over(basis.conj().T @ block, comm)
        block = tsqr(block, comm)[0]
    return block
