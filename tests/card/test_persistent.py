"""Steps of small networks as one kernel: the same numbers as call by call on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import forget_plans
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.cuda.persistent import PersistentStep, persistent_step
from caldera.kernels.cuda.persistent.fusion import (
    FusedLoop,
    Producer,
    early_in,
    fuse_epilogues,
    in_phases,
)
from caldera.kernels.cuda.persistent.program import PersistentKernel
from caldera.kernels.cuda.persistent.tasks import TileTask, assign_blocks, plain, shared_floats
from caldera.kernels.cuda.runtime.driver import driver, use
from caldera.kernels.table import STEP_FUSERS
from tests.card.emulated import PLAYED, EmulatedDriver, UndrivenDriver, emulated_card

SAMPLES, WIDTH, CLASSES = 30, 20, 5


def _data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SAMPLES, WIDTH), np.float32)
    return x, draw.integers(0, CLASSES, SAMPLES)


def _network(device: Any, optimizer: optim.Optimizer, activation: str) -> cd.NeuralNetwork:
    layers = [
        nn.Input((WIDTH,)),
        nn.Dense(33, activation=activation),
        nn.Dense(24, activation=activation),
        nn.Dense(CLASSES),
    ]
    return cd.NeuralNetwork(
        layers,
        loss="cross_entropy",
        optimizer=optimizer,
        metrics=["accuracy"],
        batch_size=10,
        seed=3,
        device=device,
    )


def _optimizers() -> dict[str, optim.Optimizer]:
    return {
        "sgd": optim.SGD(0.1, weight_decay=0.01),
        "momentum": optim.SGD(0.1, momentum=0.9),
        "adam": optim.Adam(0.01),
    }


@pytest.mark.parametrize(
    ("name", "activation"), [("sgd", "sigmoid"), ("momentum", "gelu"), ("adam", "sigmoid")]
)
def test_training_equals_the_cpu_and_steps_are_few_launches(
    card: Device,
    name: str,
    activation: str,
) -> None:
    here = _network("cpu", _optimizers()[name], activation)
    there = _network(card, _optimizers()[name], activation)
    expected = here.fit(_data(), epochs=3, verbose=0)
    found = there.fit(_data(), epochs=3, verbose=0)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-5)
    assert found["accuracy"] == expected["accuracy"]
    using = driver()
    if isinstance(using, EmulatedDriver):
        # Nine steps; the first of them runs call by call.
        assert 3 <= using.launches.count("steps") <= 8


@pytest.mark.parametrize(
    ("batch", "widths", "classes"),
    [(33, (50, 70, 41), 11), (17, (1030, 9), 3), (20, (12, 300, 36), 40), (3, (6000, 8), 2)],
)
def test_odd_sizes_equal_the_cpu(
    card: Device, batch: int, widths: tuple[int, ...], classes: int
) -> None:
    draw = np.random.default_rng(2)
    x = draw.standard_normal((3 * batch, widths[0]), np.float32)
    y = draw.integers(0, classes, 3 * batch)

    def trained(device: Any) -> cd.NeuralNetwork:
        hidden = [nn.Dense(width, activation="tanh") for width in widths[1:]]
        layers = [nn.Input((widths[0],)), *hidden, nn.Dense(classes)]
        model = cd.NeuralNetwork(
            layers,
            loss="cross_entropy",
            optimizer=optim.SGD(0.05, momentum=0.9),
            batch_size=batch,
            seed=1,
            device=device,
        )
        model.fit((x, y), epochs=1, verbose=0)
        return model

    here, there = trained("cpu"), trained(card)
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        np.testing.assert_allclose(other.numpy(), one.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("features", "width", "batch", "optimizer", "precision"),
    [(100, 100, 17, optim.Adam, None), (100, 100, 17, optim.AdamW, "tf32")],
)
def test_tiles_and_what_an_optimizer_keeps_fit_into_shared_memory(
    card: Device, features: int, width: int, batch: int, optimizer: Any, precision: Any
) -> None:
    """The tile of a weight, its gradient and its moments together: sizes for which they once did
    not fit, on as many multiprocessors as a played card has."""
    draw = np.random.default_rng(4)
    x = draw.standard_normal((3 * batch, features), np.float32)
    y = draw.standard_normal((3 * batch, 3), np.float32)

    def trained(device: Any) -> cd.NeuralNetwork:
        hidden = [nn.Dense(width, activation="tanh") for _ in range(2)]
        model = cd.NeuralNetwork(
            [nn.Input((features,)), *hidden, nn.Dense(3)],
            loss="mse",
            optimizer=optimizer(1e-3),
            batch_size=batch,
            seed=1,
            device=device,
            precision=precision,
        )
        model.fit((x, y), epochs=1, verbose=0)
        return model

    here, there = trained("cpu"), trained(card)
    # A step of Adam is as large as the sign of its gradient says, which rounding turns round for a
    # few weights: each of the three steps may part those by twice the rate.
    for one, other in zip(here.parameters(), there.parameters(), strict=True):
        apart = np.abs(other.numpy() - one.numpy())
        assert apart.max() < 6.5e-3
        assert apart.mean() < 5e-5
    using = driver()
    if isinstance(using, EmulatedDriver):
        assert using.launches.count("steps") == 2


@pytest.mark.parametrize(
    ("features", "widths", "batch", "optimizer", "precision"),
    [
        (256, [1040] * 2, 64, "adam", None),
        (100, [700] * 4, 300, "adamw", None),
        (17, [1024] * 3, 3, "adam", "tf32"),
        (1000, [528] * 3, 100, "adam", "tf32"),
    ],
)
@pytest.mark.skipif(card_count() > 0, reason="a real card's libraries need its memory")
def test_a_step_asks_for_all_the_shared_memory_that_its_parts_use(
    monkeypatch: pytest.MonkeyPatch,
    features: int,
    widths: list[int],
    batch: int,
    optimizer: str,
    precision: str | None,
) -> None:
    found: list[PersistentStep] = []

    class Enough(Exception):
        pass

    def joined(*given: Any) -> None:
        step = persistent_step(*given)
        assert step is not None
        assert step.is_small
        found.append(step)
        raise Enough

    monkeypatch.setitem(STEP_FUSERS, "cuda", joined)
    use(UndrivenDriver(replace(PLAYED, multiprocessors=132)))
    hidden = [nn.Dense(width, activation="relu") for width in widths]
    model = cd.NeuralNetwork(
        [nn.Input((features,)), *hidden, nn.Dense(10)],
        loss="mse",
        optimizer=optimizer,
        batch_size=batch,
        precision=precision,
        device=emulated_card(),
    )
    data = np.zeros((2 * batch, features), np.float32), np.zeros((2 * batch, 10), np.float32)
    try:
        with pytest.raises(Enough):
            model.fit(data, epochs=1, verbose=0)
        program = found[0].program
        assert program.shared_floats <= shared_floats()
    finally:
        forget_plans()
        use(None)
    parts = [part for phase in program.phases for part in phase]
    assert any("matmul" in part.what and part.units > 100 for part in parts)


def test_a_step_whose_loss_is_not_finite_changes_nothing(card: Device) -> None:
    model = _network(card, optim.SGD(0.1), "sigmoid")
    x, y = _data()
    x[25, 3] = np.nan
    with pytest.raises(cd.CalderaError, match="nan"):
        model.fit((x, y), epochs=2, verbose=0, shuffle=False)
    assert all(np.isfinite(parameter.numpy()).all() for parameter in model.parameters())


def test_losses_of_wrong_labels_and_infinite_scores_are_those_of_the_cpu(
    card: Device,
) -> None:
    scores = np.array([[1, 2, np.inf], [-np.inf, 0, 1], [np.nan, 0, 0], [3, 3, 3]], np.float32)
    labels = np.array([2, 0, 1, 7])

    def results(device: Any) -> list[np.ndarray]:
        given = op.var("scores", scores.shape, fill=scores, device=device)
        target = op.var("labels", labels.shape, fill=labels, dtype="int64", device=device)
        losses = op.cross_entropy(given, target, reduction="none")
        plan = cd.compile([losses, op.argmax(given, axis=1), op.grad(op.sum(losses), given)])
        if device is card:
            plan.capture()
        return [np.array(result.numpy()) for result in plan.run()]

    for one, other in zip(results("cpu"), results(card), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


@pytest.mark.parametrize("shape", [(7, 3), (64, 5), (40, 70)])
def test_sums_with_what_follows_them(card: Device, shape: tuple[int, int]) -> None:
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)

    def results(device: Any) -> list[np.ndarray]:
        x = op.var("x", shape, fill=values, device=device)
        columns = op.sum(x * x, axis=0)
        rows = op.max(x, axis=1)
        plan = cd.compile([op.sqrt(columns), rows * 2.0 + 1.0, op.sum(x), columns])
        if device is card:
            plan.capture()
        return [np.array(result.numpy()) for result in plan.run()]

    for one, other in zip(results("cpu"), results(card), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_functions_of_another_header_are_there(card: Device) -> None:
    x = op.var("x", (5, 3), fill=np.full((5, 3), 0.2, np.float32), device=card)
    plan = cd.compile([op.atan2(op.sum(x, axis=0), 2.0)])
    plan.capture()
    np.testing.assert_allclose(plan.run()[0].numpy(), np.full(3, np.arctan2(1.0, 2.0)), rtol=1e-6)
    if isinstance(driver(), EmulatedDriver):
        assert "steps" in driver().launches


def test_runs_in_a_row_are_few_launches(card: Device) -> None:
    x = op.var("x", (5, 3), fill=np.ones((5, 3), np.float32), device=card)
    plan = cd.compile([op.assign(x, x + op.sum(x, axis=0))])
    plan.capture()
    for _ in range(8):
        plan.run()
    assert (x.numpy() == 6.0**8).all()
    using = driver()
    if isinstance(using, EmulatedDriver):
        # One step, two, four, and the one that was held back when its result was asked for.
        assert using.launches.count("steps") == 4
    plan.run()
    x.assign(np.ones((5, 3), np.float32))
    plan.run()
    assert (x.numpy() == 6.0).all()


class _Touch:
    def __init__(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        self.reads = reads
        self.writes = writes


def test_a_phase_holds_what_does_not_touch_the_same_memory() -> None:
    memory = np.zeros(40, np.float32)
    a, b, c, d = (memory[10 * i : 10 * i + 10] for i in range(4))
    make_b = _Touch([a], [b])
    make_c = _Touch([a], [c])
    overwrite_a = _Touch([b], [a])
    make_d = _Touch([c], [d])
    read_edge = _Touch([memory[9:11]], [])
    parts = [make_b, make_c, overwrite_a, make_d, read_edge]
    assert in_phases(parts) == [[make_b, make_c], [overwrite_a, make_d], [read_edge]]
    assert in_phases(parts, late=lambda part: part is make_d) == [
        [make_b, make_c],
        [overwrite_a],
        [make_d, read_edge],
    ]


def test_what_the_phase_before_writes_is_not_there_early() -> None:
    memory = np.zeros(40, np.float32)
    a, b, c = (memory[10 * i : 10 * i + 10] for i in range(3))
    phases = [[_Touch([a], [b])], [_Touch([b], [c])]]
    assert [early_in(phases, 1)(each) for each in (a, b, c)] == [True, False, True]
    # Before the first phase comes the last one of the step before.
    assert [early_in(phases, 0)(each) for each in (a, b, c)] == [True, True, False]


def _loop(source: np.ndarray, target: np.ndarray) -> FusedLoop:
    loop_body = LoopBody(("float32",), (), (("float32", ("in", 0)),))
    return FusedLoop(loop_body, target.shape, (source,), (target,))


def test_a_loop_is_taken_in_though_what_its_producer_read_is_overwritten_before() -> None:
    weights, gradients, ended, other = (np.zeros((3, 4), np.float32) for _ in range(4))
    producer = Producer((weights,), gradients)
    update = _loop(other, weights)
    follower = _loop(gradients, ended)
    assert fuse_epilogues([producer, update, follower], lambda array: True) == [producer, update]
    assert producer.epilogues == [follower]
    assert not producer.stores


def test_a_loop_that_reads_what_is_written_in_between_is_not_taken_in() -> None:
    weights, gradients, other = (np.zeros((3, 4), np.float32) for _ in range(3))
    pieces = [Producer((weights,), gradients), _loop(other, weights), _loop(weights, gradients)]
    pieces.append(_loop(gradients, other))
    assert fuse_epilogues(pieces, lambda array: True) == pieces


def _part(units: int, heavy: bool) -> TileTask:
    return TileTask("work", units, [], [], plain(lambda places: []), heavy)


def test_light_parts_go_to_the_blocks_that_heavy_ones_leave() -> None:
    heavy, other, light, more = _part(4, True), _part(3, True), _part(2, False), _part(5, False)
    assert assign_blocks([light, heavy, more, other], 10) == [
        (heavy, 0, 4),
        (other, 4, 3),
        (light, 7, 2),
        (more, 7, 3),
    ]
    # Where nothing is left they go everywhere.
    assert assign_blocks([heavy, light], 4) == [(heavy, 0, 4), (light, 0, 2)]


def test_equal_code_on_other_arrays_is_there_once() -> None:
    arrays = [np.zeros(4, np.float32) for _ in range(4)]

    def doubling(source: np.ndarray, target: np.ndarray) -> TileTask:
        code = plain(
            lambda places: [f"{places.element(target, ['0'])} = 2 * {places.name(source)}[0];"]
        )
        return TileTask("double", 1, [source], [target], code)

    parts = [doubling(one, other) for one, other in pairwise(arrays)]
    program = PersistentKernel([[part] for part in parts], 2, 50000)
    assert program.source.count("= 2 * ") == 1
    assert len(program.pointers) == 6
