"""`fit` called again takes the plans of the last call, and only if they are the right ones."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.train.step import KeptSteps, StepPlans

X = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
Y = X[:, :2] * 2.0


def made() -> cd.NeuralNetwork:
    layers = [nn.Input((4,)), nn.Dense(8), nn.LeakyReLU(), nn.Dropout(0.2), nn.Dense(2)]
    return cd.NeuralNetwork(layers, "mse", optim.Adam(0.01), batch_size=16, seed=3)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of plans that have been made."""
    kinds: list[str] = []
    before = StepPlans._compiled

    def noted(self: StepPlans, kind: str, batch: Any) -> Any:
        kinds.append(kind)
        return before(self, kind, batch)

    monkeypatch.setattr(StepPlans, "_compiled", noted)
    return kinds


def test_many_short_runs_plan_once_and_are_one_long_run(compiled: list[str]) -> None:
    short, whole = made(), made()
    found = [short.fit(X, Y, verbose=0)["loss"][0] for _ in range(4)]
    assert compiled == ["training"]
    assert found == whole.fit(X, Y, epochs=4, verbose=0)["loss"]
    for one, other in zip(short.parameters(), whole.parameters(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


Change = Callable[[cd.NeuralNetwork, random.Random], dict[str, Any]]
CHANGES: list[Change] = [
    lambda model, draw: {},
    lambda model, draw: {"batch_size": draw.choice([8, 16, 20])},
    lambda model, draw: {"sample_weights": np.linspace(0.5, 2.0, 48)},
    lambda model, draw: {"validation": 0.25},
    lambda model, draw: (
        (vars(model.optimizer).get("beta1") and setattr(model.optimizer, "beta1", draw.random()))
        or {}
    ),
    lambda model, draw: setattr(model, "optimizer", draw.choice(["sgd", "adam"])) or {},
    lambda model, draw: setattr(model, "loss", draw.choice(["mse", "huber"])) or {},
    lambda model, draw: setattr(model, "metrics", draw.choice([None, ["r2"], []])) or {},
    lambda model, draw: setattr(model.network.layers[3], "rate", draw.random() / 2) or {},
    lambda model, draw: setattr(model.network.layers[2], "slope", draw.random()) or {},
    lambda model, draw: model.network.layers[1].freeze(draw.random() < 0.5) or {},
    lambda model, draw: setattr(model, "seed", draw.randrange(3)) or {},
    lambda model, draw: model.predict(X) is None or {},
    lambda model, draw: model.parameters()[0].assign(np.full((4, 8), 0.1)) or {},
]


@pytest.mark.parametrize("seed", range(4))
def test_whatever_changes_between_runs_the_results_are_those_of_new_plans(seed: int) -> None:
    kept, fresh = made(), made()
    draws = random.Random(seed), random.Random(seed)
    for step in range(8):
        results = []
        for model, draw in zip((kept, fresh), draws, strict=True):
            if model is fresh:
                model.kept_steps.clear()
            options = draw.choice(CHANGES)(model, draw)
            history = model.fit(X, Y, verbose=0, **options)
            results.append({name: history[name] for name in history if "seconds" not in name})
        assert results[0] == results[1], f"step {step}"
    for one, other in zip(kept.parameters(), fresh.parameters(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_a_setting_counts(compiled: list[str]) -> None:
    model = made()
    model.fit(X, Y, verbose=0)
    with cd.settings.override(deterministic=not cd.settings.deterministic):
        model.fit(X, Y, verbose=0)
    assert compiled == ["training", "training"]


def test_a_run_that_fails_leaves_nothing_behind() -> None:
    class Fails(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            raise RuntimeError("enough")

    model, other = made(), made()
    model.fit(X, Y, verbose=0)
    with pytest.raises(RuntimeError, match="enough"):
        model.fit(X, Y, callbacks=[Fails()], verbose=0)
    assert model.kept_steps._steps is None
    for each in (model, other):
        each.fit(X, Y, verbose=0)
    assert np.isfinite(model.fit(X, Y, verbose=0)["loss"]).all()


def test_targets_are_looked_at_each_time() -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    labels = np.arange(48) % 2
    model.fit(X, labels, verbose=0)
    with pytest.raises(cd.CalderaError, match="classes from 0 to 1"):
        model.fit(X, labels + 1, verbose=0)


def test_large_plans_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("caldera.train.step.MOST_BYTES", 100)
    model = made()
    model.fit(X, Y, verbose=0)
    assert model.kept_steps._steps is None


def test_a_model_with_kept_plans_goes_at_once() -> None:
    gc.collect()
    gc.disable()
    try:
        model = made()
        model.fit(X, Y, verbose=0)
        assert isinstance(model.kept_steps, KeptSteps)
        assert model.kept_steps._steps is not None
        gone = weakref.ref(model.parameters()[0].symbol)
        del model
        assert gone() is None
    finally:
        gc.enable()
