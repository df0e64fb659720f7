"""What products become, their dtypes, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.program import topological
from caldera.errors import CalderaError, ConfigError, DtypeError, ShapeError
from tests.unit.ops.case import numbers


def ops_of(x: Expr) -> list[str]:
    return [node.op.name for node in topological([x.node]) if node.op.kind != "leaf"]


# --- what they become


def test_transposed_operands_are_read_that_way_and_not_moved() -> None:
    a, b = op.var("a", (3, 2)), op.var("b", (4, 3))
    assert ops_of(op.matmul(a, b, transpose_a=True, transpose_b=True)) == ["matmul"]
    gradients = op.grad(op.sum(op.matmul(a, b, transpose_a=True, transpose_b=True)), [a, b])
    assert not any("transpose" in ops_of(gradient) for gradient in gradients)


@pytest.mark.parametrize(
    ("subscripts", "first", "second"),
    [
        ("ij,jk->ik", (2, 3), (3, 4)),
        ("ij,kj->ik", (2, 3), (4, 3)),
        ("ji,jk->ik", (3, 2), (3, 4)),
        ("bij,bjk->bik", (5, 2, 3), (5, 3, 4)),
        ("bhid,bhjd->bhij", (5, 2, 3, 4), (5, 2, 3, 4)),
    ],
)
def test_plain_products_become_one_product(subscripts: str, first: Any, second: Any) -> None:
    assert ops_of(op.einsum(subscripts, op.var("a", first), op.var("b", second))) == ["matmul"]


def test_a_batch_before_a_matrix_is_one_large_product() -> None:
    result = op.einsum("...ij,jk->...ik", op.var("a", (5, 2, 3)), op.var("b", (3, 4)))
    (product,) = [node for node in topological([result.node]) if node.op.name == "matmul"]
    assert product.shape == (10, 4)


def test_a_chain_starts_where_it_is_cheapest() -> None:
    shapes = [(50, 2), (2, 50), (50, 1)]
    operands = [op.var(name, shape) for name, shape in zip("abc", shapes, strict=True)]
    result = op.einsum("ij,jk,kl->il", *operands)
    products = [node for node in topological([result.node]) if node.op.name == "matmul"]
    # The large intermediate of (50, 50) never exists.
    assert max(node.spec.size for node in products) == 50


def test_a_sum_inside_one_operand_is_taken_before_the_product() -> None:
    result = op.einsum("ijk,kl->il", op.var("a", (2, 3, 4)), op.var("b", (4, 5)))
    assert ops_of(result).index("sum") < ops_of(result).index("matmul")


# --- dtypes


def test_operands_of_a_product_meet_in_the_dtype_they_share() -> None:
    half, single = cd.Tensor((2, 2), dtype="float16"), cd.Tensor((2, 2))
    assert (half @ single).dtype.name == "float32"
    assert (half @ half).dtype.name == "float16"
    assert (half @ np.ones((2, 2), "int64")).dtype.name == "float16"
    assert op.einsum("ij,jk->ik", half, single).dtype.name == "float32"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_multiplied_with_float32_sums(dtype: str) -> None:
    ones = cd.Tensor((1, 4096), fill=cd.one(), dtype=dtype)
    assert op.matmul(ones, ones, transpose_b=True).item() == 4096.0


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64"])
def test_products_of_integers_wrap_as_in_numpy(dtype: str) -> None:
    limits = np.iinfo(dtype)
    draw = np.random.default_rng(0).integers
    x, y, v = (
        draw(limits.min, limits.max, shape, dtype, endpoint=True) for shape in ((4, 3), (3, 5), 3)
    )
    stack = draw(limits.min, limits.max, (2, 1, 3, 4), dtype, endpoint=True)
    pairs = [
        (op.matmul(x, y), x @ y),
        (op.transpose(x) @ op.input("other", (4, 2), dtype), x.T @ x[:, :2]),
        (op.matmul(y, x, transpose_a=True, transpose_b=True), y.T @ x.T),
        (cd.tensor(stack) @ cd.tensor(x), stack @ x),
        (op.dot(v, v), np.dot(v, v)),
        (op.tensordot(x, y, 1), np.tensordot(x, y, 1)),
        (op.einsum("ij,jk->ki", x, y), (x @ y).T),
        (op.matmul(x[:, :0], y[:0]), np.zeros((4, 5), dtype)),
    ]
    results = cd.compile([ours for ours, _ in pairs]).run({"other": x[:, :2].copy()})
    for ours, (_, right) in zip(results, pairs, strict=True):
        assert ours.dtype == right.dtype
        assert np.array_equal(ours.numpy(), right)


def test_products_of_integers_need_no_memory_for_their_terms() -> None:
    x = op.input("x", (64, 64), "int32")
    plan = cd.compile(op.matmul(op.matmul(x, x, transpose_b=True), x))
    assert plan.arena_bytes <= 2 * x.node.spec.nbytes
    with pytest.raises(
        DtypeError, match=r"op\.matmul: expected operands of the same numeric dtype"
    ):
        op.matmul(op.cast(x, "bool"), op.cast(x, "bool"))


def test_infinities_in_a_product_are_kept() -> None:
    x = np.array([[np.inf, 0.0]])
    assert np.isnan((cd.tensor(x) @ cd.tensor([[0.0], [0.0]])).item())


# --- refusals

A, B, V = op.var("A", (2, 3)), op.var("B", (4, 5)), op.var("V", (4,))
_REFUSED: tuple[tuple[Callable[[], Any], type[CalderaError], str], ...] = (
    (lambda: A @ B, ShapeError, r"op\.matmul: expected equal inner sizes, not 3 and 4.*A.*B"),
    (lambda: A @ V, ShapeError, r"op\.matmul: expected equal inner sizes, not 3 and 4.*V"),
    (lambda: A @ 2.0, ShapeError, r"op\.matmul: expected matrices"),
    (lambda: op.var("C", (2, 2, 3)) @ op.var("D", (3, 3, 2)), ShapeError, r"op\.matmul.*broadcast"),
    (lambda: op.dot(A, op.var("T", (3, 2, 2))), ShapeError, r"op\.dot of A.*vectors or matrices"),
    (lambda: op.outer(A, V), ShapeError, r"op\.outer of A.*two vectors"),
    (lambda: op.einsum("ij,jk->ik", A), ConfigError, r"op\.einsum of A.*2 operands.*got 1"),
    (lambda: op.einsum("ij", A, B), ConfigError, r"op\.einsum of A.*1 operands.*got 2"),
    (lambda: op.einsum("ijk->k", A), ShapeError, r"op\.einsum of A.*2 axes.*got 'ijk'"),
    (
        lambda: op.einsum("ij,jk->ik", A, B),
        ShapeError,
        r"op\.einsum.*one size for 'j', got 3 and 4",
    ),
    (lambda: op.einsum("ii->i", A), ShapeError, r"op\.einsum of A.*one size for 'i', got 2 and 3"),
    (lambda: op.einsum("ij->ii", A), ConfigError, r"op\.einsum.*different letters"),
    (lambda: op.einsum("ij->k", A), ConfigError, r"op\.einsum.*from the operands"),
    (lambda: op.einsum("i1->i", A), ConfigError, r"op\.einsum.*expected letters"),
    (lambda: op.einsum(""), ConfigError, r"op\.einsum: expected 1 operands"),
)


@pytest.mark.parametrize(("write", "error", "message"), _REFUSED)
def test_mistakes_name_the_op_the_variable_and_what_was_expected(
    write: Callable[[], Any], error: type[CalderaError], message: str
) -> None:
    with pytest.raises(error, match=message):
        write()


def test_sizes_of_one_broadcast_in_an_einstein_sum() -> None:
    a, b = numbers(1, 3), numbers(2, 3)
    np.testing.assert_allclose(
        op.einsum("ij,ij->i", a, b).numpy(), np.einsum("ij,ij->i", a, b), rtol=1e-12
    )


def test_what_dots_stand_for_is_summed_if_the_result_has_none() -> None:
    a, b = numbers(4, 2, 3), numbers(4, 5)
    found = op.einsum("...ik,...j->ij", a, b)
    np.testing.assert_allclose(found.numpy(), np.einsum("xik,xj->ij", a, b), rtol=1e-12)


@pytest.mark.parametrize(
    ("a", "b"), [((0, 5, 5), (0, 5, 3)), ((2, 0, 5), (2, 5, 3)), ((4, 5), (5, 0))]
)
def test_products_of_nothing(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = op.var("a", a), op.var("b", b)
    found = op.matmul(x, y)
    assert found.numpy().shape == (*a[:-1], b[-1])
    assert op.grad(op.sum(found), x).numpy().shape == a
