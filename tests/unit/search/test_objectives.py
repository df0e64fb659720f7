"""Objectives and constraints on models: what is measured, and what is chosen by it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
from caldera.errors import ConfigError
from caldera.search.job import SearchJob
from caldera.search.samples import TrialData
from caldera.search.space import Space
from caldera.search.trial import TrialTask


def _blobs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    return (random.normal(size=(120, 3)) + y[:, None]).astype("float32"), y


def _build(rate: float = 0.05, hidden: int = 3) -> cd.Model:
    layers = [nn.Input((3,)), nn.Dense(hidden, activation="tanh"), nn.Dense(2)]
    return cd.NeuralNetwork(layers, learning_rate=rate, batch_size=24)


RATES = {"rate": search.choice([0.05, 0.001])}


def _run(space: Any = RATES, **more: Any) -> search.Study:
    return search.run(_build, space, _blobs(), method="grid", epochs=more.pop("epochs", 3), **more)


def test_accuracy_less_what_it_costs() -> None:
    study = _run(objective=search.accuracy(per_second=0.5, per_parameter=1e-3))
    for trial in study.trials:
        last = trial.results
        price = 0.5 * last["seconds"] + 1e-3 * last["parameters"]
        assert trial.value == pytest.approx(last["val_accuracy"] - price)
    assert study.objective.names() == ("val_accuracy - 0.5 seconds - 0.001 parameters",)
    assert search.accuracy().names() == ("val_accuracy",)
    assert search.accuracy(per_flops=1e-9).columns() == ("val_accuracy", "flops")


def test_time_to_an_accuracy_ends_training_when_it_is_reached() -> None:
    slow = {"rate": search.choice([0.003])}
    study = _run(slow, objective=search.time_to("val_loss", 0.55), epochs=60)
    fast = study.best
    assert 0 < len(fast.curve) < 60
    assert fast.value == fast.results["seconds"]
    assert fast.results["val_loss"] <= 0.55 < fast.curve[-2]["val_loss"]
    assert study.seconds_to(math.inf) > 0
    never = search.time_to("val_accuracy", 2.0)
    assert never.values([{"val_accuracy": 0.9, "seconds": 1.0}]) == (math.inf,)


def test_the_mean_over_seeds_and_folds() -> None:
    for objective in (
        search.metric("val_loss", seeds=3),
        search.metric("val_loss", at="best", folds=3),
    ):
        study = _run(objective=objective, epochs=2)
        assert [len(trial.curve) for trial in study.trials] == [3, 3]
        assert study.best.parameters == {"rate": 0.05}
    with pytest.raises(ConfigError, match="over seeds or over folds"):
        search.metric("val_loss", seeds=2, folds=2)


def test_a_mean_is_that_of_the_single_trainings() -> None:
    space, samples = Space(RATES), TrialData(_blobs())

    def loss(**of: Any) -> Any:
        return SearchJob(_build, space, search.metric("val_loss", **of), samples, epochs=1)

    several = loss(seeds=2).run(TrialTask(0, {"rate": 0.05}, 7), lambda number, row: "")
    single = [
        loss().run(TrialTask(0, {"rate": 0.05}, seed), lambda number, row: "") for seed in (7, 8)
    ]
    assert several.values == pytest.approx([np.mean([each.values for each in single])])


def test_folds_hold_out_each_sample_once() -> None:
    x = np.arange(10.0, dtype="float32")[:, None]
    samples = TrialData((x, np.zeros(10, "int64")), folds=3)
    held = [samples.parts(fold)[1].batch(np.arange(3))[0].ravel().tolist() for fold in range(3)]
    assert len({value for fold in held for value in fold}) == 9
    with pytest.raises(cd.DataError, match="at least 30 samples"):
        TrialData((x, np.zeros(10, "int64")), folds=30)


def test_all_trials_choose_by_the_same_samples_and_none_by_the_test_set() -> None:
    looked_at: list[int] = []

    class Watched(cd.data.ArrayData):
        def batch(self, indices: Any) -> Any:
            looked_at.append(len(indices))
            return super().batch(indices)

    x, y = _blobs()
    whole = cd.data.arrays(x, y, test=0.25)
    test = Watched(x[:20], y[:20])
    study = search.run(_build, RATES, whole.train, method="grid", epochs=1, test=test)
    assert sum(looked_at) <= 2 * 20
    assert study.test is not None
    assert study.test["accuracy"] == study.best.model.evaluate((x[:20], y[:20]))["accuracy"]
    first, second = TrialData(whole, seed=3).parts()[1], TrialData(whole, seed=3).parts()[1]
    assert np.array_equal(first.x, second.x)


def test_constraints_on_size_are_known_before_training_begins() -> None:
    space = {"hidden": search.choice([3, 50])}
    for limit in (search.at_most("parameters", 100), search.at_most("memory", 3000)):
        study = _run(space, constraints=[limit], epochs=2)
        small, large = study.trials
        assert small.state == "done"
        assert large.state == "stopped"
        assert large.reason.startswith(f"expected {limit.name} at most")
        assert large.curve == []
        assert study.best is small


def test_latency_is_measured_where_somebody_asks() -> None:
    study = _run(constraints=[search.at_most("latency", 1e-9)], epochs=1)
    assert study.best_or_none() is None
    assert all(trial.reason.startswith("expected latency at most") for trial in study.trials)
    study = _run(objective=search.pareto("val_loss", "latency", "flops"), epochs=1)
    assert len(study.front) >= 1
    assert all(trial.results["latency"] > 0 for trial in study.trials)
    assert "latency" not in _run(epochs=1).best.results


def test_what_a_trial_gives_is_refused_in_words() -> None:
    with pytest.raises(ConfigError, match=r"trials that report 'val_acc'.*did you mean"):
        _run(objective="val_acc", epochs=1)
    study = search.run(lambda rate: 3, RATES, _blobs(), method="grid", epochs=1)
    assert "expected a model, since there are data to train on" in study.trials[0].reason
    study = search.run(lambda rate: "good", RATES, method="grid")
    assert "expected value as a number, got 'good'" in study.trials[0].reason
    x, y = _blobs()
    nan = search.run(_build, RATES, (x * np.inf, y), trials=1, epochs=2)
    assert nan.trials[0].state == "failed"
    assert "NonFiniteError" in nan.trials[0].reason


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: search.metric("x", "least"), "min"),
        (lambda: search.metric("x", at="first"), 'at="last"'),
        (lambda: search.metric("x", seeds=0), "seeds= at least 1"),
        (lambda: search.accuracy(second=1.0), "prices such as per_flops="),
        (lambda: search.weighted({}), "a weight for a metric"),
        (lambda: search.pareto("x"), "at least two names"),
        (lambda: search.pareto("x", "y", modes=["min"]), "2 modes"),
        (lambda: _run(objective=3), "a name such as 'val_loss'"),
        (lambda: _run(constraints=["latency"]), "constraints= a list of Constraint"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


# --- a first space


def test_a_space_of_a_model_builds_models_that_train(tmp_path: Path) -> None:
    layers = [nn.Input((3,)), nn.Dense(8, activation="tanh"), nn.Dropout(0.1), nn.Dense(2)]
    model = cd.NeuralNetwork(layers, learning_rate=0.01, batch_size=24, metrics=["accuracy"])
    space = search.space_of(model)
    assert set(space.parameters) == {
        "learning_rate",
        "batch_size",
        "dense1_units",
        "dense1_activation",
        "dropout2_rate",
    }
    build, random = search.build_like(model), np.random.default_rng(0)
    made = build(**space.decoded(space.draw(random)))
    assert made.parameters()[-1].shape == (2,)
    assert build().parameters()[0].shape == model.parameters()[0].shape
    study = search.run(build, space, _blobs(), trials=1, epochs=1)
    assert study.best.state == "done"
    with pytest.raises(ConfigError, match="a name of space_of"):
        build(units=3)


def test_widths_stay_where_blocks_add_their_inputs() -> None:
    space = search.space_of(cd.NeuralNetwork(nn.models.resnet20()))
    assert set(space.parameters) == {"learning_rate", "batch_size"}
    for name in ("mlp", "lenet5", "lstm_classifier", "alexnet", "vgg16", "gpt"):
        assert search.space_of(getattr(nn.models, name)).dimensions()
    random = np.random.default_rng(0)
    mlp = search.space_of(nn.models.mlp)
    for _ in range(5):
        nn.models.mlp((3,), 2, **mlp.decoded(mlp.draw(random)))
    with pytest.raises(ConfigError, match="a function of the zoo"):
        search.space_of(len)
