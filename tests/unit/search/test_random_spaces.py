"""Spaces that are drawn at random: choices in choices, lists in lists, steps that do not divide,
single values, odd names. Every method searches them, also where results are NaN or infinite, and
goes on where it was; TPE proposes what Optuna alone does."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from caldera import search
from caldera.errors import ConfigError
from caldera.search.dimension import Choice, Dimension, Uniform
from caldera.search.space import Point, Space
from tests.unit.search.test_optuna_samplers import optuna_5

NAMES = ["rate", "learning rate", "größe", "x-y", "a:b", "0", "None", "count", "seed", "lambda"]
VALUES = [1, True, 1.0, "1", None, "None", (1, 2), [3], math.inf, -0.0, "", len, 1e300]
OPENING = ["x", 3, True, None, "True", "3", 2.5]


def _dimension(random: np.random.Generator, depth: int) -> Any:
    kind, low = random.integers(9 if depth < 3 else 6), round(float(random.normal()), 3)
    few = random.permutation(7)[: random.integers(1, 4)]
    if kind == 0:
        return search.uniform(low, low + 1e-6 + random.exponential())
    if kind == 1:
        return search.log(10 ** random.uniform(-6, 0), 10 ** random.uniform(0.01, 4))
    if kind == 2:
        part = random.choice([1, 0.5, 0.3, 1 / 3, 0.07])
        return search.uniform(low, low + 2, step=2 * float(part))
    if kind == 3:
        first = int(random.integers(-5, 6))
        return search.integer(first, first + int(random.integers(20)), int(random.integers(1, 7)))
    if kind == 4:
        return search.integer(2, 2 + int(random.integers(200)), log=True)
    if kind == 5:
        return search.choice([VALUES[index] for index in random.permutation(len(VALUES))[few]])
    if kind < 8:
        return search.choice({OPENING[i]: _parameters(random, depth + 1) for i in few})
    return search.repeat(_dimension(random, depth + 1), int(random.integers(2)), 3)


def _parameters(random: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    names = [
        str(random.choice(NAMES)) if depth == 0 else f"n{random.integers(1000)}" for _ in "abc"
    ]
    return {name: _dimension(random, depth) for name in names[: random.integers(1, 4)]}


def _space(seed: int) -> Space:
    random = np.random.default_rng(seed)
    while True:
        try:
            return Space(_parameters(random))
        except ConfigError:  # The same name twice, or nothing to choose.
            continue


def _value(**parameters: Any) -> float:
    shown = json.dumps(parameters, default=repr, sort_keys=True).encode()
    return int.from_bytes(hashlib.blake2b(shown, digest_size=4).digest()) / 2**32


def _moody(**parameters: Any) -> float:
    value = _value(**parameters)
    if value < 0.1:
        raise ValueError("a bad day")
    return math.nan if value < 0.2 else math.inf if value < 0.3 else value


def _points(study: search.Study) -> str:
    return json.dumps([trial.point for trial in study.trials])


METHODS = ["tpe", "evolution", "cmaes", "controller", "nsga2", "promotion"]


@pytest.mark.parametrize(("seed", "method"), list(enumerate(METHODS)))
def test_every_method_searches_any_space(seed: int, method: str, tmp_path: Path) -> None:
    space, random = _space(seed), np.random.default_rng(seed)
    dimensions = space.dimensions()
    for _ in range(10):
        point = space.draw(random)
        assert json.loads(json.dumps(point)) == point
        space.decoded(space.near(point, random))
        for path, kept in point.items():
            again = dimensions[path].stored(dimensions[path].unit(kept))
            assert again == (pytest.approx(kept) if isinstance(kept, float) else kept)
    how: dict[str, Any] = {"method": method, "seed": seed, "verbose": 0, "epochs": 3}
    whole = search.run(_moody, space, trials=14, **how)
    for trials in (7, 14):
        study = search.run(_moody, space, trials=trials, folder=tmp_path, **how)
    assert _points(study) == _points(whole) == _points(search.load(tmp_path))
    failed = {trial.reason for trial in whole.trials if trial.state == "failed"}
    assert failed <= {"value is NaN", "ValueError: a bad day"}


@optuna_5
@pytest.mark.parametrize("seed", [9, 12])
def test_tpe_proposes_what_optuna_alone_does(seed: int) -> None:
    space = _space(seed)
    study = search.run(_value, space, method="tpe", trials=14, seed=seed, verbose=0)
    dimensions, shortest = space.dimensions(), space.at(dict.fromkeys(space.dimensions(), 0.0))
    opens = any(isinstance(each, Choice) and each.opens for each in dimensions.values())
    theirs = optuna.create_study()
    for number in range(14):
        drawn = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        theirs.sampler = optuna.samplers.TPESampler(
            multivariate=True,
            constant_liar=True,
            seed=drawn,
            group=opens or shortest.keys() != dimensions.keys(),
        )
        asked = theirs.ask()

        def pick(path: str, each: Dimension, asked: Any = asked) -> Any:
            if isinstance(each, Uniform) and each.step is not None:
                return each.at(asked.suggest_int(path, 0, each.steps))
            return asked._suggest(path, each.distribution(optuna))

        assert _rounded(space.walk(pick)[0]) == _rounded(study.trials[number].point)
        # Not that of its own point: the last digit of a parameter changes it altogether.
        theirs.tell(asked, study.trials[number].value)


def _rounded(point: Point) -> Any:
    """Sums of ours and Optuna's differ in their last digits; kinds are the same."""
    return json.loads(json.dumps(point), parse_float="{:.9}".format)


def test_values_that_read_alike_open_what_is_theirs() -> None:
    opened = search.choice({1: {"a": search.integer(1, 2)}, "1": {"b": search.integer(3, 4)}})
    found = [Space({"kind": opened}).decoded(point) for point in Space({"kind": opened}).grid()]
    assert found == [
        {"kind": 1, "a": 1},
        {"kind": 1, "a": 2},
        {"kind": "1", "b": 3},
        {"kind": "1", "b": 4},
    ]


def test_a_study_goes_on_with_an_object_that_lies_elsewhere(tmp_path: Path) -> None:
    for trials in (1, 2):
        space = {"x": search.uniform(0, 1), "fixed": object()}
        study = search.run(lambda x, fixed: x, space, trials=trials, folder=tmp_path, verbose=0)
    assert len(study.trials) == 2


def test_broken_constraints_are_known_after_a_restart(tmp_path: Path) -> None:
    def both(x: float) -> dict[str, float]:
        return {"value": x, "size": x}

    how: dict[str, Any] = {
        "method": "tpe",
        "constraints": [search.at_least("size", 0.5)],
        "verbose": 0,
    }
    space = {"x": search.uniform(0, 1)}
    whole = search.run(both, space, trials=24, **how)
    search.run(both, space, trials=12, folder=tmp_path, **how)
    assert _points(search.run(both, space, trials=24, folder=tmp_path, **how)) == _points(whole)


def test_the_median_rule_does_not_go_by_what_is_no_number() -> None:
    def steps(x: float) -> Any:
        yield math.nan if x > 0.5 else x
        for _ in range(5):
            yield x

    space = {"x": search.uniform(0, 1)}
    study = search.run(steps, space, stop=search.Median(trials=3), trials=20, verbose=0)
    late = [trial for trial in study.trials[8:] if trial.parameters["x"] > 0.8]
    assert late
    assert {trial.state for trial in late} == {"stopped"}
