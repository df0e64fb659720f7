"""Rows of an embedding are changed where they lie, and no table of zeros is made."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim


@pytest.mark.parametrize("refused", [None, True, False])
@pytest.mark.parametrize("device", ["cpu", "loopback"])
def test_only_the_rows_that_are_named_are_changed(device: str, refused: bool | None) -> None:
    values = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    values[0] = -0.0
    words = np.array([3, 7, 3, 49])
    ways = {}
    for without in ((), ("update_rows",)):
        table = op.var("table", (50, 4), fill=values, device=device)
        loss = op.sum(op.square(op.embedding(table, op.input("words", (4,), "int64"))))
        ok = (
            None
            if refused is None
            else op.var("ok", (), np.array(not refused), "bool", device=device)
        )
        step = optim.SGD(0.1)
        updates = step.apply([table], op.grad(loss, [table]), ok=ok)
        plan = cd.compile([loss, *updates], without=without)
        for _ in range(2):
            plan.run({"words": words})
        ways[without] = (table.numpy(), plan)
    rows, plan = ways[()]
    np.testing.assert_allclose(rows, ways["update_rows",][0], rtol=1e-6)
    untouched = np.setdiff1d(np.arange(50), [3, 7, 49])
    assert rows[untouched].tobytes() == values[untouched].tobytes()
    assert (rows[7] != values[7]).all() == (refused is not True)
    # Neither a gradient nor a second table.
    assert plan.arena_bytes < values.nbytes
    assert ways["update_rows",][1].arena_bytes >= values.nbytes


def test_what_changes_every_row_is_left_as_it_is() -> None:
    for options in ({"weight_decay": 0.1}, {"momentum": 0.9}):
        table = nn.Embedding(30, 4)
        loss = op.sum(table(op.input("words", (3,), "int64")))
        plan = cd.compile(optim.SGD(0.1, **options).train(loss, table.parameters()))  # type: ignore[arg-type]
        before = table.weight.numpy()
        plan.run({"words": np.arange(3)})
        assert plan.arena_bytes >= before.nbytes
