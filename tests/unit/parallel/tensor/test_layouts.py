"""Layers in layouts of their own equal one process, whichever these are."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import dmath as dm
from caldera import nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.data import Share
from caldera.errors import CommError, ConfigError
from caldera.parallel import Layouts
from caldera.parallel.consistency import messages
from caldera.train.fit import make_steps, run_setup
from caldera.train.strategy import NO_VOTES, VOTES
from tests.unit.parallel.ranks import (
    CLASSES,
    FEATURES,
    alone,
    assert_close,
    network,
    samples,
    trained,
)
from tests.unit.parallel.tensor.layout_cases import random_case


def over(layouts: Any, comm: Communicator) -> Layouts:
    return Layouts(layouts, communicator=comm)


# Grids, blocks of no order and words; convolutions, batch norm, embedding, attention.
@pytest.mark.parametrize("seed", [16, 19, 27])
def test_random_networks_in_random_layouts(seed: int) -> None:
    random_case(seed).check()


def images() -> list[nn.Layer]:
    return [
        nn.Input((2, 4, 4)),
        nn.Conv2D(4, 3, padding=1, activation="relu", name="conv"),
        nn.BatchNorm(),
        nn.Flatten(),
        nn.Dense(16, activation="relu", name="up"),
        nn.Dropout(0.3),
        nn.Dense(CLASSES, name="down"),
    ]


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    return generator.normal(size=(count, 2, 4, 4)), generator.integers(0, CLASSES, count)


HYBRID = {nn.Conv2D: "rows", "up": dm.Columns(), -1: "inputs"}
"""Data-parallel convolutions, model-parallel dense layers."""


def test_the_hybrid_of_the_seed_is_a_choice_of_layouts() -> None:
    """Features are gathered where the first dense layer begins, and large weights never move."""
    models = [network(layers=images(), batch_size=8) for _ in range(2)]
    x, y = pictures(8)

    def work(comm: Communicator) -> tuple[list[str], str]:
        strategy, model = over(HYBRID, comm), models[comm.rank]
        strategy.begin(run_setup(model, strategy))
        steps = make_steps(model, cd.data.ArrayData(x, y), strategy)
        share = Share.of(0, 8, 8, *strategy.reader)
        plan = steps.training(share)
        strategy.shard()
        own = slice(share.first, share.first + len(share))
        plan.run(steps.feeds((x[own], y[own]), None) | {VOTES: NO_VOTES})
        return messages(plan), str(strategy.explain())

    (found, text), _ = run_virtual_ranks(2, work)
    moved = [each for each in found if each.split(" of")[0] == "gather along model"]
    assert moved == ["gather along model of (256,) float64"]
    assert f"sum along model of (8, {CLASSES}) float64" in found
    assert not any("(64, 16)" in each or "(16, 3)" in each for each in found)
    assert "up/weight                       (64, 16)            axis 1 over 2" in text
    assert "down/weight                     (16, 3)             axis 0 over 2" in text
    assert "axis 0 over 2           whole on 2" in text


@pytest.mark.parametrize(
    ("ranks", "layouts", "count"), [(3, HYBRID, 15), (2, "auto", 22)], ids=["hybrid", "auto"]
)
def test_it_equals_one_process(ranks: int, layouts: Any, count: int) -> None:
    """Eleven samples, and a last batch of four, do not divide by three."""

    def make() -> cd.NeuralNetwork:
        return network(layers=images(), batch_size=11, optimizer=lambda: optim.Adam(0.01))

    data, held_out = pictures(count), pictures(7)
    found = trained(ranks, make, partial(over, layouts), data, watch=False, validation=held_out)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data, validation=held_out), 1e-9)


def test_lengths_count_each_element_once() -> None:
    """Parts that several ranks have, and parts that one has: LAMB asks for the length of both."""
    layouts = {1: dm.Grid(2, 2), -1: {"weight": dm.Blocks(rows=2), "bias": dm.Rows()}}

    def make() -> cd.NeuralNetwork:
        layers = [nn.Input((FEATURES,)), nn.Dense(6, activation="tanh"), nn.Dense(CLASSES)]
        return network(
            layers=layers,
            optimizer=lambda: optim.LAMB(0.01, clip=optim.ClipNorm(0.1)),
            batch_size=8,
        )

    data = samples(16)
    found = trained(4, make, partial(over, layouts), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data), 1e-11)


class Branches(cd.Model):
    """Two ways through, one of which is a layer of layers."""

    def __init__(self) -> None:
        self.block = nn.Sequential([nn.Dense(8, activation="tanh"), nn.Dense(6)])
        self.side = nn.Dense(6, name="side")
        self.end = nn.Dense(CLASSES)
        super().__init__(loss="cross_entropy", optimizer="momentum", dtype="float64", batch_size=10)

    def forward(self, x: Any) -> Any:
        return self.end(self.block(x) * op.tanh(self.side(x)) + op.mean(x))


def test_a_layer_of_layers_and_what_is_said_of_one_inside() -> None:
    def make() -> cd.Model:
        model = Branches()
        model.predict(samples(1)[0])
        return model

    layouts = {"block": "columns", nn.Dense: "rows", "side": dm.Axis(1), "block/1-Dense": "inputs"}
    data = samples(20)
    found = trained(3, make, partial(over, layouts), data, watch=False)
    assert found.same_on_all_ranks()
    assert_close(found, alone(make, data), 1e-11)


def test_while_steps_run_a_rank_has_its_parts_and_then_all() -> None:
    models = [network(layers=images(), batch_size=8) for _ in range(2)]
    seen: list[Any] = []

    class Nosy(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            state = {each.name: each.shape for each in run.model.optimizer.variables()}
            seen.append(sorted(shape for name, shape in state.items() if "up/weight" in name))

    def work(comm: Communicator) -> Any:
        strategy = over(HYBRID, comm)
        model = models[comm.rank]
        model.fit(pictures(8), parallel=strategy, verbose=0, callbacks=[Nosy()])
        return model.predict(pictures(5)[0]), model.evaluate(pictures(5), parallel=strategy)

    (one, first), (other, second) = run_virtual_ranks(2, work)
    assert seen[0] == [(64, 8)]
    expected = network(layers=images(), batch_size=8)
    expected.fit(pictures(8), verbose=0)
    np.testing.assert_allclose(one, expected.predict(pictures(5)[0]), rtol=1e-11)
    np.testing.assert_array_equal(one, other)
    assert first == second == pytest.approx(expected.evaluate(pictures(5)))


def test_devices_with_memory_of_their_own() -> None:
    layouts = {1: "columns", -1: dm.Rows()}

    def made(**how: Any) -> cd.NeuralNetwork:
        layers = [nn.Input((FEATURES,)), nn.Dense(6, activation="tanh"), nn.Dense(CLASSES)]
        return network(layers=layers, **how)

    models = [made(device=f"loopback:{rank}") for rank in range(2)]

    def work(comm: Communicator) -> None:
        strategy = over(layouts, comm)
        models[comm.rank].fit(samples(22), parallel=strategy, verbose=0, epochs=2)

    run_virtual_ranks(2, work)
    expected = made()
    expected.fit(samples(22), verbose=0, epochs=2)
    for mine, other in zip(models[1].parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-11, atol=1e-12)


# --- what is refused

WRONG: list[tuple[Any, str]] = [
    (3, r'Layouts: expected layouts by layers, or "auto", got 3; for example {nn.Conv2D'),
    ({}, 'expected layouts by layers, or "auto", got {}'),
    ("rows", "expected layouts by layers, or \"auto\", got 'rows'"),
    ({1.5: "rows"}, "a layer's name, its number or a class of layers as a key, got 1.5"),
    (
        {1: "across"},
        r"Layouts\[1\]: expected one of rows, columns, inputs, replicated, auto, a lay",
    ),
    ({1: {"weight": 3}}, r"Layouts\[1\]\['weight'\]: expected a layout such as dm.Rows\(\)"),
]
WRONG_FOR_THE_MODEL: list[tuple[Any, str]] = [
    ({"upp": "rows"}, r"Layouts\['upp'\]: expected one of 0-Input, conv, .*, got 'upp'"),
    ({9: "rows"}, r"Layouts\[9\]: expected a number from 0 to 6, of the layers"),
    ({nn.LSTM: "rows"}, r"Layouts\[LSTM\]: expected a class of which the model has layers, got"),
    ({"up": {"wait": dm.Rows()}}, r"\['up'\]\['wait'\]: expected one of weight, bias, output"),
    ({2: "inputs"}, 'a dense layer or a convolution with a feature for each rank, got "inputs"'),
    ({"up": dm.Axis(2)}, r"a layout for a value of shape \(8, 16\) on 2 ranks, got Axis\(axis=2"),
    ({"up": dm.Rows(ranks=[0, 5])}, r"expected a layout on ranks 0 to 1, got .*5$"),
    ({"up": dm.Grid(3)}, r"a layout for a value of shape \(8, 16\) on 2 ranks, got Grid\(3,\)"),
]


def test_layouts_that_cannot_be_are_refused() -> None:
    for layouts, message in WRONG:
        with pytest.raises(ConfigError, match=message):
            Layouts(layouts)
    models = [network(layers=images(), batch_size=8) for _ in range(2)]
    for layouts, message in WRONG_FOR_THE_MODEL:

        def work(comm: Communicator, layouts: Any = layouts) -> None:
            models[comm.rank].fit(pictures(8), parallel=over(layouts, comm), verbose=0)

        with pytest.raises(ConfigError, match=message):
            run_virtual_ranks(2, work)


def test_ranks_have_to_be_given_the_same() -> None:
    with pytest.raises(CommError, match="expected the same on all ranks"):
        run_virtual_ranks(2, lambda comm: over({comm.rank: "rows"}, comm))


class Pair(cd.Model):
    """Two inputs, each through a layer of its own, whose features are joined."""

    def __init__(self, join: str, **settings: Any) -> None:
        super().__init__(loss="mse", batch_size=5, epochs=2, dtype="float64", **settings)
        self.join = join
        self.left, self.right = (
            nn.Dense(6, activation="tanh", name="left"),
            nn.Dense(6, name="right"),
        )
        self.out = nn.Dense(2, name="out")

    def forward(self, a: Any, b: Any) -> Any:
        left, right = self.left(a), self.right(b)
        if self.join == "concat":
            return self.out(op.concat([left, right], axis=1))
        return self.out(left * right if self.join == "product" else right * self.right(b + 1.0))


@pytest.mark.parametrize(
    ("join", "ranks", "layouts"),
    [
        ("concat", 3, {"out": dm.Blocks(columns=2)}),
        ("product", 3, {"left": dm.Blocks(rows=1), "out": "rows", "right": dm.Blocks(rows=1)}),
        ("product", 5, {"left": "columns", "right": dm.Blocks(rows=3), "out": dm.Axis(0)}),
        ("twice", 4, {"right": dm.Blocks(rows=2)}),
        ("twice", 3, {"left": dm.Blocks(rows=3)}),
    ],
)
def test_ranks_without_a_part_of_a_value_send_what_the_others_expect(
    join: str, ranks: int, layouts: Any
) -> None:
    """Ranks without blocks had other graphs, and so another order of messages, or fewer."""
    draw = np.random.default_rng(0)
    data = draw.normal(size=(12, 4)), draw.normal(size=(12, 3)), draw.normal(size=(12, 2))
    found = trained(ranks, lambda: Pair(join), partial(over, layouts), data, watch=False)
    assert_close(found, alone(lambda: Pair(join), data), 1e-12)


def test_redistributions_are_among_the_messages_that_ranks_compare() -> None:
    models = [Pair("product") for _ in range(2)]
    draw = np.random.default_rng(0)
    data = draw.normal(size=(5, 4)), draw.normal(size=(5, 3)), draw.normal(size=(5, 2))

    def work(comm: Communicator) -> list[str]:
        strategy, model = over({"out": dm.Blocks(rows=3)}, comm), models[comm.rank]
        steps = make_steps(model, data, strategy)
        strategy.begin(run_setup(model, strategy))
        return messages(steps.training(Share.of(0, 5, 5, *strategy.reader)))

    first, second = run_virtual_ranks(2, work)
    assert first == second
    assert any("redistribution along model of (5, 2)" in each for each in first)
