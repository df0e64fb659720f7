"""Embeddings: rows read and added at positions."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.indexing import scatter_add
from caldera.core.tensor.dtype import INTEGERS
from caldera.errors import DataError
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call


@pytest.mark.parametrize("dtype", sorted(dtype.name for dtype in INTEGERS))
def test_positions_of_any_integer_dtype(dtype: str) -> None:
    table = np.random.default_rng(0).standard_normal((100, 7)).astype(np.float32)
    positions = np.array([[0, 99, 3], [3, 50, 98]], dtype)
    np.testing.assert_array_equal(op.gather(table, positions).numpy(), table[positions])


def test_updates_of_one_row_are_added_in_their_order_whatever_the_threads() -> None:
    generator = np.random.default_rng(1)
    positions = generator.integers(0, 5, 4000)
    updates = generator.standard_normal((4000, 33)).astype(np.float32)
    base = generator.standard_normal((5, 33)).astype(np.float32)
    expected = base.copy()
    np.add.at(expected, positions, updates)
    for threads in (1, 2, 3):
        with cd.settings.override(threads=threads):
            plan = cd.compile([op.scatter_add(base, positions, updates, axis=0)])
            (result,) = plan.run()
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize(("axis", "turned"), [(0, (1, 0, 2)), (1, (2, 0, 1, 3)), (1, (3, 2, 1, 0))])
def test_updates_may_lie_in_any_order(axis: int, turned: tuple[int, ...]) -> None:
    """As the gradients of a sequence do that is computed step by step."""
    generator = np.random.default_rng(2)
    x = generator.standard_normal([(9, 7), (5, 9, 7)][axis]).astype(np.float32)
    indices = generator.integers(0, 5, (4, 6))
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    memory = generator.standard_normal([shape[each] for each in turned]).astype(np.float32)
    updates = memory.transpose(np.argsort(turned))
    arrays = (x, indices, updates)
    given = [parameter(i, Spec(each.shape, each.dtype)) for i, each in enumerate(arrays)]
    node = scatter_add(*given, axis=axis)
    kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "native")
    out = np.empty_like(x)
    kernel.bind(Call(node, (out,), arrays))()
    np.testing.assert_allclose(out, evaluate(node, arrays)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("position", [5, -6, 1000])
def test_a_position_outside_is_an_error_and_nothing_is_updated(position: int) -> None:
    table = op.var("table", (5, 3), fill=cd.constant(1.0))
    positions = op.input("positions", (2,), dtype="int64")
    total = op.var("total", (), fill=cd.constant(0.0))
    rows = op.gather(table, positions)
    plan = cd.compile([op.sum(rows), op.assign(total, total + op.sum(rows))])
    with pytest.raises(DataError, match=f"indices from -5 to 4, got {position} into an axis"):
        plan.run({"positions": np.array([0, position])})
    assert total.numpy() == 0.0
    plan.run({"positions": np.array([0, -5])})
    assert total.numpy() == 6.0
