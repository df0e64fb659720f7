"""The OpenAPI description: what it allows is accepted, and answers are what it says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, serve
from tests.unit.serve.conftest import reply, samples

jsonschema = pytest.importorskip("jsonschema")


def _schemas(app: serve.Application) -> tuple[Any, Any, Any]:
    """The schemas of a request and of its answer, and the example."""
    found = reply(app, "/openapi.json", method="GET").json
    assert found["openapi"].startswith("3.1")
    post = found["paths"]["/predict"]["post"]
    asked = post["requestBody"]["content"]["application/json"]
    answer = post["responses"]["200"]["content"]["application/json"]["schema"]
    for schema in (asked["schema"], answer):
        jsonschema.Draft202012Validator.check_schema(schema)
    return asked["schema"], answer, asked["example"]


def _check(app: serve.Application, given: dict[str, Any]) -> Any:
    asked, answer, _ = _schemas(app)
    jsonschema.validate(given, asked)
    found = reply(app, "/predict", samples(*given["samples"]))
    assert found.status == 200
    jsonschema.validate(found.json, answer)
    return found.json


def test_examples_and_answers_of_each_kind(
    digits_app: serve.Application, table_app: serve.Application, homes_model: cd.Model
) -> None:
    array = cd.NeuralNetwork([nn.Input((3,)), nn.Dense(2)], loss="mean_squared")
    homes = serve.application(homes_model, limits=serve.Limits(batch_size=2))
    plain = serve.application(array, limits=serve.Limits(batch_size=2))
    for app in (digits_app, table_app, homes, plain):
        _check(app, _schemas(app)[2])
    _check(digits_app, {"samples": np.zeros((2, 1, 8, 8)).tolist()})
    found = _check(homes, {"samples": [{"area": None, "city": "Bern", "it's": 2}]})
    assert found["target"] == "price"
    assert len(found["notes"]) == 2


@pytest.mark.parametrize(
    "given",
    [
        {"samples": [{"area": 1, "city": "Oslo"}]},
        {"samples": [{"area": 1, "city": "Oslo", "it's": 2, "age": 3}]},
        {"samples": [{"area": [1], "city": "Oslo", "it's": 2}]},
        {"samples": []},
        {"rows": []},
    ],
)
def test_what_it_does_not_allow_is_refused(homes_model: cd.Model, given: dict[str, Any]) -> None:
    app = serve.application(homes_model, limits=serve.Limits(batch_size=2))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(given, _schemas(app)[0])
    found = reply(app, "/predict", samples(*given["samples"]) if "samples" in given else b"{}")
    assert found.status == 422


def test_a_service_with_a_token_says_so(table_model: cd.Model) -> None:
    app = serve.application(table_model, token="a" * 32, limits=serve.Limits(batch_size=2))
    refused = reply(app, "/openapi.json", method="GET")
    assert refused.status == 401
    given = {"authorization": "Bearer " + "a" * 32}
    found = reply(app, "/openapi.json", method="GET", **given).json
    assert found["security"] == [{"token": []}]
