"""Methods: each finds the optimum of test functions, repeats itself, and goes on where it was."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
from caldera.errors import ConfigError
from caldera.search.trial import Trial


def _sphere(x: float, y: float) -> float:
    return (x - 1) ** 2 + (y + 2) ** 2


def _branin(x: float, y: float) -> float:
    first = y - 5.1 / (4 * math.pi**2) * x * x + 5 / math.pi * x - 6
    return first**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10 - 0.397887


def _ackley(x: float, y: float) -> float:
    waves = math.cos(2 * math.pi * x) + math.cos(2 * math.pi * y)
    return 20 - 20 * math.exp(-0.2 * math.sqrt((x * x + y * y) / 2)) + math.e - math.exp(waves / 2)


def _box(low: float, high: float, step: float | None = None) -> dict[str, Any]:
    return dict.fromkeys("xy", search.uniform(low, high, step))


FUNCTIONS = {
    "sphere": (_sphere, _box(-5, 5), 0.3),
    "branin": (_branin, {"x": search.uniform(-5, 10), "y": search.uniform(0, 15)}, 0.5),
    "ackley": (_ackley, _box(-4, 4), 2.0),
}
SMART: dict[str, Callable[[], search.Method]] = {
    "tpe": search.TPE,
    "cmaes": search.CMAES,
    "qmc": search.QuasiRandom,
    "nsga2": search.NSGA2,
    "swarm": search.Swarm,
    "evolution": search.Evolution,
    "hierarchical": search.HierarchicalEvolution,
    "controller": lambda: search.Controller(batch=5),
    "pbt": lambda: search.PBT(population=12),
}
TRIALS = {"tpe": 110, "cmaes": 110, "qmc": 130}


def _points(study: search.Study) -> list[Any]:
    return [trial.point for trial in study.trials]


# Each method has the easy function and one of the hard ones.
@pytest.mark.parametrize(
    ("name", "function"),
    [(name, "sphere") for name in SMART]
    + [(name, ("branin", "ackley")[number % 2]) for number, name in enumerate(SMART)],
)
def test_it_finds_the_optimum(name: str, function: str) -> None:
    value, space, near = FUNCTIONS[function]
    trials = TRIALS.get(name, 200)
    study = search.run(value, space, method=SMART[name](), trials=trials, epochs=20, seed=1)
    assert study.best.value is not None
    assert study.best.value < near * (2 if name == "qmc" else 1)


def test_grid_and_random_until_a_threshold_find_it_too() -> None:
    for value, at in ((_sphere, (1, -2)), (_ackley, (0, 0))):
        study = search.run(value, _box(-4, 4, 1.0), method="grid")
        assert len(study.trials) == 81
        assert tuple(study.best.parameters.values()) == at
    found = search.run(_sphere, _box(-5, 5), method=search.Threshold(0.5))
    assert [trial.value < 0.5 for trial in found.trials if trial.value is not None].count(True) == 1
    largest = search.metric("value", "max")
    found = search.run(
        lambda x: x, {"x": search.uniform(0, 1)}, method=search.Threshold(0.9), objective=largest
    )
    assert found.best.value is not None
    assert found.best.value >= 0.9


MIXED = {
    "kind": search.choice(
        {"a": {"size": search.integer(1, 3)}, "b": {"share": search.uniform(0, 1)}}
    ),
    "rate": search.log(1e-3, 1.0),
    "step": search.uniform(0.0, 1.0, step=0.1),
}


def _mixed(kind: str, rate: float, step: float, size: int = 0, share: float = 0.0) -> float:
    return abs(math.log(rate) + 3) + step + (size if kind == "a" else 2 * share)


@pytest.mark.parametrize("name", [*SMART, "random", "asha", "median", "promotion"])
def test_the_same_seed_and_going_on_give_the_same_trials(name: str, tmp_path: Path) -> None:
    def go(trials: int, **more: Any) -> search.Study:
        method = SMART[name]() if name in SMART else name
        return search.run(_mixed, MIXED, method=method, trials=trials, epochs=9, seed=3, **more)

    whole = go(26)
    assert _points(go(26)) == _points(whole)
    # Interrupted twice, once in the middle of a trial.
    go(8, folder=tmp_path)
    calls: list[Any] = []

    class Killed(BaseException): ...

    def dies(**parameters: Any) -> float:
        calls.append(parameters)
        if len(calls) == 15:
            raise Killed
        return _mixed(**parameters)

    method = SMART[name]() if name in SMART else name
    with pytest.raises(Killed):
        search.run(dies, MIXED, method=method, trials=26, epochs=9, seed=3, folder=tmp_path)
    assert _points(go(26, folder=tmp_path)) == _points(whole)


def test_another_method_goes_on_with_a_study(tmp_path: Path) -> None:
    search.run(_sphere, _box(-5, 5), trials=10, folder=tmp_path)
    for number, name in enumerate(SMART):
        trials = 10 + 4 * (number + 1)
        study = search.run(
            _sphere, _box(-5, 5), method=SMART[name](), trials=trials, folder=tmp_path, epochs=4
        )
        assert len(study.trials) == trials


# --- several objectives, constraints


def _both(x: float, y: float) -> dict[str, float]:
    return {"first": x * x + y * y, "second": (x - 2) ** 2 + y * y, "size": abs(y)}


BOTH = search.pareto("first", "second", modes=["min", "min"])


def test_fronts_of_several_objectives() -> None:
    for name, trials in (("nsga2", 120), ("tpe", 50)):
        study = search.run(_both, _box(-4, 4), method=name, trials=trials, objective=BOTH, seed=2)
        front = study.front
        assert len(front) > 3
        assert np.mean([abs(each.parameters["y"]) for each in front]) < 0.9
        for each in front:
            assert not any(
                other.values[0] < each.values[0] and other.values[1] < each.values[1]  # type: ignore[index]
                for other in study.trials
            )
    with pytest.raises(ConfigError, match=r'expected one objective, got first, second.*"nsga2"'):
        search.run(_both, _box(-4, 4), method="cmaes", trials=3, objective=BOTH)


@pytest.mark.parametrize("name", ["random", "tpe", "nsga2", "evolution"])
def test_what_breaks_a_constraint_is_never_the_best(name: str) -> None:
    study = search.run(
        _both,
        _box(-4, 4),
        method=name,
        trials=40,
        objective="first",
        constraints=[search.at_least("size", 1.0), search.at_most("second", 50)],
    )
    assert abs(study.best.parameters["y"]) >= 1.0
    broken = [trial for trial in study.trials if abs(trial.parameters["y"]) < 1]
    assert broken
    assert all(trial.reason.startswith("expected size at least 1") for trial in broken)


def test_what_a_method_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"gp, which Optuna writes in PyTorch: .*install torch"):
        search.run(_sphere, _box(-1, 1), method="gp", trials=1)
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigError, match=r"cmaes: expected the package cmaes"):
        search.run(_sphere, _box(-1, 1), method="cmaes", trials=1)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install optuna"):
        search.run(_sphere, _box(-1, 1), trials=1)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"expected most= the steps"):
        search.run(_sphere, _box(-1, 1), stop="hyperband", trials=1)
    with pytest.raises(ConfigError, match=r"expected epochs= of the search"):
        search.run(_sphere, _box(-1, 1), method="pbt")


# --- stopping


def _curve(x: float) -> Iterator[float]:
    """Good trials are good from the beginning, and become better."""
    for step in range(1, 28):
        yield x + 1 / step


@pytest.mark.parametrize(
    ("stop", "most"), [("asha", 0.3), (search.Hyperband(most=27), 0.5), ("median", 0.7)]
)
def test_bad_trials_are_stopped_and_the_best_is_not(stop: Any, most: float) -> None:
    study = search.run(_curve, {"x": search.uniform(0, 1)}, stop=stop, trials=60)
    steps = sum(len(trial.curve) for trial in study.trials)
    assert steps < most * 60 * 27
    best = min(study.trials, key=lambda trial: trial.parameters["x"])
    assert study.best.value is not None
    assert study.best.value <= best.parameters["x"] + 0.15
    stopped = study.of_state("stopped")
    assert all("stopped by" in trial.reason for trial in stopped)
    assert all(trial.parameters["x"] > study.best.parameters["x"] for trial in stopped)


def test_rungs_of_halving() -> None:
    study = search.run(_curve, {"x": search.uniform(0, 1)}, stop=search.ASHA(least=2), trials=40)
    lengths = Counter(len(trial.curve) for trial in study.trials)
    assert set(lengths) <= {2, 6, 18, 27}
    assert lengths[2] > lengths[6]


def test_brackets_of_hyperband_fill_together() -> None:
    method = search.Hyperband(most=27)
    method.epochs = None
    method.prepare()
    counts = Counter(method.bracket(number) for number in range(2 * len(method._cycle)))
    assert set(counts) == {0, 1, 2, 3}
    first = {method.bracket(number) for number in range(len(method._cycle) // 2)}
    assert first == {0, 1, 2, 3}


def test_a_sampler_learns_from_stopped_trials() -> None:
    study = search.run(_curve, {"x": search.uniform(0, 1)}, method="tpe", stop="asha", trials=40)
    late = [trial.parameters["x"] for trial in study.trials[25:]]
    assert np.mean(late) < 0.35


def _blobs() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 120)
    return (random.normal(size=(120, 3)) + y[:, None]).astype("float32"), y


def _build(rate: float) -> cd.Model:
    return cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)], learning_rate=rate, batch_size=24)


def _settings(study: search.Study) -> dict[float, list[Trial]]:
    """The trials of each setting, in order."""
    found: dict[float, list[Trial]] = {}
    for trial in study.trials:
        found.setdefault(trial.parameters["x"], []).append(trial)
    return found


def test_what_waits_goes_on_when_worse_ones_have_come() -> None:
    space = {"x": search.uniform(0, 1)}
    method = search.Promotion("random")
    study = search.run(_curve, space, method=method, trials=60, epochs=27, seed=2)
    first = study.trials[:3]
    assert [len(trial.curve) for trial in first[:2]] == [1, 1]  # Nobody to compare them with.
    came = {x: len(trials[-1].curve) for x, trials in _settings(study).items()}
    for rung in (1, 3, 9):
        there = sorted(x for x, length in came.items() if length >= rung)
        on = [x for x in there if came[x] > rung]
        # Who is among the best third now has gone on; a few more were, when there were fewer.
        assert set(there[: len(there) // 3]) <= set(on)
        assert rung > 1 or len(on) < len(there) / 2
    for trials in _settings(study).values():
        assert [t.parent for t in trials] == [None, *(t.number for t in trials[:-1])]
        assert len({t.seed for t in trials}) == 1
    assert study.best.parameters["x"] == min(came)


def test_what_heard_late_that_it_should_stop_goes_on_too() -> None:
    def slow(x: float) -> Iterator[float]:
        for value in _curve(x):
            yield value
            time.sleep(0.004)

    space = {"x": search.uniform(0, 1)}
    method = search.Promotion("random")
    study = search.run(slow, space, method=method, trials=40, epochs=27, workers="threads:3")
    came = {x: len(trials[-1].curve) for x, trials in _settings(study).items()}
    assert any(trial.parent is not None for trial in study.trials)
    best = sorted(came)[: len(came) // 3]
    # The last ones may not have been asked for any more.
    assert sum(came[x] < 3 for x in best) <= 3


def test_tpe_hears_of_a_promoted_trial_as_of_one_that_came_farther() -> None:
    space = {"x": search.uniform(0, 1)}
    method = search.Promotion("tpe")
    study = search.run(_curve, space, method=method, trials=40, epochs=27, seed=1)
    known = method._proposer._ranking._ranks  # type: ignore[attr-defined]
    settings = _settings(study)
    assert len(known) == len(settings)
    for number, rank in known.items():
        last = settings[study.trials[number].parameters["x"]][-1]
        assert (rank[0] == 0) == (last.state == "done")
        assert rank[-1] == pytest.approx(last.value)
    late = [trial.parameters["x"] for trial in study.trials[25:]]
    assert np.mean(late) < 0.35


def test_optuna_hears_of_a_promoted_trial_as_of_one_that_came_farther() -> None:
    # A parameter that only some trials have makes the sampler Optuna's.
    space = {"x": search.uniform(0, 1), "other": search.repeat(search.uniform(0, 1), 1, 2)}
    method = search.Promotion("tpe")
    study = search.run(lambda x, other: _curve(x), space, method=method, trials=40, epochs=27)
    known = method._proposer._study.trials  # type: ignore[attr-defined]
    settings = _settings(study)
    assert len(known) == len(settings)
    for each in known:
        last = settings[each.params["x"]][-1]
        assert (each.state.name == "COMPLETE") == (last.state == "done")
        assert each.value == pytest.approx(last.value)


def test_promoted_models_go_on_where_they_were(tmp_path: Path) -> None:
    data = cd.data.arrays(*_blobs(), test=0.2)
    space = {"rate": search.log(1e-5, 1e-1)}
    study = search.run(
        _build,
        space,
        data,
        method=search.Promotion("random"),
        epochs=3,
        trials=9,
        folder=tmp_path,
    )
    later = [trial for trial in study.trials if trial.parent is not None]
    assert later
    for trial in later:
        before = study.trials[trial.parent or 0]
        assert (before.results["epochs"], before.state) == (len(before.curve), "stopped")
        assert trial.curve[0]["epochs"] == before.results["epochs"] + 1
    done = next(trial for trial in later if trial.state == "done")
    weights = study.remake(done).parameters()[0].numpy()
    assert np.array_equal(weights, done.model.parameters()[0].numpy())
    for more, words in (
        ({"method": search.Promotion("pbt"), "epochs": 3}, "which saves models itself"),
        ({"method": "promotion"}, "epochs= of the search"),
        (
            {"method": "promotion", "epochs": 3, "objective": search.metric("val_loss", seeds=2)},
            "a mean over seeds",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            search.run(_build, space, data, trials=2, folder=tmp_path / words, **more)  # type: ignore[arg-type]


# --- population-based training


def test_members_go_on_with_the_models_of_better_ones(tmp_path: Path) -> None:
    space = {"rate": search.log(1e-5, 1e-1)}
    data = cd.data.arrays(*_blobs(), test=0.2)
    method = search.PBT(population=4, interval=1)
    study = search.run(_build, space, data, method=method, epochs=3, folder=tmp_path)
    assert len(study.trials) == 12
    assert {trial.state for trial in study.trials} == {"done"}
    later = study.trials[4:]
    assert all(trial.parent is not None for trial in later)
    taken_over = [
        t for t in later if study.trials[t.parent or 0].note["member"] != t.note["member"]
    ]
    assert taken_over
    for trial in taken_over:
        assert trial.point != study.trials[trial.parent or 0].point
    # A model goes on where its parent was: epochs add up, and weights are those of its file.
    assert all(trial.results["epochs"] == 1.0 for trial in study.trials[:4])
    for trial in later:
        before = study.trials[trial.parent or 0].results["epochs"]
        assert trial.results["epochs"] == before + 1
    child = study.trials[-1]
    assert np.array_equal(
        study.remake(child).parameters()[0].numpy(), child.model.parameters()[0].numpy()
    )
    assert child.model.optimizer.learning_rate.numpy() == pytest.approx(child.parameters["rate"])
    with pytest.raises(ConfigError, match="expected folder="):
        search.run(_build, space, data, method="pbt", epochs=3)
    with pytest.raises(ConfigError, match="explore= names of the space"):
        search.run(
            _build, space, data, method=search.PBT(explore=["no"]), epochs=3, folder=tmp_path
        )


def test_a_member_that_fails_takes_over_from_another() -> None:
    def moody(x: float) -> float:
        if x > 0.5:
            raise RuntimeError("too large")
        return x

    study = search.run(
        moody, {"x": search.uniform(0, 1)}, method=search.PBT(population=6), epochs=6
    )
    assert len(study.trials) == 36
    assert {t.state for t in study.trials} == {"done", "failed"}
    last = {trial.note["member"]: trial for trial in study.trials}
    assert sum(trial.state == "done" for trial in last.values()) >= 4


# --- one of your own


def test_a_method_of_your_own() -> None:
    class HillClimbing(search.Method):
        def ask(self, number: int) -> Any:
            random, best = self.random(number), self.best()
            return self.space.draw(random) if best is None else self.space.near(best.point, random)

        def stop(self, trial: Trial, step: int, loss: float) -> bool:
            return loss > 100

    study = search.run(_sphere, _box(-5, 5), method=HillClimbing(), trials=150)
    assert study.best.value is not None
    assert study.best.value < 0.05


def test_what_proposes_nothing_is_refused_as_a_method() -> None:
    class Mine(search.Method):
        pass

    with pytest.raises(ConfigError, match=r"got Mine, which has no `ask`; .*stop='asha'"):
        search.run(lambda x: x, {"x": search.uniform(0, 1)}, method=Mine(), trials=2, verbose=0)
