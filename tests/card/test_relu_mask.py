"""Relus that keep their mask in bits, on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.passes import relu as relu_mask_pass
from caldera.core.graph.ops.epilogue import relu_mask, relu_mask_grad
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from tests.card.candidates import check, check_cases
from tests.card.variants import check_in_place, node_of, numbers
from tests.unit.kernels.checking import DTYPES
from tests.unit.ops.cases.relu_mask import packed

LAYOUTS = ("dense", "columns first", "backwards", "with gaps")
SHAPES = [(5, 256), (3, 19), (1, 8), (300, 264), (70, 1000), (4, 1)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cases(card: Device, dtype: str) -> None:
    assert check_cases(card, {"relu_mask", "relu_mask_grad"}, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_matrices_of_many_sizes(card: Device, shape: tuple[int, int], dtype: str) -> None:
    x, g = (numbers(*shape, dtype=BY_NAME[dtype], seed=seed) for seed in (0, 1))
    special = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf], x.dtype)
    x.ravel()[::7] = np.resize(special, -(-x.size // 7))
    layouts = LAYOUTS if shape in SHAPES[:2] else LAYOUTS[:1]
    check(card, node_of(relu_mask, (x,)), (x,), layouts=layouts)
    mask = packed(x.astype("float64") > 0)
    for summed in (False, True):
        node = node_of(relu_mask_grad, (g, mask), summed=summed)
        check(card, node, (g, mask), layouts=layouts)


def test_nothing(card: Device) -> None:
    for shape in ((0, 5), (5, 0)):
        x = numbers(*shape)
        check(card, node_of(relu_mask, (x,)), (x,))
        given = (x, packed(x > 0))
        check(card, node_of(relu_mask_grad, given, summed=True), given)


def test_results_may_be_written_over_inputs(card: Device) -> None:
    x = numbers(6, 24)
    given = (x, packed(x > 0))
    assert check_in_place(card, node_of(relu_mask, (x,)), (x,)) == 1
    assert check_in_place(card, node_of(relu_mask_grad, given, summed=True), given) == 1


def test_a_network_trains_as_on_the_host(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relu_mask_pass, "LARGE", 0)
    arrays = {
        "x": numbers(20, 9),
        "w": numbers(9, 30, seed=1),
        "b": numbers(30, seed=2),
        "v": numbers(30, 12, seed=3),
        "c": numbers(12, seed=4),
        "u": numbers(12, 3, seed=5),
    }

    def gradients(device: Any) -> tuple[list[np.ndarray], list[str]]:
        given = [
            op.var(name, array.shape, fill=array, device=device) for name, array in arrays.items()
        ]
        x, w, b, v, c, u = given
        hidden = op.relu(op.relu(x @ w + b) @ v + c)
        loss = op.sum(op.square(hidden @ u))
        plan = cd.compile([loss, *op.grad(loss, given)], device=device)
        kernels = [row.op for row in plan.explain(time=False).rows]
        return [each.numpy() for each in plan.run()], kernels

    (found, ops), (right, _) = gradients(card), gradients("cpu")
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert ops.count("relu_mask") == ops.count("relu_mask_grad") == 2
