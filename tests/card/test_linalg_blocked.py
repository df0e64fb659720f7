"""Factorisations panel by panel on a card: our own launches, products by what plays cuBLASLt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.ops import factorisation, linalg
from caldera.core.memory import Device
from caldera.errors import DataError
from caldera.kernels.cuda.linalg import (
    blocked as blocked_cholesky,
)
from caldera.kernels.cuda.linalg import (
    blocked as blocked_qr,
)
from caldera.kernels.cuda.linalg import (
    blocked as blocked_solve,
)
from caldera.kernels.cuda.linalg import (
    cusolver,
    panels,
)
from caldera.kernels.cuda.linalg.panels import PANEL
from caldera.kernels.cuda.runtime import cublaslt, device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel, stand_ins
from tests.card.emulated import EmulatedCard
from tests.card.fake_cublaslt import FakeCublasLt
from tests.unit.kernels.checking import LAYOUTS, compare


@pytest.fixture
def blocked(card: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A card that takes small matrices for large ones; NumPy for its libraries, unless it has its
    own."""
    monkeypatch.setattr(panels, "SMALLEST", 8)
    for module in (blocked_cholesky, blocked_qr, blocked_solve):
        monkeypatch.setattr(module, "GROUP", 256)
    if isinstance(card, EmulatedCard):
        fake = FakeCublasLt()
        monkeypatch.setattr(device, "cublas_lt", lambda: fake)
        monkeypatch.setattr(cusolver, "card_count", lambda: 1)
        for module in (panels, blocked_solve, cusolver):
            monkeypatch.setattr(module, "cupy_array", lambda array: array)
        monkeypatch.setattr(cusolver, "cupy", lambda: np)
        state = SimpleNamespace(errstate=lambda linalg: nullcontext())
        monkeypatch.setattr(cusolver, "optional_import", lambda *_: state)
        _forget()
    yield card
    if isinstance(card, EmulatedCard):
        _forget()


def _forget() -> None:
    for known in (cublaslt.handle, cublaslt.algorithms):
        known.cache_clear()


@pytest.fixture
def alone(blocked: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A card on which the library must not be asked."""

    def refuse(call: Any) -> None:
        raise AssertionError(f"{call.node.op.name} was left to the library")

    monkeypatch.setattr(cusolver, "bind", refuse)
    return blocked


def kernel_of(node: Any) -> Kernel:
    return next(each for each in TABLE.candidates(node, "cuda") if each.name == "blocked")


# Sources of the two differ in more than the type, so neither stands for the other.
TYPES = ("float32", "float64")
SIZES = ((20, "dense"), (300, "with gaps"), (128, "backwards"))


def test_cholesky(alone: Device) -> None:
    draw = np.random.default_rng(0)
    for dtype in TYPES:
        for n, layout in SIZES:
            a = draw.normal(size=(n, n))
            # Only its symmetric part counts.
            given = (a @ a.T + n * np.eye(n) + np.triu(a, 1) - np.triu(a, 1).T).astype(dtype)
            node = factorisation.cholesky(*stand_ins(given))
            arranged = (LAYOUTS[layout](given),)
            (lower,) = run_kernel(alone, kernel_of(node), node, arranged, times=2)
            compare(lower, *evaluate(node, (given,)))


def test_cholesky_of_an_ill_conditioned_matrix(alone: Device) -> None:
    # Points of a line under a smooth kernel.
    apart = np.subtract.outer(*[np.linspace(0, 1, 300)] * 2)
    given = np.exp(-50 * apart**2) + 1e-10 * np.eye(300)
    node = factorisation.cholesky(*stand_ins(given))
    (lower,) = run_kernel(alone, kernel_of(node), node, (given,))
    assert np.linalg.norm(lower @ lower.T - given) < 1e-15 * np.linalg.norm(given)


def _check_qr(card: Device, given: np.ndarray) -> None:
    node = factorisation.qr.outputs(*stand_ins(given))[0].inputs[0]
    q, r = (each.astype("float64") for each in run_kernel(card, kernel_of(node), node, (given,)))
    epsilon, k = np.finfo(given.dtype).eps, min(given.shape)
    assert np.linalg.norm(q.T @ q - np.eye(k)) < 4 * epsilon * k
    assert np.linalg.norm(q @ r - given) <= 8 * epsilon * np.sqrt(k) * np.linalg.norm(given)
    np.testing.assert_array_equal(r, np.triu(r))
    assert np.diagonal(r).min() >= 0


def test_qr(alone: Device) -> None:
    draw = np.random.default_rng(0)
    for dtype in TYPES:
        for n, layout in SIZES:
            a = draw.normal(size=(n, n)).astype(dtype)
            shapes = (a, a[:, : n - 9], a[: n // 2]) if n > PANEL else (a,)
            for given in shapes:
                _check_qr(alone, LAYOUTS[layout](given))


def test_qr_of_ill_conditioned_matrices(blocked: Device) -> None:
    draw = np.random.default_rng(0)
    left, right = (np.linalg.qr(draw.normal(size=(140, 140)))[0] for _ in range(2))
    for dtype, conditions in (("float32", (1e5, 1e12)), ("float64", (1e5, 1e12, 1e20))):
        for condition in conditions:
            given = (left * np.geomspace(1, 1 / condition, 140)) @ right
            _check_qr(blocked, given.astype(dtype))
    for given in (np.zeros((40, 40)), np.ones((140, 30)), np.eye(30) * 1e-30):
        for dtype in TYPES:
            _check_qr(blocked, given.astype(dtype))


def _check_solve(card: Device, a: np.ndarray, b: np.ndarray) -> None:
    node = linalg.solve(*stand_ins(a, b))
    (x,) = run_kernel(card, kernel_of(node), node, (a, b))
    wide, right = a.astype("float64"), b.astype("float64")
    residual = np.abs(right - wide @ x).max(axis=0)
    reach = np.abs(wide).sum(axis=1).max() * np.abs(x.astype("float64")).max(axis=0)
    assert (residual <= 2 * np.finfo(a.dtype).eps * reach).all()


def test_solve(alone: Device) -> None:
    draw = np.random.default_rng(0)
    for dtype in TYPES:
        for n, layout in SIZES:
            a, b = (draw.normal(size=(n, k)).astype(dtype) for k in (n, 3))
            _check_solve(alone, LAYOUTS[layout](a), LAYOUTS[layout](b))


def test_solve_with_pivots_of_nothing(alone: Device) -> None:
    draw = np.random.default_rng(0)
    n = 140
    sparse = np.where(draw.random((n, n)) < 0.9, 0, draw.normal(size=(n, n)))
    # The first number stays 0, mixed or not.
    quarter = n // 4
    sparse[np.ix_(range(0, n, quarter), range(0, n, quarter))] = 0
    for dtype in TYPES:
        _check_solve(alone, sparse.astype(dtype), draw.normal(size=(n, 1)).astype(dtype))


def test_solve_where_rows_have_to_change_places(blocked: Device) -> None:
    n = 135
    draw = np.random.default_rng(0)
    for dtype in TYPES:
        for a in (np.eye(n)[::-1], np.roll(np.eye(n), 7, axis=0)):
            _check_solve(blocked, a.astype(dtype), draw.normal(size=(n, 1)).astype(dtype))


def test_solve_where_exchanged_rows_do_not_help(blocked: Device) -> None:
    if not isinstance(blocked, EmulatedCard):
        pytest.skip("how a real card rounds decides whether the library serves, which cannot")
    n = 135
    wilkinson = np.eye(n) - np.tril(np.ones((n, n)), -1)
    wilkinson[:, -1] = 1
    right = np.random.default_rng(0).normal(size=(n, 1))
    for dtype in TYPES:
        _check_solve(blocked, wilkinson.astype(dtype), right.astype(dtype))


def test_what_cannot_be_factorised_is_an_error(blocked: Device) -> None:
    indefinite = np.eye(20)
    indefinite[15, 15] = -1
    node = factorisation.cholesky(*stand_ins(indefinite))
    assert not kernel_of(node).capturable
    with pytest.raises(DataError, match=r"op\.cholesky: expected symmetric positive definite"):
        run_kernel(blocked, kernel_of(node), node, (indefinite,))


def test_a_singular_matrix_is_an_error(blocked: Device) -> None:
    singular = np.ones((20, 20))
    singular[3:] *= 2
    # Of the second there are solutions.
    for right in (np.ones((20, 1)), singular[:, :2]):
        for dtype in TYPES:
            given = singular.astype(dtype), right.astype(dtype)
            node = linalg.solve(*stand_ins(*given))
            with pytest.raises(DataError, match=r"op\.solve: expected invertible"):
                run_kernel(blocked, kernel_of(node), node, given)


def names(op: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> list[str]:
    node = op.node(*stand_ins(*[np.broadcast_to(np.zeros((), dtype), shape) for shape in shapes]))
    found = TABLE.candidates(node, "cuda", settings.workspace_limit)
    return [each.name for each in found]


LARGE = (8192, 8192)


def test_it_serves_large_matrices(blocked: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "SMALLEST", 1024)
    for dtype in TYPES:
        assert names(factorisation.cholesky, LARGE, dtype=dtype)[0] == "blocked"
        assert names(factorisation.qr, LARGE, dtype=dtype)[0] == "blocked"
        assert names(linalg.solve, LARGE, (8192, 16), dtype=dtype)[0] == "blocked"
    assert "blocked" not in names(linalg.solve, LARGE, (8192, 100))
    assert "blocked" not in names(factorisation.qr, (8192, 1000))
    assert "blocked" not in names(factorisation.qr, (4, 2048, 2048))


@pytest.mark.played(capability=(8, 6))
def test_it_does_not_serve_where_float64_is_slow(blocked: Device) -> None:
    if isinstance(blocked, EmulatedCard):
        assert "blocked" not in names(factorisation.qr, LARGE)
