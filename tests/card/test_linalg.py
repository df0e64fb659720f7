"""Linear algebra on a card, against the oracle and against what factors must multiply to."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.ops import factorisation, linalg
from caldera.core.memory import Device
from caldera.core.tensor.dtype import is_complex
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import check, nodes_of_cases, run_kernel, stand_ins
from tests.unit.kernels.checking import DTYPES

OPS = {"solve", "inverse", "slogdet", "cholesky", "qr", "svd", "eigh"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    found = set()
    for node, inputs in nodes_of_cases(OPS, dtype):
        if is_complex(node.inputs[0].dtype):
            # These are the library's.
            continue
        # Matrices of equal rows are singular.
        layouts = ["dense", "with gaps", "columns first", "backwards"]
        assert "one block" in check(card, node, inputs, layouts=layouts)
        found.add(node.op.name)
    assert found == OPS


def _matrices(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def _run(place: Device, node: object, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The outputs of the kernel of one block for each matrix."""
    item = node[0] if isinstance(node, tuple) else node
    maker = item.inputs[0] if item.op.name == "item" else item  # type: ignore[attr-defined]
    kernel = next(k for k in TABLE.candidates(maker, "cuda") if k.name == "one block")
    return run_kernel(place, kernel, maker, inputs)


@pytest.fixture(params=["shared memory", "workspace"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both places where matrices may be while they are worked on."""
    if request.param == "workspace":
        monkeypatch.setattr("caldera.kernels.cuda.runtime.driver._MOST_SHARED", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 33])
@pytest.mark.usefixtures("room")
def test_equations(card: Device, n: int, dtype: str) -> None:
    a = (_matrices(2, n, n) + 4 * np.eye(n)).astype(dtype)
    b = _matrices(2, n, 70).astype(dtype)
    tolerance = 1e-3 if dtype == "float32" else 1e-11
    for node, inputs in (
        (linalg.solve(*stand_ins(a, b)), (a, b)),
        (linalg.inverse(*stand_ins(a)), (a,)),
        (linalg.slogdet.outputs(*stand_ins(a)), (a,)),
        (factorisation.cholesky(*stand_ins(a @ a.swapaxes(1, 2))), (a @ a.swapaxes(1, 2),)),
    ):
        maker = node[0].inputs[0] if isinstance(node, tuple) else node
        for mine, right in zip(_run(card, node, *inputs), evaluate(maker, inputs), strict=True):
            np.testing.assert_allclose(mine, right, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(7, 7), (40, 12), (12, 40), (2, 9, 35)])
@pytest.mark.usefixtures("room")
def test_factors(card: Device, shape: tuple[int, ...], dtype: str) -> None:
    a = _matrices(*shape).astype(dtype)
    tolerance = 2e-5 if dtype == "float32" else 1e-13
    k = min(shape[-2:])
    q, r = _run(card, factorisation.qr.outputs(*stand_ins(a)), a)
    u, s, vt = _run(card, factorisation.svd.outputs(*stand_ins(a)), a)
    np.testing.assert_allclose(q @ r, a, atol=tolerance)
    np.testing.assert_allclose((u * s[..., None, :]) @ vt, a, atol=tolerance)
    for columns in (q, u, vt.swapaxes(-1, -2)):
        product = columns.swapaxes(-1, -2) @ columns - np.eye(k)
        np.testing.assert_allclose(product, np.zeros_like(product), atol=tolerance)
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), rtol=tolerance)
    assert (np.diagonal(r, axis1=-2, axis2=-1) >= 0).all()
    assert np.array_equal(r, np.triu(r))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [6, 21])
@pytest.mark.usefixtures("room")
def test_eigenvectors(card: Device, n: int, dtype: str) -> None:
    a = _matrices(2, n, n).astype(dtype)
    symmetric = (a + a.swapaxes(-1, -2)) / 2
    tolerance = 2e-5 if dtype == "float32" else 1e-13
    w, v = _run(card, factorisation.eigh.outputs(*stand_ins(a)), a)
    np.testing.assert_allclose(symmetric @ v, v * w[:, None, :], atol=tolerance)
    np.testing.assert_allclose(v.swapaxes(1, 2) @ v, [np.eye(n)] * 2, atol=tolerance)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(symmetric), atol=tolerance)


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_singular_vectors_are_orthonormal_where_values_are_zero(
    card: Device,
    shape: tuple[int, int],
) -> None:
    for a in (np.zeros(shape), np.outer(np.arange(shape[0]), np.ones(shape[1]))):
        u, s, vt = _run(card, factorisation.svd.outputs(*stand_ins(a)), a)
        np.testing.assert_allclose((u * s) @ vt, a, atol=1e-13)
        np.testing.assert_allclose(u.T @ u, np.eye(min(shape)), atol=1e-13)
        np.testing.assert_allclose(vt @ vt.T, np.eye(min(shape)), atol=1e-13)


def test_large_and_small_numbers_do_not_overflow(card: Device) -> None:
    for scale in (1e30, 1e-30):
        a = (_matrices(4, 4) * scale).astype("float32")
        q, r = _run(card, factorisation.qr.outputs(*stand_ins(a)), a)
        u, s, vt = _run(card, factorisation.svd.outputs(*stand_ins(a)), a)
        w, v = _run(card, factorisation.eigh.outputs(*stand_ins(a)), a)
        np.testing.assert_allclose(q @ r / scale, a / scale, atol=1e-5)
        np.testing.assert_allclose(u * (s / scale) @ vt, a / scale, atol=1e-5)
        np.testing.assert_allclose((v * (w / scale)) @ v.T, (a + a.T) / 2 / scale, atol=1e-5)


def test_what_cannot_be_done_is_nan(card: Device) -> None:
    singular = np.array([[1.0, 2.0], [2.0, 4.0]])
    both = np.stack([singular, np.eye(2)])
    for node in (linalg.inverse(*stand_ins(both)), linalg.solve(*stand_ins(both, both))):
        inputs = (both,) * len(node.inputs)
        (result,) = _run(card, node, *inputs)
        assert np.isnan(result[0]).all()
        np.testing.assert_allclose(result[1], np.eye(2))
    (factor,) = _run(card, factorisation.cholesky(*stand_ins(both)), both - 2 * singular[0, 0])
    assert np.isnan(factor).all()
    sign, logarithm = _run(card, linalg.slogdet.outputs(*stand_ins(both)), both)
    assert sign.tolist() == [0.0, 1.0]
    assert logarithm.tolist() == [-np.inf, 0.0]
    for bad in (np.nan, np.inf):
        broken = np.full((2, 2), bad)
        for node in (
            factorisation.svd.outputs(*stand_ins(broken)),
            factorisation.eigh.outputs(*stand_ins(broken)),
        ):
            assert all(np.isnan(part).all() for part in _run(card, node, broken))
