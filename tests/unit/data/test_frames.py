"""Frames of polars and data sets of Hugging Face as tables: read, trained on, predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.errors import ConfigError, DataError

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


def test_images_and_vectors_of_hugging_face_are_samples() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    random = np.random.default_rng(0)
    pixels = random.integers(0, 255, (6, 8, 8, 3)).astype("uint8")
    columns = {"image": [images.fromarray(each) for each in pixels], "label": [0, 1] * 3}
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    given = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    model = cd.NeuralNetwork([nn.Input((3, 8, 8)), nn.Flatten(), nn.Dense(2)])
    assert model.fit(given, epochs=1, verbose=0)["loss"]
    expected = model.evaluate(pixels.transpose(0, 3, 1, 2) / np.float32(255), columns["label"])
    assert model.evaluate(given) == pytest.approx(expected, rel=1e-5)
    vectors = datasets.Dataset.from_dict({"x": random.normal(size=(6, 4)), "y": [0, 1] * 3})
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    assert model.fit(vectors, validation=vectors, epochs=1, verbose=0)["val_loss"]
    with pytest.raises(ConfigError, match=r"give one, such as dataset\['train'\]"):
        model.fit(datasets.DatasetDict({"train": vectors, "test": vectors}))


def _pandas() -> Any:
    return pytest.importorskip("pandas").DataFrame(COLUMNS)


def _rows() -> Any:
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]


@pytest.mark.parametrize("make", [_pandas, _polars, _hugging_face, _rows])
def test_a_table_with_its_target_is_read_first(make: Any) -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    with pytest.raises(
        DataError, match=r"'age', 'city', 'ill'; fit cd\.data\.table\(table, 'ill'\)"
    ):
        model.fit(make())
