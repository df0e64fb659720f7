"""Frames of polars and data sets of Hugging Face as tables: read, trained on, predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError

COLUMNS: dict[str, list[Any]] = {
    "age": np.random.default_rng(0).normal(40, 9, 60).round(2).tolist(),
    "city": ["Oslo", "Roma", "Bern"] * 20,
    "ill": [0, 1] * 30,
}


def _polars() -> Any:
    return pytest.importorskip("polars", reason="polars is not installed").DataFrame(COLUMNS)


def _hugging_face() -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    names = datasets.ClassLabel(names=["fit", "ill"])
    kinds = {"age": datasets.Value("float64"), "city": datasets.Value("string"), "ill": names}
    return datasets.Dataset.from_dict(COLUMNS, features=datasets.Features(kinds))


@pytest.mark.parametrize("make", [_polars, _hugging_face])
def test_frames_are_tables(make: Any) -> None:
    frame = make()
    found, expected = cd.data.table(frame, "ill"), cd.data.table(COLUMNS, "ill")
    np.testing.assert_array_equal(found.train.x, expected.train.x)
    np.testing.assert_array_equal(found.train.y, expected.train.y)
    model = cd.NeuralNetwork([nn.Input(found.shape), nn.Dense(2)])
    model.fit(found.train, verbose=0)
    new = {name: COLUMNS[name] for name in ("city", "age")}
    other = frame.select(["city", "age"]) if make is _polars else frame.remove_columns("ill")
    np.testing.assert_array_equal(model.predict(other), model.predict(new))
    assert model.explain(other).amounts.shape == (60, 2)


def test_classes_of_hugging_face_have_their_names_and_parts_are_asked_for() -> None:
    frame = _hugging_face()
    assert cd.data.table(frame, "ill").class_names == ("fit", "ill")
    datasets = pytest.importorskip("datasets")
    with pytest.raises(ConfigError, match=r"train, test; give one, such as dataset\['train'\]"):
        cd.data.table(datasets.DatasetDict({"train": frame, "test": frame}), "ill")
