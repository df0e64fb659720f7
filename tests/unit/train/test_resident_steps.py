"""Steps on a device with memory of its own: no copies, no waits, captured and replayed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.compiler.plan import plan
from caldera.core.memory import Device, device
from caldera.train import run as training_run
from caldera.train.callbacks import Callback
from caldera.train.debug import nonfinite
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from tests.transfers import counted_from_now
from tests.unit.train.apart import APART, assert_same
from tests.unit.train.small import classifier, points, same_bits, values

# --- nobody waits


class Watch(Callback):
    """Holds the device still from the second step of an epoch to its last but one."""

    def __init__(self, where: Device, epoch: int) -> None:
        self.where = where
        self.epoch = epoch
        self.gate = threading.Event()
        self.moved: list[int] = []
        self.steps = 0

    def batch_ends(self, run: Run) -> None:
        if run.epoch != self.epoch:
            return
        counters = self.where.counters
        if run.batch == 1:
            self.where.stream.synchronize()
            counters.reset()
            self.where.stream.launch(lambda: self.gate.wait(20))
            self.steps = run.step
        if run.batches is not None and run.batch == run.batches - 1:
            assert not self.gate.is_set()
            self.gate.set()
            assert counters.waits == 0
            self.where.stream.synchronize()
            self.moved = [counters.h2d, counters.d2h, counters.d2d]
            self.steps = run.step - self.steps

    def run_ends(self, run: Run) -> None:
        self.gate.set()


def test_the_steps_of_an_epoch_need_no_copy_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_run, "RUN_AHEAD_S", 60.0)
    where = device(APART)
    watch = Watch(where, epoch=2)
    model = classifier(device=where, batch_size=4)
    model.fit(points(200), validation=points(20), epochs=4, callbacks=[watch], verbose=1)
    assert watch.steps == 48
    assert watch.moved == [0, 0, 0]


def test_an_epoch_needs_the_order_and_a_few_numbers() -> None:
    where = device(APART)
    model = classifier(device=where, batch_size=5)

    taken: list[int] = []

    class Count(Callback):
        def epoch_ends(self, run: Run) -> None:
            where.stream.synchronize()
            taken.append(where.counters.h2d_bytes)
            where.counters.reset()

    counted_from_now(where)
    model.fit(points(100), epochs=4, callbacks=[Count()], verbose=0)
    # The first has the data and the parameters as well; then the order, the batch and the totals.
    assert taken[0] > 100 * (2 * 4 + 8) + 800
    assert taken[1:] == [taken[1]] * 3
    assert 800 < taken[1] < 900


def test_reading_is_not_waited_for_in_the_middle_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training_run, "RUN_AHEAD_S", 60.0)
    monkeypatch.setattr(nonfinite, "LOOK_SELDOM", 4)
    where = device(APART)
    watch = Watch(where, epoch=1)
    classifier(device=where, batch_size=4).fit(points(200), epochs=2, callbacks=[watch], verbose=0)
    # While the device stood still it was asked once, and nobody asked again before the answer.
    assert watch.moved == [0, 1, 0]


def test_the_host_does_not_run_away() -> None:
    where = device(APART)
    now = [0.0]
    held = training_run.LaunchThrottle(where, clock=lambda: now[0])
    waits = where.counters.waits
    gate = threading.Event()
    where.stream.launch(lambda: gate.wait(20))
    for _ in range(1000):
        held.step_launched()
    now[0] += training_run.RUN_AHEAD_S / 2
    held.step_launched()
    assert where.counters.waits == waits
    opener = threading.Timer(0.05, gate.set)
    opener.start()
    now[0] += training_run.RUN_AHEAD_S / 2
    held.step_launched()
    assert gate.is_set()
    assert where.counters.waits == waits + 1


def test_a_bad_sample_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(301)
    x[115] = np.nan
    for every in (4, 1000):
        monkeypatch.setattr(nonfinite, "LOOK_SELDOM", every)
        model = NeuralNetwork([nn.Input((2,)), nn.Dense(2)], batch_size=10, device=APART)
        with pytest.raises(cd.NonFiniteError, match=r"step 11: .*x0.* first in sample 5"):
            model.fit((x, y), shuffle=False, verbose=0)


# --- capture


def plans_of(model: NeuralNetwork, **options: Any) -> list[plan.Plan]:
    """The plans of a run, as they are at its end."""
    found: list[plan.Plan] = []

    class Look(Callback):
        def run_ends(self, run: Run) -> None:
            found.extend(run.steps._plans)

    model.fit(points(), verbose=0, callbacks=[Look()], **options)
    return found


def test_plans_are_captured_when_they_run_again() -> None:
    whole, last = plans_of(classifier(device=APART), epochs=1)
    assert whole.is_captured
    assert not last.is_captured
    assert all(each.is_captured for each in plans_of(classifier(device=APART), epochs=2))
    assert not any(each.is_captured for each in plans_of(classifier(device="cpu"), epochs=2))


def test_a_plan_that_cannot_be_captured_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "not_capturable", lambda schedule: [schedule.steps[0].kernel])
    assert not any(each.is_captured for each in plans_of(classifier(device=APART), epochs=2))
    assert_same(classifier, points())


def test_loops_are_captured() -> None:
    def network(**settings: Any) -> NeuralNetwork:
        layers = [nn.Input((4, 2)), nn.LSTM(3), nn.Flatten(), nn.Dense(2)]
        return NeuralNetwork(layers, batch_size=5, **settings)

    x = np.random.default_rng(0).normal(size=(20, 4, 2)).astype("float32")
    assert_same(network, (x, np.arange(20) % 2))


# --- moving


def test_fit_moves_a_model_to_where_it_trains() -> None:
    here, there = classifier(device="cpu"), classifier(device="cpu")
    x, y = points()
    for model, places in ((here, ("cpu", "cpu", "cpu")), (there, ("cpu", APART, "cpu"))):
        for place in places:
            model.fit((x, y), epochs=1, device=place, verbose=0)
            assert model.device is device(place)
            assert all(each.tensor.device is device(place) for each in model.parameters())
    assert same_bits(values(here), values(there))
    np.testing.assert_array_equal(here.predict(x), there.predict(x))
    assert here.evaluate((x, y)) == there.to(APART).evaluate((x, y))
    np.testing.assert_array_equal(here.predict(x), there.predict(x))


def test_expressions_of_parameters_follow_them_and_old_plans_say_so() -> None:
    model = classifier(device="cpu")
    weight = model.parameters()[0]
    double = weight * 2.0
    before = double.numpy()
    old = cd.compile([weight + 0.0])
    old.run()
    model.to(APART)
    weight.assign(weight.numpy() + 1.0)
    np.testing.assert_array_equal(double.numpy(), before + 2.0)
    with pytest.raises(cd.DeviceError, match="move it"):
        old.run()
    model.to("cpu")
    np.testing.assert_array_equal(old.run()[0].numpy(), weight.numpy())
