"""Simple models stand next to a trained one, with the same measures on the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.train.tracking import leaderboard as board
from caldera.train.tracking.leaderboard import leader, leaderboard, plain_columns, rows_of
from tests.cli.conftest import Caldera
from tests.cli.conftest import caldera as caldera  # the fixture


def rows(seed: int, count: int = 400) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    x, z = random.normal(size=(2, count))
    city = random.choice(["Roma", "Oslo", "Bern"], count)
    score = 2 * x - z + (city == "Oslo") + random.normal(0, 0.5, count)
    z[::7] = np.nan
    return {"x": x, "z": z, "city": city, "value": score}


def model_of(found: data.Dataset) -> cd.NeuralNetwork:
    loss = "cross_entropy" if found.classes else "mean_squared"
    layers = [nn.Input(found.shape), nn.Dense(found.outputs)]
    model = cd.NeuralNetwork(layers, loss=loss, learning_rate=0.02, epochs=2, seed=1)
    model.fit(found.train, verbose=0)
    return model


def test_values_are_judged_in_the_unit_of_the_target() -> None:
    given = rows(0)
    given["value"] = 1000 + 50 * given["value"]
    found = data.table(given, "value")
    model = model_of(found)
    constant, linear, boosted, ours = leaderboard(model, found)
    actual = found.test.y[:, 0]
    mean = found.train.y.mean()
    assert constant.loss == pytest.approx(np.sqrt(np.mean((actual - mean) ** 2)), rel=1e-5)
    assert linear.score > 0.7 > 0.0 >= constant.score
    assert boosted.name == "gradient boosting (scikit-learn)"
    predicted = model.predict(found.test.x)[:, 0]
    assert ours.loss == pytest.approx(np.sqrt(np.mean((actual - predicted) ** 2)), rel=1e-5)
    assert ours.name == "this model"


def test_classes_are_judged_as_evaluate_does() -> None:
    given = rows(1)
    given["kind"] = np.digitize(given.pop("value"), [-1, 1]).astype(str)
    found = data.table(given, "kind")
    model = model_of(found)
    constant, linear, boosted, ours = leaderboard(model, found)
    results = model.evaluate(found.test)
    assert (ours.loss, ours.score) == pytest.approx((results["loss"], results["accuracy"]), 1e-4)
    shares = np.bincount(found.train.y) / len(found.train)
    assert constant.loss == pytest.approx(-np.log(shares[found.test.y]).mean())
    assert linear.loss < 0.7 * constant.loss
    assert boosted.score > constant.score
    sure = np.array([[0.9, 0.1]] * 10)
    assert leader("sure", sure, np.arange(10) % 2, 2).calibration == pytest.approx(0.4)


def test_simple_models_do_without_libraries_and_other_data_have_no_leaderboard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = data.table(rows(2, 40), "value")
    model = model_of(found)
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    names = [each.name for each in leaderboard(model, found)]
    assert names == ["constant answer", "linear model", "this model"]
    assert leaderboard(model, data.table(rows(2, 40), "value", test=0)) == []
    digits = data.digits()
    network = cd.NeuralNetwork([nn.Input(digits.shape), nn.Flatten(), nn.Dense(10)])
    assert leaderboard(network, digits) == []


def test_trees_see_categories_and_gaps() -> None:
    given = rows(3, 60) | {"day": np.datetime64("2024-01-01") + np.arange(60)}
    found = data.table(given, "value")
    x, _ = rows_of(found.train, 0)
    columns, categories = plain_columns(x, found.schema)
    names = [each.name for each in found.schema.columns]
    assert (names[2], categories) == ("city", [2])
    assert sorted(np.unique(columns[:, 2])) == [0, 1, 2]
    assert np.isnan(columns[:, 1]).sum() == x[:, 2].sum() > 3
    assert columns.shape[1] == 3 + found.schema.columns[3].width


def test_the_command_and_the_page_show_it(caldera: Caldera, tmp_path: Any) -> None:
    table, out = tmp_path / "t.csv", tmp_path / "out"
    given = rows(4, 150)
    lines = [",".join(map(str, row)) for row in zip(*given.values(), strict=True)]
    table.write_text("\n".join([",".join(given), *lines]).replace("nan", ""))
    flags = "--hidden 4 --epochs 2 --dropout 0 --keep-best --quiet --out"
    done = caldera("train", "--data", table, *flags.split(), out)
    lines = done.out.splitlines()
    assert done.status == 0
    (held,) = [line for line in lines if line.startswith("holdout ")]
    assert "24 held-out samples of the training data" in held
    assert [line for line in lines if line.startswith("test    loss")]
    after = lines[[line.startswith("model   chosen by") for line in lines].index(True) + 1 :]
    firsts = ["on the test", "constant", "linear", "gradient boosting (scikit-learn)", "this model"]
    assert all(each.strip().startswith(first) for each, first in zip(after, firsts, strict=False))
    assert caldera("report", out).status == 0
    page = (out / "report.html").read_text()
    assert page.index("Leaderboard") < page.index("constant answer") < page.index("this model")
    record = cd.RunFolder(out).record()
    assert record.held_out.keys() == record.results.keys()
