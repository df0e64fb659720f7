"""Spaces: what is drawn from them, stored of them, and refused."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from caldera import search
from caldera.errors import ConfigError
from caldera.search.space import Space

RANDOM = np.random.default_rng


def _space() -> Space:
    return Space(
        {
            "rate": search.log(1e-4, 1e-1),
            "share": search.uniform(0.0, 0.5, step=0.1),
            "width": search.integer(64, 256, step=64),
            "count": search.integer(1, 100, log=True),
            "activation": search.choice(["relu", "tanh", None, True, 1]),
            "optimizer": search.choice(
                {
                    "adam": {"beta": search.uniform(0.8, 0.9)},
                    "sgd": {"momentum": search.choice([0, 1])},
                }
            ),
            "block": {"depth": search.integer(1, 2), "kind": search.choice([(3, 3), (5, 5)])},
            "classes": 10,
        }
    )


def test_every_point_can_be_stored_moved_and_decoded_again() -> None:
    space, random = _space(), RANDOM(0)
    for _ in range(200):
        point = space.draw(random)
        parameters = space.decoded(point)
        assert json.loads(json.dumps(point)) == point
        assert parameters["classes"] == 10
        assert 1e-4 <= parameters["rate"] <= 1e-1
        assert parameters["width"] in (64, 128, 192, 256)
        assert parameters["block"]["kind"] in ((3, 3), (5, 5))
        assert ("beta" in parameters) == (parameters["optimizer"] == "adam")
        near = space.near(point, random)
        assert near != point
        space.decoded(near)
        for path, dimension in space.dimensions().items():
            if path in point:
                unit = dimension.unit(point[path])
                assert 0 <= unit <= 1
                again = dimension.stored(unit)
                assert (
                    again == pytest.approx(point[path])
                    if isinstance(again, float)
                    else (again == point[path])
                )


def test_dimensions_are_all_that_any_point_may_have() -> None:
    space, random = _space(), RANDOM(1)
    seen = {path for _ in range(50) for path in space.draw(random)}
    assert seen == set(space.dimensions())
    assert space.at(dict.fromkeys(space.dimensions(), 0.5)).keys() <= seen


def test_a_grid_visits_each_point_once_also_behind_choices() -> None:
    space = Space(
        {
            "a": search.integer(1, 3),
            "b": search.choice({"x": {"c": search.choice([0, 1])}, "y": None}),
            "d": search.uniform(0, 1, step=0.5),
        }
    )
    points = [tuple(sorted(point.items())) for point in space.grid()]
    assert len(points) == len(set(points)) == 3 * (2 + 1) * 3
    with pytest.raises(ConfigError, match=r"grid over e: expected a dimension with steps"):
        list(Space({"e": search.uniform(0, 1)}).grid())


def test_two_choices_may_open_the_same_name() -> None:
    space = Space(
        {
            "optimizer": search.choice(
                {"adam": {"rate": search.log(1e-4, 1e-2)}, "sgd": {"rate": search.log(1e-2, 1.0)}}
            )
        }
    )
    assert set(space.dimensions()) == {"optimizer", "optimizer=adam.rate", "optimizer=sgd.rate"}
    assert space.decoded({"optimizer": "sgd", "optimizer=sgd.rate": 0.5})["rate"] == 0.5


def test_values_that_look_alike_stay_apart() -> None:
    made = search.choice([1, True, 1.0, "1", None])
    assert [made.value(label) for label in made.labels] == [1, True, 1.0, "1", None]
    assert [type(made.value(label)) for label in made.labels] == [int, bool, float, str, type(None)]
    anything = search.choice([math.sin, math.cos, object()])
    assert anything.value(anything.labels[1]) is math.cos


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Space({}), "expected something to choose, got an empty space"),
        (lambda: Space({"a": 3}), "expected something to choose"),
        (lambda: Space([("a", 1)]), "expected a dict from names to dimensions"),  # type: ignore[arg-type]
        (lambda: Space({"a": [1, 2]}), r"space a: .*write search.choice"),
        (lambda: Space({"a.b": search.integer(1, 2)}), "names without"),
        (lambda: Space({"a": search.choice({"x": {"b": 1}}), "b": 2}), "no other parameter has"),
        (lambda: search.uniform(1, 1), "two numbers, the smaller first"),
        (lambda: search.uniform(0, math.nan), "two numbers"),
        (lambda: search.uniform(0, 1, step=2), "step= a number up to 1"),
        (lambda: search.log(0, 1), "above 0"),
        (lambda: search.integer(1, 2.5), "whole number"),  # type: ignore[arg-type]
        (lambda: search.integer(3, 1), "smaller first"),
        (lambda: search.integer(0, 9, log=True), "at least 1"),
        (lambda: search.choice([]), "at least one value"),
        (lambda: search.choice("relu"), "a list of values"),
        (lambda: search.choice([1, 1]), "values that differ"),
        (lambda: search.choice({"a": 3}), "a dict of what 'a' opens"),
    ],
)  # fmt: skip
def test_spaces_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_build_has_to_take_the_names() -> None:
    def build(width: int, rate: float = 0.1) -> None: ...

    one = search.integer(1, 4)
    Space({"width": one}).check_build(build)
    with pytest.raises(ConfigError, match=r"space ratte: .*did you mean 'rate'"):
        Space({"width": one, "ratte": one}).check_build(build)
    with pytest.raises(
        ConfigError, match=r"space width: expected a dimension for what build needs"
    ):
        Space({"rate": one}).check_build(build)
    with pytest.raises(ConfigError, match="dept"):
        Space({"width": search.choice({8: {"dept": one}})}).check_build(build)
    Space({"anything": one}).check_build(lambda **names: None)
