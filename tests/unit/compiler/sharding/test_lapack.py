"""BLAS on parts of matrices, wherever they lie, beside NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from caldera.compiler.sharding.algorithms.lapack import (
    accumulate_product,
    cholesky_factor,
    householder,
    reflected,
    solve_right,
    solve_triangular,
    subtract_product,
)

RNG = np.random.default_rng(0)
DTYPES = ("f", "d", "F", "D")
SHAPES = ((1, 1, 1), (3, 2, 4), (1, 4, 2), (7, 3, 1), (0, 2, 2), (2, 0, 3), (16, 9, 12))


def numbers(m: int, n: int, dtype: str) -> np.ndarray:
    x = RNG.normal(size=(m, n))
    return (x + 1j * RNG.normal(size=(m, n)) if dtype in "FD" else x).astype(dtype)


def views(m: int, n: int, dtype: str) -> Iterator[np.ndarray]:
    """The same kind of matrix, whole, transposed, as a part of a larger one, with gaps."""
    yield numbers(m, n, dtype)
    yield numbers(n, m, dtype).T
    yield numbers(m + 3, n + 2, dtype)[1 : m + 1, 2:]
    yield numbers(n + 3, m + 2, dtype)[1 : n + 1, 2:].T
    yield numbers(2 * m, 3 * n, dtype)[::2, ::3]


def close(found: Any, right: Any, dtype: str) -> None:
    limit = 1e-4 if dtype in "fF" else 1e-12
    np.testing.assert_allclose(found, right, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", [*DTYPES, "g", "l"])
def test_a_product_is_added_where_it_is(dtype: str) -> None:
    for m, k, n in SHAPES:
        for a, b, c in product(views(m, k, dtype), views(k, n, dtype), views(m, n, dtype)):
            right = c - a @ b
            subtract_product(c, a, b)
            close(c, right, dtype)
    whole = np.zeros((4, 6))
    accumulate_product(whole[1:3, 2:5], np.ones((2, 7)), np.ones((7, 3)), 0.5)
    assert whole.sum() == whole[1:3, 2:5].sum() == 6 * 3.5


@pytest.mark.parametrize("dtype", DTYPES)
def test_triangles_are_solved_from_both_sides(dtype: str) -> None:
    for n, columns in ((1, 1), (4, 3), (9, 1), (5, 0)):
        for a, lower, adjoint in product(views(n, n, dtype), (False, True), (False, True)):
            a += n * np.eye(n, dtype=dtype)
            triangle = np.tril(a) if lower else np.triu(a)
            other = triangle.conj().T if adjoint else triangle
            for b in views(n, columns, dtype):
                x = solve_triangular(a, b, lower=lower, adjoint=adjoint)
                close(other @ x, b, dtype)
            x = numbers(columns + 2, n + 1, dtype)[1:-1, :n]
            b = x.copy()
            solve_right(x, np.ascontiguousarray(a), lower=lower, adjoint=adjoint)
            close(x @ other, b, dtype)
    unit = solve_triangular(
        np.array([[9.0, 9.0], [2.0, 9.0]]), np.ones((2, 1)), lower=True, unit=True
    )
    assert unit.ravel().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reflections_are_those_of_qr(dtype: str) -> None:
    for m, n in ((5, 3), (3, 3), (2, 4), (1, 1), (0, 2), (3, 0), (70, 40)):
        for a in views(m, n, dtype):
            y, t, r = householder(a)
            q = reflected(y, t, np.eye(min(m, n), dtype=dtype))
            close(q @ r, a, dtype)
            close(q.conj().T @ q, np.eye(min(m, n)), dtype)
            assert not np.tril(r, -1).any()
            assert not householder(np.zeros_like(a))[2].any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_reads_the_lower_triangle_alone(dtype: str) -> None:
    for b in views(6, 6, dtype):
        a = np.asarray(b @ b.conj().T + 6 * np.eye(6), dtype)
        factor = cholesky_factor(np.tril(a) + np.triu(np.full_like(a, 9), 1))
        close(factor, np.linalg.cholesky(a), dtype)
    assert np.isnan(cholesky_factor(-np.eye(2, dtype=dtype))).all()
