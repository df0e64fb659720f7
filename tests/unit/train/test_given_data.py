"""What `fit`, `evaluate` and `predict` take: dicts by name, sequences of any length, images whose
channels are last."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, nn, op
from caldera.errors import ConfigError, DataError
from caldera.train.predictors import filled_up


class Two(cd.Model):
    """Two inputs and two outputs, by name."""

    def __init__(self) -> None:
        super().__init__(loss={"sum": "mean_squared", "product": "mean_squared"})
        self.left, self.right = nn.Dense(1), nn.Dense(1)

    def forward(self, a: Any, b: Any) -> dict[str, Any]:
        return {"sum": self.left(a) + self.right(b), "product": self.left(a) * self.right(b)}


def test_dicts_are_matched_by_name() -> None:
    generator = np.random.default_rng(0)
    a, b, c, d = (generator.normal(size=(16, 1)).astype("float32") for _ in range(4))
    model = Two()
    model.fit((a, b), (c, d), epochs=1, verbose=0)
    wanted = model.evaluate((a, b), (c, d))
    assert model.evaluate({"b": b, "a": a}, {"product": d, "sum": c}) == wanted
    validation = ({"b": b, "a": a}, {"product": d, "sum": c})
    twin = Two()
    history = twin.fit({"b": b, "a": a}, {"product": d, "sum": c}, validation=validation, verbose=0)
    assert history["val_loss"]
    np.testing.assert_array_equal(model.predict({"b": b, "a": a}), model.predict(a, b))
    with pytest.raises(DataError, match="inputs called a, b, got b, c; name them as forward does"):
        model.fit({"b": b, "c": a}, (c, d))
    with pytest.raises(DataError, match="targets called sum, product"):
        model.fit((a, b), {"other": d, "sum": c})


def test_a_dict_with_its_target() -> None:
    x, y = np.eye(4, dtype="float32"), np.arange(4) % 2
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    model.fit({"label": y, "x": x}, validation={"x": x, "label": y}, verbose=0)
    np.testing.assert_array_equal(model.predict({"anything": x}), model.predict(x))


def ragged() -> tuple[list[np.ndarray], np.ndarray]:
    generator = np.random.default_rng(0)
    x = [generator.normal(size=(n, 3)).astype("float32") for n in generator.integers(2, 20, 64)]
    return x, np.array([int(each[:, 0].sum() > 0) for each in x])


def test_sequences_of_different_lengths(tmp_path: Path) -> None:
    x, y = ragged()
    model = cd.NeuralNetwork([nn.Input((None, 3)), nn.GRU(8), nn.Dense(2)], learning_rate=0.02)
    history = model.fit(data.RaggedData(x, y, buckets=2), validation=0.25, epochs=6, verbose=0)
    assert history["loss"][-1] < 0.9 * history["loss"][0]
    found = model.predict(x[:4])
    # Padding has no influence: each alone gives the same.
    for number in (0, 3):
        np.testing.assert_allclose(model.predict(x[number][None])[0], found[number], atol=1e-6)
    again = cd.load(model.save(tmp_path / "ragged.caldera"))
    np.testing.assert_array_equal(again.predict(x[:4]), found)
    wanted, padded = model.evaluate(x, y), model.evaluate(data.RaggedData(x, y, buckets=1))
    assert wanted == pytest.approx(padded)


def test_a_network_without_an_input_learns_that_lengths_differ(tmp_path: Path) -> None:
    x, y = ragged()
    model = cd.NeuralNetwork([nn.LSTM(4, return_sequences=True), nn.Dense(2)], loss="mean_squared")
    targets = [
        np.repeat(label, len(each))[:, None] * np.ones((1, 2), "float32")
        for each, label in zip(x, y, strict=True)
    ]
    model.fit(data.RaggedData(x, targets, buckets=2), verbose=0)
    steps = cd.load(model.save(tmp_path / "steps.caldera")).predict(x[:4])
    assert [each.shape for each in steps] == [(len(each), 2) for each in x[:4]]


def test_outputs_as_many_as_steps_are_not_cut() -> None:
    model = cd.NeuralNetwork([nn.Input((None, 3)), nn.MeanPooling(), nn.Dense(10)])
    given = [np.ones((9, 3), "float32"), np.ones((4, 3), "float32")]
    assert filled_up(9) == 10
    assert model.predict(given).shape == (2, 10)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.TransformerBlock(1, return_mask=True), nn.MeanPooling()],
        [nn.GRU(4, return_sequences=True, return_mask=True), nn.MeanPooling()],
        [nn.MeanPooling()],
    ],
)
def test_masks_reach_the_layers_that_take_them(layers: list[nn.Layer]) -> None:
    x, y = ragged()
    model = cd.NeuralNetwork([nn.Input((None, 3)), *layers, nn.Dense(2)])
    model.fit(data.RaggedData(x, y, buckets=1), verbose=0)
    assert model.predict(x[:5]).shape == (5, 2)


def test_words_of_different_lengths() -> None:
    words = [[1, 2, 3], [4], [2, 2], [1, 4, 4, 2]]
    model = cd.NeuralNetwork(
        [
            nn.Input((None,), dtype="int64"),
            nn.Embedding(5, 4, mask_zero=True),
            nn.MeanPooling(),
            nn.Dense(2),
        ]
    )
    model.fit(words, [0, 1, 0, 1], verbose=0)
    np.testing.assert_allclose(model.predict(words)[1], model.predict([[4]])[0], atol=1e-6)


def test_a_file_for_other_frameworks_has_one_length(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model = cd.NeuralNetwork([nn.Input((None, 3)), nn.MeanPooling(), nn.Dense(2)])
    with pytest.raises(ConfigError, match="sequences of a fixed length, got one for any length"):
        cd.onnx.export(model, tmp_path / "ragged.onnx")


def test_a_network_for_one_length_says_so() -> None:
    x, y = ragged()
    model = cd.NeuralNetwork([nn.Input((5, 3)), nn.Flatten(), nn.Dense(2)])
    with pytest.raises(DataError, match=r"nn\.Input\(\(None, \.\.\.\)\)"):
        model.fit(x, y, verbose=0)
    open_ended = cd.NeuralNetwork([nn.Input((None, 3)), nn.GRU(4), nn.Dense(2)])
    with pytest.raises(DataError, match=r"samples of shape \(any, 3\), got \(5, 4\)"):
        open_ended.predict(np.zeros((1, 5, 4), "float32"))


def test_images_with_channels_last_are_told_so() -> None:
    x, y = np.random.default_rng(0).normal(size=(8, 6, 5, 3)).astype("float32"), np.arange(8) % 2
    rest = [nn.Conv2D(2, 3), nn.Flatten(), nn.Dense(2)]
    first = cd.NeuralNetwork([nn.Input((3, 6, 5)), *rest])
    with pytest.raises(DataError, match=r"\(6, 5, 3\), with the channels last; .*layout='NHWC'"):
        first.fit(x, y)
    unsure = cd.NeuralNetwork([nn.Conv2D(2, 3), nn.Flatten(), nn.Dense(2)])
    with pytest.warns(UserWarning, match="channels-last"):
        unsure.fit(x, y, verbose=0)
    told = cd.NeuralNetwork([nn.Input((6, 5, 3), layout="NHWC"), *rest])
    told.fit(x, y, verbose=0)
    moved = cd.NeuralNetwork([nn.Input((3, 6, 5)), *rest])
    np.testing.assert_array_equal(told.predict(x), moved.predict(np.moveaxis(x, -1, 1)))


def test_elements_of_tensors_as_in_the_seed() -> None:
    t = cd.Tensor((2, 3), fill=cd.constant(1.0))
    t.set((1, -1), 8.0)
    assert (t.get((1, 2)), t.get([0, 0])) == (8.0, 1.0)
    for bad in ((1,), (1, 2, 3), (1, slice(None)), "ab", 1.5):
        with pytest.raises(IndexError, match="integer for each of 2 axes"):
            t.get(bad)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        t.set((2, 0), 1.0)
    assert cd.tensor(3).get(()) == 3
    assert float(op.sum(t).eval()) == 13.0


@pytest.mark.parametrize("scaled", [False, True])
def test_rows_in_raw_units_are_named_once(scaled: bool) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32") * [1, 500, 1]
    first = [nn.Rescale.fit(x)] if scaled else []
    model = cd.NeuralNetwork([nn.Input((3,)), *first, nn.Dense(1)], "mse")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            model.fit((x, x[:, :1]), epochs=1, verbose=0)
    found = [str(each.message) for each in said]
    assert len(found) == (0 if scaled else 1)
    assert scaled or "column 1 of the inputs has the mean size" in found[0]
