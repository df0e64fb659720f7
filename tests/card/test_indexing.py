"""Reading at computed positions on a card."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import forget_plans
from caldera.compiler.passes import residual_norm
from caldera.core.graph.node import Node
from caldera.core.graph.ops.epilogue import gather_rounded
from caldera.core.graph.ops.indexing import gather, take_along_axis
from caldera.core.memory import Device
from caldera.core.tensor.dtype import ALL, BY_NAME, INTEGERS
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.candidates import check, nodes_of_cases, run_kernel, same_bits, stand_ins
from tests.unit.kernels.checking import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    found = set()
    for node, inputs in nodes_of_cases({"gather", "gather_rounded", "take_along_axis"}, dtype):
        assert check(card, node, inputs, by=same_bits)
        found.add(node.op.name)
    assert found == {"gather", "gather_rounded", "take_along_axis"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_are_rounded_on_the_way(card: Device, dtype: str) -> None:
    generator = np.random.default_rng(1)
    positions = np.array([[2, -7], [5, 0]])
    for width in (1, 6, 12):
        x = generator.normal(size=(6, width)).astype("float32")
        given = stand_ins(x, positions)
        (right,) = evaluate(gather(*given, axis=0), (x, positions.clip(-6)))
        right[0, 1] = np.nan  # There is no such row.
        (kernel,) = (
            each
            for each in TABLE.candidates(rounded_node(*given, dtype), "cuda")
            if each.name == "lines"
        )
        (result,) = run_kernel(card, kernel, rounded_node(*given, dtype), (x, positions))
        expected = right.astype(BY_NAME[dtype]).astype("float32")
        np.testing.assert_array_equal(result.astype("float32"), expected)


def test_a_batch_in_mixed_precision_is_rounded_while_it_is_gathered(
    card: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = np.random.default_rng(2).normal(size=(9, 12)).astype("float32")
    rows = np.array([4, 0, 8, 4])

    def product(large: int) -> tuple[np.ndarray, list[str]]:
        monkeypatch.setattr(residual_norm, "LARGE", large)
        forget_plans()
        x = op.var("x", samples.shape, fill=samples, device=card)
        w = op.var("w", (12, 5), fill=samples[:5].T.copy(), device=card)
        plan = cd.compile(op.gather(x, rows) @ w, device=card, precision="bfloat16")
        (result,) = plan.run()
        return result.numpy(), [row.op for row in plan.explain(time=False).rows]

    (plain, before), (found, after) = product(1 << 20), product(0)
    assert found.tobytes() == plain.tobytes()
    assert "gather" in before
    assert "gather_rounded" in after
    assert after.count("cast") == before.count("cast") - 1


def rounded_node(x: Node, positions: Node, dtype: str) -> Node:
    return gather_rounded.node(x, positions, axis=0, dtype=BY_NAME[dtype])


@pytest.mark.parametrize("dtype", [dtype.name for dtype in ALL])
def test_rows_of_any_width_and_dtype(card: Device, dtype: str) -> None:
    generator = np.random.default_rng(0)
    positions = generator.integers(-6, 6, (2, 5)).astype("int8")
    # From one element to several vectors of 16 bytes, and widths that no vector divides.
    for width in (1, 2, 3, 4, 8, 16, 32, 33):
        x = generator.integers(0, 2, (3, 6, width)).astype(BY_NAME[dtype])
        node = gather(*stand_ins(x, positions), axis=1)
        assert check(card, node, (x, positions), by=same_bits)


@pytest.mark.parametrize("integer", sorted(dtype.name for dtype in INTEGERS))
def test_positions_of_any_dtype(card: Device, integer: str) -> None:
    x = np.arange(200.0 * 2).reshape(200, 2).astype("float32")
    positions = np.array([[0, 199], [7, 128]]).astype(integer if integer != "int8" else "int16")
    assert check(card, gather(*stand_ins(x, positions), axis=0), (x, positions), by=same_bits)
    assert check(
        card, take_along_axis(*stand_ins(x, positions), axis=0), (x, positions), by=same_bits
    )


@pytest.mark.parametrize(
    ("dtype", "expected"), [("float32", np.nan), ("bfloat16", np.nan), ("int32", -1), ("bool", 0)]
)
@pytest.mark.parametrize("bad", [3, -4])
def test_a_position_that_is_not_there_shows(
    card: Device,
    bad: int,
    dtype: str,
    expected: float,
) -> None:
    x = np.ones((3, 4), BY_NAME[dtype])
    positions = np.array([1, bad])
    node = gather(*stand_ins(x, positions), axis=0)
    (kernel,) = TABLE.candidates(node, "cuda")
    (result,) = run_kernel(card, kernel, node, (x, positions))
    np.testing.assert_array_equal(result.astype(float), [[1.0] * 4, [expected] * 4])


def test_an_embedding_learns_in_a_plan(card: Device) -> None:
    table = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
    w = op.var("w", (6, 4), fill=table, device=card)
    words = op.input("words", (3,), dtype="int64")
    loss = op.sum(op.gather(w, words) * op.gather(w, words))
    plan = cd.compile([loss, op.assign(w, w - op.grad(loss, w) * 0.5)], device=card)
    rows = np.array([1, -1, 1])
    assert plan.run({"words": rows})[0].item() == pytest.approx((table[rows] ** 2).sum())
    expected = table.copy()
    expected[1] -= 2 * table[1]
    expected[5] -= table[5]
    np.testing.assert_allclose(w.numpy(), expected, atol=1e-6)


def test_the_gradient_of_sorting_in_a_captured_plan(card: Device) -> None:
    values = np.array([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], "float32")
    x = op.var("x", (2, 3), fill=values, device=card)
    largest, where = op.top_k(x, 2)
    slope = op.grad(op.sum(largest * largest), x)
    plan = cd.compile([largest, where, slope], device=card)
    plan.capture()
    for _ in range(2):
        top, places, steep = plan.run()
        assert top.tolist() == [[3.0, 2.0], [5.0, 4.0]]
        assert places.tolist() == [[0, 2], [1, 2]]
        assert steep.tolist() == [[6.0, 0.0, 4.0], [0.0, 10.0, 8.0]]
