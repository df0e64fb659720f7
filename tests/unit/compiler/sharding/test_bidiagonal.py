"""Singular values by a bidiagonal matrix: of any scale, any rank, on any number of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.sharding.algorithms.axis_variants import LOCAL_BYTES
from caldera.compiler.sharding.algorithms.bidiagonal import DEALT, svd_by_bidiagonal
from caldera.compiler.sharding.algorithms.process_grid import cyclic_indices
from caldera.compiler.sharding.algorithms.registry import ALGORITHMS
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.errors import NonFiniteError
from tests.unit.compiler.sharding.algorithm_cases import numbers


def _svd(a: np.ndarray, ranks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = a.shape[1]

    def work(comm: Communicator) -> Any:
        own = cyclic_indices(n, DEALT, ranks, comm.rank)
        return svd_by_bidiagonal(np.ascontiguousarray(a[:, own]), n, comm)

    done = run_virtual_ranks(ranks, work)
    u, v = (np.concatenate([each[place] for each in done], 1) for place in (0, 2))
    return u, done[0][1], v


def _check(a: np.ndarray, ranks: int) -> None:
    u, s, v = _svd(a, ranks)
    n, kind = a.shape[1], np.finfo(a.dtype)
    scale = np.max(np.abs(a), initial=0) or 1
    limit = 200 * kind.eps * max(n, 1) ** 0.5
    assert np.max(np.abs((u * (s / scale)) @ v.conj().T - a / scale), initial=0) < limit
    for vectors in (u, v):
        assert np.max(np.abs(vectors.conj().T @ vectors - np.eye(n)), initial=0) < limit
    right = np.linalg.svd((a / scale).astype(np.complex128), compute_uv=False)
    assert np.max(np.abs(s / scale - right), initial=0) < limit
    assert u.dtype == v.dtype == a.dtype
    assert np.all(np.diff(s) <= 0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_factors_of_any_matrix(dtype: str) -> None:
    rng = np.random.default_rng(5)
    for n, more, ranks in ((0, 3, 2), (1, 0, 3), (7, 2, 2), (40, 0, 1), (53, 9, 4)):
        _check(numbers(rng, dtype, n + more, n), ranks)


def test_what_has_no_full_rank_is_not_lost() -> None:
    rng = np.random.default_rng(6)
    _check(np.zeros((20, 20)), 2)
    _check(np.eye(20), 3)
    _check(np.ones((30, 17)), 2)
    _check(rng.normal(size=(40, 5)) @ rng.normal(size=(5, 36)), 4)
    _check(np.diag(10.0 ** -np.arange(30)), 2)


def test_squares_of_large_and_small_numbers_do_not_overflow() -> None:
    a = np.random.default_rng(7).normal(size=(24, 24))
    _check(a * 1e300, 2)
    _check(a * 1e-300, 2)
    _check((a * 1e30).astype(np.float32), 2)


def test_nan_is_refused_by_all_ranks() -> None:
    a = np.ones((20, 20))
    a[3, 11] = np.nan
    with pytest.raises(NonFiniteError, match="nan or infinity"):
        _svd(a, 2)


def test_it_is_chosen_for_what_every_rank_has_room_for() -> None:
    def names(n: int) -> list[str]:
        node = OPS["svd"].node(parameter(0, Spec((n, n), np.dtype(float))))
        variants = ALGORITHMS["svd"].variants(node, [], 16)
        return [each.name for each in sorted(variants, key=lambda v: v.cost.seconds(Links()))]

    most = int((LOCAL_BYTES / 8) ** 0.5)
    assert names(most)[0] == names(1024)[0] == "bidiagonal SVD"
    assert names(most + 1) == ["one-sided block Jacobi"]
