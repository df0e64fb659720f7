"""The threshold of a rare class: chosen by F1, kept in the model, and followed by everything."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn
from caldera.data import Schema
from caldera.errors import ConfigError, DataError
from caldera.serve.signature import Contract, json_answer
from caldera.train.tracking.evaluation import best_threshold
from tests.cli.conftest import Caldera
from tests.cli.conftest import caldera as caldera  # the fixture


def f1_of(likely: np.ndarray, positive: np.ndarray, threshold: float) -> float:
    called = likely >= threshold
    return 2 * (called & positive).sum() / max(called.sum() + positive.sum(), 1)


@pytest.mark.parametrize("seed", range(6))
def test_no_threshold_has_a_larger_f1(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 40))
    positive = random.random(count) < 0.3
    likely = random.random(count).round(int(random.integers(1, 5))) * 0.6 + 0.4 * positive
    found = best_threshold(likely, positive)
    assert found.f1 == pytest.approx(f1_of(likely, positive, found.probability))
    levels = np.linspace(0, 1.01, 500)
    assert found.f1 >= max(f1_of(likely, positive, each) for each in levels) - 1e-12


def rare(count: int = 600) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    width, noise = random.normal(size=(2, count))
    return {"width": width, "state": np.where(width + noise / 2 > 1.8, "bad", "good")}


def test_models_keep_it_and_names_follow_it(tmp_path: Path) -> None:
    parts = data.table(rare(), "state").hold_out(0.3)
    model = cd.NeuralNetwork([nn.Input((1,)), nn.Dense(2)], learning_rate=0.05, epochs=5, seed=1)
    model.fit(parts.train, verbose=0)
    before = model.predict(parts.test.x)
    found = model.choose_threshold(parts.validation)
    assert (found.name, found.probability < 0.5) == ("bad", True)
    model = cd.load(model.save(tmp_path / "m.caldera"))
    assert np.array_equal(model.predict(parts.test.x), before)
    named = model.schema.decode(before, probabilities=True)
    likely = named["probability of bad"]
    assert np.array_equal(named["state"] == "bad", likely >= found.probability)
    mine = np.where(named["state"] == "bad", likely, 1 - likely)
    assert np.allclose(named["probability"], mine)
    said = json.loads(json_answer(before, Contract.of(model, "m")))["predictions"]
    assert [each["class"] for each in said] == named["state"].tolist()
    assert model.choose_threshold(parts.validation, 0.25).probability == 0.25
    for wrong in ({"name": "good one"}, {"probability": 1.5}):
        plain = model.schema.to_plain()
        with pytest.raises(DataError, match="threshold"):
            Schema.from_plain(plain | {"threshold": plain["threshold"] | wrong}, "m")


def test_only_two_classes_have_one() -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    with pytest.raises(ConfigError, match="a model of two classes"):
        model.choose_threshold((np.zeros((6, 4), "float32"), np.arange(6) % 3))
    with pytest.raises(ConfigError, match="a probability between 0 and 1"):
        model.choose_threshold((np.zeros((6, 4), "float32"), np.arange(6) % 2), 1.0)


def test_the_command_line_chooses_on_held_out_rows(caldera: Caldera, tmp_path: Path) -> None:
    table, out = tmp_path / "parts.csv", tmp_path / "out"
    rows = zip(*rare().values(), strict=True)
    table.write_text("\n".join(["width,state", *(f"{a:.4f},{b}" for a, b in rows)]))
    words = ["train", "--data", table, "--hidden", 4, "--epochs", 3, "--dropout", 0, "--quiet"]
    done = caldera(*words, "--threshold", "best-f1", "--out", out)
    assert done.status == 0, done.err
    assert "chosen by F1 on 20% held out of the training data (96 samples)" in done.out
    assert "model   'bad' is predicted from a probability of 0." in done.out
    done = caldera(*words, "--threshold", "0.05", "--out", out)
    assert "'bad' is predicted from a probability of 0.05: F1 0." in done.out
    done = caldera("predict", out / "parts.caldera", table, "--probabilities")
    lines = [line.split(",") for line in done.out.splitlines()]
    place = lines[0].index("probability of bad")
    assert all((row[2] == "bad") == (float(row[place]) >= 0.05) for row in lines[1:])
    assert caldera(*words, "--threshold", "most", "--out", out).status == 2
