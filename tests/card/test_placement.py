"""A step of host and card, with kernels of both."""

from __future__ import annotations

import numpy as np

import caldera as cd
from caldera import op
from caldera.compiler.plan.placement.placed_plan import PlacedPlan
from caldera.core.memory import Device


def test_a_table_on_the_host_beside_a_product_on_the_card(card: Device) -> None:
    draw = np.random.default_rng(0)
    rows, weights = (draw.normal(size=size).astype("float32") for size in ((40, 4), (4, 3)))
    table = op.var("table", (40, 4), fill=rows, device="cpu")
    weight = op.var("weight", (4, 3), fill=weights, device=card)
    words = np.array([3, 9, 3])
    with cd.pinned("cpu"):
        taken = op.embedding(table, op.input("words", (3,), "int64"))
    loss = op.sum(op.matmul(taken, weight))
    with cd.pinned("cpu"):
        update = op.assign(table, table - 0.5 * op.grad(loss, table))
    plan = cd.compile([loss, update], device=card)
    assert isinstance(plan, PlacedPlan)
    assert {part.device.kernels for part in plan.parts} == {"cpu", "cuda"}
    expected = rows.copy()
    for _ in range(2):
        found = plan.run({"words": words})[0].item()
        np.testing.assert_allclose(found, (expected[words] @ weights).sum(), rtol=1e-5)
        np.subtract.at(expected, words, 0.5 * weights.sum(axis=1))
        np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)
