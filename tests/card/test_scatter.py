"""Adding at computed positions on a card: every way to do it, the same bits every time."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.ops.indexing import put_along_axis_add, scatter_add
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.table import TABLE
from tests.card.candidates import check, nodes_of_cases, run_kernel, same_bits, stand_ins
from tests.unit.kernels.checking import DTYPES, LAYOUTS

BOTH = {"scanning", "sorting"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases_of_every_op(card: Device, dtype: str) -> None:
    found = set()
    for node, inputs in nodes_of_cases({"scatter_add", "put_along_axis_add"}, dtype):
        layouts = LAYOUTS if dtype == "float32" else ("dense",)
        listing = {"listing"} if node.op.name == "scatter_add" else set()
        assert check(card, node, inputs, layouts=layouts) == BOTH | listing
        found.add(node.op.name)
    assert found == {"scatter_add", "put_along_axis_add"}


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64"])
@pytest.mark.parametrize("rows", [1, 3, 400])
def test_rows_of_an_embedding(card: Device, rows: int, dtype: str) -> None:
    generator = np.random.default_rng(rows)
    kind = BY_NAME[dtype]
    x = generator.integers(-9, 9, (rows, 24)).astype(kind)
    # More than a tile of updates, and rows that reach over many chunks.
    positions = generator.integers(-rows, rows, (3, 900))
    updates = generator.integers(-9, 9, (3, 900, 24)).astype(kind)
    node = scatter_add(*stand_ins(x, positions, updates), axis=0)
    names = ["sorting", "listing"] if rows < 400 else ["sorting"]
    assert check(card, node, (x, positions, updates), names, layouts=["dense", "backwards"])


def test_few_updates_are_added_in_the_order_of_the_cpu(card: Device) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(5, 8)).astype("float32")
    positions = generator.integers(0, 5, 30).astype("int32")
    updates = generator.normal(size=(30, 8)).astype("float32")
    node = scatter_add(*stand_ins(x, positions, updates), axis=0)
    assert check(card, node, (x, positions, updates), ["scanning"], by=same_bits)


def test_a_permutation_back(card: Device) -> None:
    generator = np.random.default_rng(2)
    x = np.zeros((7, 90), "float32")
    positions = generator.permuted(np.tile(np.arange(90), (7, 1)), axis=1)
    updates = generator.normal(size=(7, 90)).astype("float32")
    for axis in (0, 1):
        arrays = (x, positions, updates) if axis else (x.T, positions.T, updates.T)
        node = put_along_axis_add(*stand_ins(*arrays), axis=axis)
        once = ["dense", "with gaps", "columns first", "backwards"]
        assert check(card, node, arrays, by=same_bits, layouts=once) == BOTH


def test_two_runs_give_the_same_bits(card: Device) -> None:
    generator = np.random.default_rng(4)
    x = generator.normal(size=(4, 16)).astype("float32")
    positions = generator.integers(0, 4, 3000)
    updates = generator.normal(size=(3000, 16)).astype("float32")
    node = scatter_add(*stand_ins(x, positions, updates), axis=0)
    for kernel in TABLE.candidates(node, "cuda"):
        first, second = (run_kernel(card, kernel, node, (x, positions, updates)) for _ in range(2))
        same_bits(first[0], second[0])


@pytest.mark.parametrize("bad", [4, -5])
def test_a_position_that_is_not_there_shows(card: Device, bad: int) -> None:
    x = np.zeros((4, 3), "float32")
    positions, updates = np.array([1, bad]), np.ones((2, 3), "float32")
    node = scatter_add(*stand_ins(x, positions, updates), axis=0)
    for kernel in TABLE.candidates(node, "cuda"):
        (result,) = run_kernel(card, kernel, node, (x, positions, updates))
        assert np.isnan(result[1]).all()


def test_the_better_way_is_tried_first() -> None:
    def best(rows: int, columns: int, updates: int) -> str:
        shapes = (rows, columns), (updates,), (updates, columns)
        kinds = "float32", "int64", "float32"
        arrays = [np.broadcast_to(np.zeros((), k), s) for s, k in zip(shapes, kinds, strict=True)]
        node = scatter_add(*stand_ins(*arrays), axis=0)
        return TABLE.candidates(node, "cuda")[0].name

    assert best(32_000, 512, 32_768) == "sorting"
    assert best(10, 8, 16) == "scanning"
    assert best(128, 256, 2048) == best(64, 256, 8192) == "listing"


def test_a_plan_chooses_without_trying_positions_out(card: Device) -> None:
    # Large enough to be measured; made-up positions would be none that the rows have.
    w = op.var("w", (40, 64), fill=cd.constant(0.0), device=card)
    updates = np.ones((300, 64), "float32")
    total = op.scatter_add(w, np.arange(300) % 40, updates, axis=0)
    (result,) = cd.compile([total], device=card).run()
    assert result.numpy()[:, 5].tolist() == [8.0] * 20 + [7.0] * 20
