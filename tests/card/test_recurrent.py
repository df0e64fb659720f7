"""Recurrent layers in one launch: the same numbers as step by step on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.kernels.cuda.recurrent import persistent
from caldera.kernels.cuda.recurrent.cell import cell_of
from caldera.kernels.cuda.recurrent.persistent import geometry_of, supports
from caldera.kernels.cuda.runtime.driver import use
from tests.card.emulated import EmulatedDriver

WORST = {None: 2e-6, "tf32": 5e-3, "bfloat16": 3e-2}
"""The largest difference, beside the largest number."""


def _expressions(
    layer: Any, shape: tuple[int, int, int], lengths: bool, device: Any
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """What a layer gives, and the gradients of a sum of it."""
    draw = np.random.default_rng(sum(shape))
    x = op.input("x", shape)
    given = [x, draw.integers(0, shape[1] + 1, shape[0])] if lengths else [x]
    with nn.trace(device=device):
        layer(*given)
        for each in layer.parameters():
            numbers = draw.standard_normal(each.shape) / np.sqrt(layer.units)
            each.assign(numbers.astype(np.float32))
        y = layer(*given)
    loss = op.sum(y * draw.standard_normal(y.shape, np.float32))
    gradients = op.grad(loss, [x, *layer.parameters()])
    return [y, *gradients], {"x": draw.standard_normal(shape, np.float32)}


def _loops(plan: Plan) -> list[tuple[Node, str]]:
    steps = [step for step in plan.schedule.steps if step.kernel.op == "scan"]
    return [(step.node, step.kernel.name) for step in steps]


@pytest.mark.parametrize(
    ("kind", "units", "shape", "lengths", "precision", "options"),
    [
        (nn.LSTM, 19, (5, 5, 3), False, "tf32", {"return_sequences": True, "bidirectional": True}),
        (nn.GRU, 35, (9, 4, 3), True, "bfloat16", {}),
        # More rows than a launch has on a card of four multiprocessors.
        (nn.RNN, 50, (70, 2, 2), False, None, {"go_backwards": True, "return_sequences": True}),
    ],
)
def test_layers_and_their_gradients_equal_the_cpu(
    card: Device,
    kind: Any,
    units: int,
    shape: tuple[int, int, int],
    lengths: bool,
    precision: str | None,
    options: dict[str, bool],
) -> None:
    outputs, feeds = _expressions(kind(units, **options), shape, lengths, "cpu")
    expected = cd.compile(outputs, device="cpu").run(feeds)
    outputs, feeds = _expressions(kind(units, **options), shape, lengths, card)
    plan = cd.compile(outputs, device=card, precision=precision)
    assert {name.partition(",")[0] for _, name in _loops(plan)} == {"persistent"}
    for _ in range(2):
        # Nothing is measured.
        with cd.settings.override(deterministic=True):
            results = plan.run(feeds)
        for found, right in zip(results, expected, strict=True):
            there, here = found.numpy(), right.numpy()
            assert np.abs(there - here).max() <= WORST[precision] * np.abs(here).max()


def test_a_plan_keeps_of_a_step_what_its_derivative_needs(card: Device) -> None:
    """The gates before their functions, and states: nothing twice, and not the layer's input."""
    outputs, _ = _expressions(nn.LSTM(6, return_sequences=True), (4, 3, 2), False, card)
    (forward, _), (backward, _) = _loops(cd.compile(outputs, device=card))
    gates, state = (3, 4, 24), (3, 4, 6)
    assert sorted(spec.shape for spec in forward.outputs[2:]) == [state, state, state, gates]
    assert sorted(given.shape for given in backward.inputs[2:-1]) == [state, state, gates]
    assert [spec.shape for spec in backward.outputs[2:]] == [gates]
    outputs, _ = _expressions(nn.GRU(6), (4, 3, 2), False, card)
    _, (backward, _) = _loops(cd.compile(outputs, device=card))
    # Not the sum for the bias either.
    assert backward.attrs["carries"] == 1


def _one_loop(card: Device, body: Any, carry: np.ndarray, steps: np.ndarray) -> tuple[Node, str]:
    last, outputs = op.scan(body, carry, steps)
    (loop,) = _loops(cd.compile([last, outputs], device=card))
    return loop


def test_what_is_no_cell_stays_a_loop(card: Device) -> None:
    carry, steps = np.ones((3, 4), np.float32), np.ones((2, 3, 4), np.float32)
    weights = np.eye(4, dtype=np.float32)

    def name(body: Any, dtype: str = "float32") -> str:
        return _one_loop(card, body, carry.astype(dtype), steps.astype(dtype))[1]

    def cell(h: Any, x: Any) -> Any:
        new = op.tanh(x + h @ weights)
        return new, new * x

    assert name(cell) == "persistent"
    assert name(lambda h, x: (op.tanh(h @ weights.astype("float64")), x), "float64") == "loop"
    assert name(lambda h, x: (op.tanh(h @ weights @ weights + x), x)) == "loop"
    assert name(lambda h, x: (op.tanh(h + x), x)) == "loop"
    assert name(lambda h, x: (op.tanh(op.softmax(h @ weights) + x), x)) == "loop"


class _Sized(EmulatedDriver):
    """A card with so many multiprocessors."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    @property
    def multiprocessors(self) -> int:
        return self.count


@pytest.mark.skipif(card_count() > 0, reason="says how large the card is")
def test_layers_that_find_no_room_stay_loops(card: Device) -> None:
    carry, steps = np.ones((40, 64), np.float32), np.ones((2, 40, 64), np.float32)
    weights = np.eye(64, dtype=np.float32)
    node, name = _one_loop(card, lambda h, x: (op.tanh(x + h @ weights), h), carry, steps)
    cell = cell_of(node)
    assert name == "persistent"
    assert cell is not None
    # Four blocks for 64 units: one group of all rows, or as many as there are tiles of rows.
    found = geometry_of(cell)
    assert (found.groups, found.tiles, found.rows) == (1, 5, 40)
    use(_Sized(132))
    assert (geometry_of(cell).groups, geometry_of(cell).tiles) == (5, 1)
    use(_Sized(3))
    assert not supports(node)


@pytest.mark.skipif(card_count() > 0, reason="says how large the card is")
def test_weights_that_registers_do_not_hold_are_in_shared_memory(
    card: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(_Sized(9))
    monkeypatch.setattr(persistent, "MOST_WEIGHTS", 8)
    weights = np.random.default_rng(0).standard_normal((130, 130), np.float32) / 10
    x = np.random.default_rng(1).standard_normal((2, 3, 130), np.float32)
    h = op.var("h", (3, 130), fill=x[0], device=card)
    w = op.var("w", (130, 130), fill=weights, device=card)
    last, _ = op.scan(lambda h, x: (op.tanh(x + h @ w), None), h, x)
    plan = cd.compile([last, op.grad(op.sum(last), h)], device=card)
    for node, _ in _loops(plan):
        cell = cell_of(node)
        assert cell is not None
        assert geometry_of(cell).share > geometry_of(cell).kept
    one = np.tanh(x[0] + x[0] @ weights)
    two = np.tanh(x[1] + one @ weights)
    gradient = (1 - one**2) * ((1 - two**2) @ weights.T) @ weights.T
    found = plan.run()
    np.testing.assert_allclose(found[0].numpy(), two, atol=1e-5)
    np.testing.assert_allclose(found[1].numpy(), gradient, atol=1e-5)
