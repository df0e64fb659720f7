"""Spaces: what is drawn from them, stored of them, and refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, search
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


def test_steps_of_any_length_can_be_kept_by_optuna() -> None:
    odd = search.uniform(0.9573071096425678, 0.9584443450259533, step=0.0011372353833854687)
    far = search.uniform(-0.002279026489055327, 1000.0, step=np.float64(153.47749166893848))
    study = search.run(lambda odd, far: odd + far, {"odd": odd, "far": far}, method="grid")
    assert len(study.trials) == 2 * 7
    assert search.uniform(0.1, 0.5, step=0.2).grid() == [0.1, 0.3, 0.5]
    tpe = search.run(lambda odd, far: odd + far, {"odd": odd, "far": far}, method="tpe", trials=12)
    assert {trial.state for trial in tpe.trials} == {"done"}


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
        (lambda: search.integer(1, 2.5), "integer"),  # type: ignore[arg-type]
        (lambda: search.integer(3, 1), "smaller first"),
        (lambda: search.integer(0, 9, log=True), "at least 1"),
        (lambda: search.choice([]), "at least one value"),
        (lambda: search.choice("relu"), "a list of values"),
        (lambda: search.choice([1, 1]), "values that differ"),
        (lambda: search.choice({"a": 3}), "a dict of the dimensions of 'a'"),
    ],
)
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
        ConfigError, match=r"space width: expected a dimension for each requirement of build"
    ):
        Space({"rate": one}).check_build(build)
    with pytest.raises(ConfigError, match="dept"):
        Space({"width": search.choice({8: {"dept": one}})}).check_build(build)
    Space({"anything": one}).check_build(lambda **names: None)


# --- architectures

OPERATIONS = {
    "conv": lambda: nn.Conv2D(2, 3, padding="same"),
    "skip": list,
    "tanh": lambda: nn.Activation("tanh"),
}


def _architectures() -> Space:
    body = {
        "Dense": {"units": search.choice([4, 8])},
        "Dropout": {"rate": search.uniform(0.1, 0.5)},
    }
    return Space(
        {
            "motifs": search.hierarchy(OPERATIONS, [(2, 3), (1, 3)]),
            "cell": search.cell(OPERATIONS, nodes=2),
            "body": search.layers(body, 0, 2),
            "widths": search.repeat(search.integer(1, 3), 2, 2),
            "blocks": search.repeat({"kind": search.choice({"a": {"size": 3}, "b": None})}, 1, 2),
        }
    )


def test_architectures_become_networks_that_can_be_saved(tmp_path: Path) -> None:
    space, random = _architectures(), RANDOM(0)
    x = random.normal(size=(3, 2, 5, 5)).astype("float32")
    paths = set(space.dimensions())
    for index in range(100):
        point = space.draw(random)
        assert set(point) <= paths
        value = space.decoded(space.near(point, random))
        assert len(value["widths"]) == 2
        made = [
            search.make_cell(value["motifs"], OPERATIONS),
            search.make_cell(value["cell"], OPERATIONS, "loose"),
            nn.Flatten(),
            *search.make_layers(value["body"]),
        ]
        if index > 1:
            continue
        model = cd.NeuralNetwork([nn.Input((2, 5, 5)), *made, nn.Dense(2)])
        again = cd.load(model.save(tmp_path / "made.caldera"))
        assert np.array_equal(again.predict(x), model.predict(x))


def test_layers_that_open_the_same_name_have_paths_of_their_own() -> None:
    choices = {
        "Dense": {"units": search.choice([4, 8])},
        "LSTM": {"units": search.choice([2, 3, 5])},
    }
    space = Space({"body": search.layers(choices, 1, 2)})
    assert {"body.0.layer=Dense.units", "body.1.layer=LSTM.units"} <= set(space.dimensions())
    study = search.run(
        lambda body: sum(each["units"] for each in body), space, method="tpe", trials=20
    )
    assert {trial.state for trial in study.trials} == {"done"}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: search.repeat([1, 2], 1, 2), "a dimension or a dict"),
        (lambda: search.repeat(search.integer(1, 2), 3, 2), "most= an integer >= 3"),
        (lambda: search.layers({"Densse": None}, 1, 2), "did you mean 'Dense'"),
        (lambda: search.layers({}, 1, 2), "a dict of layers"),
        (lambda: search.cell("conv"), "names of operations"),
        (lambda: search.hierarchy(["none"]), "'none' is always included"),
        (lambda: search.hierarchy(["conv"], [(2, 2)]), "one motif"),
        (lambda: search.make_cell([{"sources": [0], "operations": ["x"]}], {}), "operation for"),
        (lambda: nn.Cell([[1]], [nn.ReLU()]), "nodes before node 1"),
        (lambda: nn.Cell([[0]], []), "a layer for each of 1 sources"),
        (lambda: nn.Cell([[0]], [nn.ReLU()], "first"), "last"),
    ],
)
def test_architectures_that_make_no_sense_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize("method", ["evolution", "hierarchical", "controller", "tpe", "random"])
def test_architectures_are_searched_by_every_method(method: str) -> None:
    def cost(motifs: Any, cell: Any, body: Any, widths: Any, blocks: Any) -> float:
        edges = [edge for level in motifs for motif in level for edge in motif.values()]
        return sum(each != "conv" for each in edges[:6]) + len(body) + sum(widths) + len(blocks)

    study = search.run(cost, _architectures(), method=method, trials=120 if method != "tpe" else 40)
    first = [trial.value for trial in study.trials[:20]]
    assert study.best.value <= np.median(first) - 2  # type: ignore[arg-type, operator]
