"""The codec of plain data: what is written in files is what was always written there."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.base.plain_data import (
    decoded,
    encoded,
    from_plain,
    json_digest,
    plain,
    revived,
    to_plain,
)
from caldera.errors import ConfigError, DataError


@dataclass(frozen=True)
class Part:
    size: int
    rates: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Whole:
    name: str
    parts: list[Part]
    best: float | None = None


WHOLE = Whole("run", [Part(1), Part(2, {"a": math.inf, "b": 0.5})], math.nan)


def test_the_text_of_a_record() -> None:
    text = json.dumps(to_plain(WHOLE), allow_nan=False)
    assert text == (
        '{"name": "run", "parts": [{"size": 1, "rates": {}}, '
        '{"size": 2, "rates": {"a": "inf", "b": 0.5}}], "best": "nan"}'
    )
    found = from_plain(Whole, json.loads(text), "run")
    assert math.isnan(found.best or 0.0)
    assert (found.name, found.parts) == (WHOLE.name, WHOLE.parts)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        ({"name": 3, "parts": []}, "run.name: expected str, got 3"),
        (
            {"name": "n", "parts": [{"size": True, "rates": {}}]},
            r"run.parts\[0\].size: expected int, got True",
        ),
        ({"name": "n"}, "another set of keys: parts"),
        ({"name": "n", "parts": [], "more": 1}, "another set of keys: more"),
        ({"name": "n", "parts": [], "best": "none"}, "run.best: expected float or NoneType"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(spoiled: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_plain(Whole, spoiled, "run")


def test_the_text_of_a_state() -> None:
    state = {"best": -math.inf, "seen": (1, [math.nan, None]), "float": {"float": 2.0}}
    text = json.dumps(encoded(state), allow_nan=False)
    assert text == (
        '{"best": {"float": "-inf"}, "seen": [1, [{"float": "nan"}, null]], '
        '"float": {"float": 2.0}}'
    )
    found = decoded(json.loads(text))
    assert found["best"] == -math.inf
    assert math.isnan(found["seen"][1][0])
    assert found["float"] == {"float": 2.0}


def test_the_text_of_configs() -> None:
    adam = optim.Adam(optim.Cosine(0.1, steps=np.int64(9)), groups=[optim.Group("bias")])
    text = json.dumps(adam.config())
    assert text.startswith(
        '{"kind": "optimizer", "name": "adam", "arguments": {"learning_rate": {"kind": '
        '"schedule", "name": "cosine", "arguments": {"peak": 0.1, "steps": 9, '
    )
    again = optim.optimizers.from_config(json.loads(text))
    assert again.config() == adam.config()
    layer = nn.Dense(3, fill=cd.constant(2.0))
    assert json.dumps(nn.to_config(layer)) == (
        '{"layer": "Dense", "units": 3, "activation": null, "bias": true, '
        '"fill": {"filler": "constant", "value": 2.0}}'
    )


@pytest.mark.parametrize("value", [{"a": 1}, [{"a": 1}], object(), {1}])
def test_a_config_refuses_what_it_could_not_read_again(value: object) -> None:
    group = optim.Group(["bias"], learning_rate_factor=1.0)
    # As of a class of a user's own, which takes anything.
    object.__setattr__(group, "_made_with", ((["bias"],), {"weight_decay": value}))
    with pytest.raises(ConfigError, match="a JSON-serialisable value"):
        group.config()


def test_dicts_are_converted_only_where_they_are_plain() -> None:
    assert plain([{"a": 1}, (2,)], str, dicts=False) == ["{'a': 1}", ["2"]]
    assert plain([{"a": 1}, (2,)], str) == [{"a": "1"}, ["2"]]
    assert revived([[{"a": {}}], "b"], dict) == [[{"a": {}}], "b"]


def test_the_name_of_content_is_that_of_older_checkpoints() -> None:
    assert json_digest([["add", "native"]]) == "832f311d6b31828620f7e263c4fe70e5"
