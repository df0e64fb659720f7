"""Pieces of a step that run beside each other: whatever order they come in, results are the same in
all bits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera import nn, optim
from caldera.base.config import settings as config
from caldera.compiler.plan.order import assign_streams
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.core.memory.host import LoopbackStream
from caldera.core.memory.interface import StreamCall
from caldera.errors import NonFiniteError
from caldera.kernels.cuda.elementwise.fused import Touched, grouped, needed_before
from caldera.kernels.table import Call, StepPiece
from caldera.op.unary import exp
from caldera.train.neural_network import NeuralNetwork
from tests.card.test_horizontal_fusion import CELLS, part, run_touching

_call = st.tuples(st.lists(part, max_size=2), st.lists(part, min_size=1, max_size=2))


def any_order(calls: Sequence[StreamCall], seed: int) -> list[StreamCall]:
    """The calls in an order in which a card might run them."""
    draw = random.Random(seed)
    streams: dict[int, list[int]] = {}
    for number, each in enumerate(calls):
        streams.setdefault(each.stream, []).append(number)
    done: set[int] = set()
    found = []
    while streams:
        able = [one for one, ahead in streams.items() if done.issuperset(calls[ahead[0]].after)]
        stream = draw.choice(able)
        number = streams[stream].pop(0)
        done.add(number)
        found.append(calls[number])
        if not streams[stream]:
            del streams[stream]
    return found


@settings(max_examples=150, deadline=None)
@given(st.lists(_call, max_size=14), st.integers(1, 4), st.integers(0, 1000))
def test_any_order_of_streams_gives_what_the_calls_give(
    calls: list[Any], count: int, seed: int
) -> None:
    def after(order: Callable[[list[StreamCall]], Sequence[StreamCall]]) -> np.ndarray:
        cells = np.arange(CELLS, dtype=np.int64)
        touched: list[Touched] = [
            ([cells[a : a + n] for a, n in reads], [cells[a : a + n] for a, n in writes])
            for reads, writes in calls
        ]
        pieces = [
            StepPiece(
                lambda n=n, each=each: run_touching(cells, each, n),
                frozenset(before),
                1e-6 * (n % 4),
            )
            for n, (each, before) in enumerate(zip(touched, needed_before(touched), strict=True))
        ]
        for call in order(assign_streams(pieces, count)):
            call.call()
        return cells

    np.testing.assert_array_equal(after(lambda calls: any_order(calls, seed)), after(list))


def test_what_has_time_gets_out_of_the_way() -> None:
    """A chain of gradients of layers, each with a gradient of weights that the update waits for."""
    pieces = [StepPiece(print, frozenset(), 1e-5)]
    for _ in range(5):
        before = frozenset({len(pieces) - 1 if len(pieces) == 1 else len(pieces) - 2})
        pieces += [StepPiece(print, before, 1e-5), StepPiece(print, before, 9e-6)]
    pieces.append(StepPiece(print, frozenset(range(len(pieces))), 1e-5))
    streams = [call.stream for call in assign_streams(pieces, 2)]
    chain, weights = {streams[n] for n in range(1, 10, 2)}, {streams[n] for n in range(2, 10, 2)}
    assert len(chain) == len(weights) == 1
    assert chain != weights


def test_a_chain_stays_on_one_lane() -> None:
    pieces = [StepPiece(print, frozenset({n - 1} if n else ()), 1e-5) for n in range(6)]
    calls = assign_streams(pieces)
    assert {(call.stream, call.after) for call in calls} == {(0, ())}


def test_calls_that_share_something_wait_for_each_other() -> None:
    node = exp(np.ones(3, "float32")).node

    def call(shares: str) -> Call:
        outputs, inputs = (np.ones(3, "float32"),), (np.ones(3, "float32"),)
        return Call(node, outputs, inputs, shares=frozenset({shares}))

    calls = [call("counters"), call("others"), call("counters"), call("counters")]
    pieces = grouped([(each, lambda: None) for each in calls])
    assert [sorted(piece.after) for piece in pieces] == [[], [], [0], [2]]


# --- networks


def _residual() -> list[Any]:
    def convolution() -> list[Any]:
        return [nn.Conv2D(8, 3, padding="same"), nn.BatchNorm()]

    block = nn.Residual([*convolution(), nn.ReLU(), *convolution()], activation="relu")
    return [nn.Input((3, 8, 8)), *convolution(), nn.ReLU(), block, nn.Flatten(), nn.Dense(3)]


def _towers() -> list[Any]:
    towers = nn.Branches(
        [
            [nn.Conv2D(4, size, padding="same", activation="tanh"), nn.MaxPool2D(2)]
            for size in (1, 3, 5)
        ]
    )
    return [nn.Input((3, 8, 8)), towers, nn.Flatten(), nn.Dense(3)]


def _rows() -> list[Any]:
    return [nn.Input((3, 8, 8)), nn.Reshape((6, 32)), nn.LSTM(8), nn.Dense(3)]


def _learnt(
    layers: list[Any],
    card: Device,
    monkeypatch: pytest.MonkeyPatch,
    order: Callable[[Sequence[StreamCall]], Sequence[StreamCall]],
) -> tuple[int, list[bytes]]:
    """How many streams were used, and the weights after some steps whose calls ran in an order."""
    used: set[int] = set()

    def launch_on_streams(self: LoopbackStream, calls: Sequence[StreamCall]) -> None:
        used.update(call.stream for call in calls)
        for call in order(calls):
            self.launch(call.call)

    monkeypatch.setattr(LoopbackStream, "has_side_streams", True)
    monkeypatch.setattr(LoopbackStream, "launch_on_streams", launch_on_streams)
    monkeypatch.setattr(
        "caldera.compiler.plan.order.AutotunedGraph", lambda stream, forms: forms[1]
    )
    generator = np.random.default_rng(0)
    x = generator.normal(size=(8, 3, 8, 8)).astype("float32")
    model = NeuralNetwork(
        layers, optimizer=optim.SGD(0.05, momentum=0.9), batch_size=4, seed=1, device=card
    )
    with config.override(deterministic=True):
        model.fit((x, generator.integers(0, 3, 8)), epochs=2, verbose=0, shuffle=False)
    return len(used), [each.numpy().tobytes() for each in model.parameters()]


@pytest.mark.parametrize("network", [_residual, _towers, _rows])
def test_a_network_learns_the_same_in_any_order(
    card: Device, monkeypatch: pytest.MonkeyPatch, network: Callable[[], list[Any]]
) -> None:
    _, right = _learnt(network(), card, monkeypatch, list)
    for seed in range(3):
        used, found = _learnt(
            network(), card, monkeypatch, lambda calls, seed=seed: any_order(calls, seed)
        )
        assert found == right
    if not card_count():
        assert used > 1


@pytest.mark.skipif(card_count() > 0, reason="a real card chooses the order itself")
def test_an_order_that_was_forgotten_is_seen(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(calls: Sequence[StreamCall]) -> Sequence[StreamCall]:
        """The last stream first, as nobody waits for anybody."""
        return sorted(calls, key=lambda call: -call.stream)

    _, right = _learnt(_towers(), card, monkeypatch, list)
    try:
        _, found = _learnt(_towers(), card, monkeypatch, careless)
    except NonFiniteError:
        return
    assert found != right
