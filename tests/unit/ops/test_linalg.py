"""Conventions and refusals of linear algebra."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import lift
from caldera.core.graph.ops import linalg
from caldera.errors import DataError, DtypeError, ShapeError
from tests.unit.ops.case import numbers

SINGULAR = np.array([[1.0, 2.0], [2.0, 4.0]])


# --- what the factors are


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (5, 3, 2)])
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...]) -> None:
    a = numbers(*shape)
    q, r = op.qr(a)
    u, s, vt = op.svd(a)
    np.testing.assert_allclose((q @ r).numpy(), a, atol=1e-14)
    np.testing.assert_allclose((u @ op.diagonal_matrix(s) @ vt).numpy(), a, atol=1e-14)
    triangle = r.numpy()
    assert np.array_equal(triangle, np.triu(triangle))
    assert (np.diagonal(triangle, axis1=-2, axis2=-1) >= 0).all()
    assert (np.diff(s.numpy(), axis=-1) <= 0).all()


def test_eigenvectors_are_columns_and_values_ascend() -> None:
    a = numbers(2, 3, 3)
    a = a + a.swapaxes(-1, -2)
    w, v = op.eigh(a)
    np.testing.assert_allclose(a @ v.numpy(), v.numpy() * w.numpy()[:, None, :], atol=1e-14)
    assert (np.diff(w.numpy(), axis=-1) >= 0).all()


def test_equal_components_of_a_vector_do_not_leave_its_sign_to_rounding() -> None:
    # The eigenvectors are (1, -1) and (1, 1): of two equal magnitudes the first is positive.
    for noise in (0.0, 1e-9, -1e-9):
        _, v = op.eigh(np.array([[2.0 + noise, 1.0], [1.0, 2.0 - noise]]))
        np.testing.assert_allclose(v.numpy(), [[0.5**0.5] * 2, [-(0.5**0.5), 0.5**0.5]], atol=1e-8)


def test_only_the_symmetric_part_counts() -> None:
    lower, upper = np.array([[4.0, 0.0], [2.0, 9.0]]), np.array([[4.0, 2.0], [0.0, 9.0]])
    for function in (op.cholesky, lambda x: op.eigh(x)[1]):
        np.testing.assert_array_equal(function(lower).numpy(), function(upper).numpy())


def test_a_vector_on_the_right_side_gives_a_vector() -> None:
    a = np.eye(3) * 2.0
    assert op.solve(a, np.ones(3)).shape == (3,)
    assert op.solve(a, np.ones((3, 3))).shape == (3, 3)
    assert op.solve(np.stack([a, a]), np.ones(3)).shape == (2, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_dtype_is_kept(dtype: str) -> None:
    a = op.var("a", (2, 2), fill=np.array([[4.0, 0.0], [0.0, 1.0]]), dtype=dtype)
    several = [op.inverse(a), op.solve(a, a), op.cholesky(a), op.determinant(a), op.trace(a)]
    for result in (*several, *op.qr(a), *op.svd(a), *op.eigh(a), *op.slogdet(a)):
        assert result.dtype.name == dtype
        assert np.isfinite(result.numpy().astype(float)).all()
    assert op.inverse(a).numpy().astype(float).tolist() == [[0.25, 0.0], [0.0, 1.0]]


def test_integers_are_computed_in_float32() -> None:
    assert op.inverse(np.array([[2, 0], [0, 4]])).dtype == np.float32
    assert op.trace(np.array([[2, 0], [0, 4]])).dtype == np.int64


def test_triangles_keep_what_is_not_finite_out() -> None:
    x = np.array([[1.0, np.inf], [np.nan, 2.0]])
    assert op.tril(np.array([[1.0, np.inf], [3.0, 2.0]])).tolist() == [[1.0, 0.0], [3.0, 2.0]]
    assert op.triu(np.array([[1.0, 3.0], [np.nan, 2.0]])).tolist() == [[1.0, 3.0], [0.0, 2.0]]
    assert op.diagonal(x).tolist() == [1.0, 2.0]


# --- matrices that cannot be done


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: op.inverse(SINGULAR), r"op\.inverse: expected invertible matrices.*Singular"),
        (lambda: op.solve(SINGULAR, [1.0, 1.0]), r"op\.solve: expected invertible matrices"),
        (lambda: op.cholesky(-SINGULAR), r"op\.cholesky: expected symmetric positive definite"),
        (lambda: op.svd(np.full((2, 2), np.nan))[1], r"op\.svd: expected finite matrices"),
    ],
)
def test_the_error_names_the_op_when_it_runs(write, message) -> None:  # type: ignore[no-untyped-def]
    expression = write()
    with pytest.raises(DataError, match=message):
        expression.eval()


def test_a_singular_matrix_has_a_determinant_but_no_derivative_of_it() -> None:
    a = op.var("a", (2, 2), fill=SINGULAR, dtype="float64")
    determinant = op.determinant(a)
    sign, logarithm = op.slogdet(a)
    assert determinant.item() == 0
    assert sign.item() == 0
    assert logarithm.item() == -np.inf
    with pytest.raises(DataError, match="invertible"):
        op.grad(determinant, a).eval()


def test_a_large_determinant_overflows_but_not_its_logarithm() -> None:
    a = np.eye(50) * 1e10
    assert op.slogdet(a)[1].item() == pytest.approx(500 * np.log(10))
    with np.errstate(over="ignore"):
        assert op.determinant(a).item() == np.inf


def test_equal_values_leave_the_derivative_of_the_values_finite() -> None:
    a = op.var("a", (3, 3), fill=np.eye(3), dtype="float64")
    for values in (op.svd(a)[1], op.eigh(a)[0]):
        np.testing.assert_allclose(op.grad(op.sum(values), a).numpy(), np.eye(3), atol=1e-14)


# --- bad use


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda w: op.inverse(w), r"op\.inverse: expected square matrices.*got W \(2, 3\) float32"),
        (lambda w: op.determinant(w), r"op\.determinant: expected square matrices"),
        (lambda w: op.slogdet(w), r"op\.slogdet: expected square matrices"),
        (lambda w: op.cholesky(w), r"op\.cholesky: expected square matrices"),
        (lambda w: op.eigh(w), r"op\.eigh: expected square matrices"),
        (lambda w: op.qr(w[0]), r"op\.qr: expected a matrix"),
        (lambda w: op.svd(w[0]), r"op\.svd: expected a matrix"),
        (lambda w: op.solve(w[:, :2], w[0]), r"op\.solve: expected a right side with 2 rows"),
        (lambda w: op.solve(w, w), r"op\.solve: expected square matrices"),
        (lambda w: op.tril(w[0]), r"op\.tril: expected a matrix"),
        (lambda w: op.triu(w[0]), r"op\.triu: expected a matrix"),
        (lambda w: op.triu(w, 0.5), r"op\.triu: expected an integer as offset, got 0\.5"),
        (lambda w: op.trace(w[0]), r"op\.trace: expected a matrix"),
        (lambda w: op.diagonal(w[0]), r"op\.diagonal: expected a matrix"),
        (lambda w: op.diagonal_matrix(w[0, 0]), r"op\.diagonal_matrix: expected a vector"),
    ],
)
def test_bad_use_fails_when_written(write, message) -> None:  # type: ignore[no-untyped-def]
    w = op.var("W", (2, 3), fill=cd.constant(1.0))
    with pytest.raises(ShapeError, match=message):
        write(w)


def test_batches_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"op\.solve: expected shapes that broadcast together"):
        op.solve(np.zeros((2, 2, 2)), np.zeros((3, 2, 1)))


def test_graph_ops_refuse_integers() -> None:
    with pytest.raises(DtypeError, match="floating-point"):
        linalg.inverse(lift(np.eye(2, dtype=np.int64)))


def test_the_cost_grows_with_batch_and_size() -> None:
    def cost(expression: cd.Expr) -> int:
        node = expression.node
        maker = node.inputs[0] if node.op.name == "item" else node
        return maker.op.count_flops(maker)

    batch = np.stack([np.eye(3)] * 5)
    assert cost(op.inverse(batch)) == 5 * 2 * 27
    assert cost(op.cholesky(batch)) == 5 * 27 // 3
    assert cost(op.determinant(batch)) >= 5 * 2 * 27 // 3
    assert cost(op.solve(batch, np.ones((3, 2)))) == 5 * (2 * 27 // 3 + 2 * 9 * 2)
    tall = np.ones((4, 2))
    assert cost(op.qr(tall)[0]) == cost(op.qr(tall.T)[0]) == 4 * 4 * 4 - 4 * 8 // 3
    assert cost(op.svd(tall)[0]) > cost(op.qr(tall)[0])
    assert cost(op.eigh(batch)[0]) == 5 * 9 * 27
