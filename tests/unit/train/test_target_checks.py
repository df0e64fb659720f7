"""Targets that do not fit the loss are refused in words about the data, with a way out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError

X = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
CLASSES = np.arange(20) % 3


def fit(outputs: int, targets: Any, loss: Any = "cross_entropy", **more: Any) -> cd.History:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(outputs)], loss=loss)
    return model.fit((X, targets), verbose=0, **more)


@pytest.mark.parametrize("targets", [X[:, 0], X[:, :1], CLASSES.astype("float64")])
def test_values_are_no_classes(targets: np.ndarray) -> None:
    with pytest.raises(DtypeError, match=r"loss='mean_squared'.*astype"):
        fit(3, targets)


def test_rows_of_probabilities_have_a_loss_of_their_own() -> None:
    rows = np.eye(3, dtype="float32")[CLASSES]
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    with pytest.raises(
        DtypeError, match=r"CrossEntropy\(probabilities=True\) accepts rows.*fit sets it"
    ):
        model.evaluate(X, rows)
    model.loss = nn.losses.CrossEntropy(probabilities=True)
    model.evaluate(X, rows)


def test_one_value_for_each_sample_is_taken_for_a_column() -> None:
    model, again = (
        cd.NeuralNetwork([nn.Input((X.shape[1],)), nn.Dense(1)], "mse") for _ in range(2)
    )
    row = X[:, 0]
    found = model.fit(X, row, validation=(X, row), verbose=0)
    wanted = again.fit(X, row[:, None], validation=(X, row[:, None]), verbose=0)
    for name in ("loss", "mae", "val_loss"):
        assert found[name] == wanted[name]
    assert model.evaluate(X, row.tolist()) == again.evaluate((X, row[:, None]))
    # Not where it would be repeated for each output, or where nobody knows the outputs yet.
    with pytest.raises(ShapeError, match="reduce its outputs to one"):
        fit(3, row, "mse")
    with pytest.raises(ShapeError, match=r"y\[:, None\]"):
        cd.NeuralNetwork([nn.Dense(1)], "mse").fit(X, row, verbose=0)


def test_arguments_of_other_names_are_told_what_they_are_called_here() -> None:
    model = cd.NeuralNetwork([nn.Input((X.shape[1],)), nn.Dense(3)])
    for name, meant in (("class_weight", "class_weights"), ("validation_split", "validation")):
        with pytest.raises(cd.ConfigError, match=f"got {name}=; did you mean '{meant}'"):
            model.fit(X, CLASSES, **{name: None})
    with pytest.raises(cd.ConfigError, match=r"predict: .*got verbose="):
        model.predict(X, verbose=0)  # type: ignore[arg-type]
    with pytest.raises(cd.ConfigError, match=r"Dense: .*got use_bias=; did you mean 'bias'"):
        nn.Dense(3, use_bias=False)  # type: ignore[call-arg]


def test_images_with_channels_last_are_told_of() -> None:
    layers = [nn.Input((16, 16, 3)), nn.Conv2D(2, 3), nn.Flatten(), nn.Dense(2)]
    with pytest.warns(UserWarning, match="layout='NHWC'") as seen:
        cd.NeuralNetwork(layers)
    assert seen[0].filename == __file__


def test_one_class_for_each_sample_is_a_row() -> None:
    with pytest.raises(ShapeError, match=r"y\[:, 0\]"):
        fit(3, CLASSES[:, None])


def test_classes_beyond_the_outputs() -> None:
    with pytest.raises(DataError, match=r"from 0 to 1.*got 0 to 2; give the last layer 3 outputs"):
        fit(2, CLASSES)
    with pytest.raises(DataError, match="got -1 to 1; number the classes from 0"):
        fit(3, CLASSES - 1)


def test_every_label_is_looked_at_and_only_those_of_a_subset() -> None:
    late = np.arange(20) % 2
    late[-1] = 7
    with pytest.raises(DataError, match="got 0 to 7"):
        fit(3, late)
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    model.fit(cd.data.ArrayData(X, late).subset(range(10)), verbose=0)


def test_padding_of_no_weight_may_have_any_class() -> None:
    padded = np.where(CLASSES == 2, -1, CLASSES)
    history = fit(2, padded, sample_weights=(padded >= 0).astype(float))
    assert np.isfinite(history["loss"][-1])


def test_texts_are_numbered_elsewhere() -> None:
    names = np.array(["a", "b"])[CLASSES % 2]
    with pytest.raises(DataError, match=r"cd.data.arrays\(x, y\)"):
        fit(2, names)
    data = cd.data.arrays(X, names)
    assert data.outputs == 2
    assert cd.data.arrays(X, X[:, :2], classes=False).outputs == 2


def test_evaluation_refuses_them_too() -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)])
    with pytest.raises(DataError, match="from 0 to 1"):
        model.evaluate((X, CLASSES))


def test_the_shape_of_an_input_is_a_tuple() -> None:
    with pytest.raises(ConfigError, match=r"write nn.Input\(\(4,\)\)"):
        nn.Input(4)  # type: ignore[arg-type]


# --- outputs, and values of targets


@pytest.mark.parametrize(
    ("last", "loss", "rows"),
    [
        (nn.Softmax(), "cross_entropy", False),
        (nn.Sigmoid(), "cross_entropy", False),
        (nn.Softmax(), "kl", True),
        (nn.Sigmoid(), "binary_cross_entropy", True),
        (nn.LogSoftmax(), "binary_cross_entropy", True),
    ],
)
def test_what_a_loss_takes_by_itself_is_not_taken_before(
    last: nn.Layer, loss: str, rows: bool
) -> None:
    layers = [nn.Input((4,)), nn.Dense(3), last, nn.Reshape((3,))]
    model = cd.NeuralNetwork(layers, loss=loss)
    targets = np.eye(3, dtype="float32")[CLASSES] if rows else CLASSES
    own = "sigmoid" if loss.startswith("binary") else "softmax"
    with pytest.raises(ConfigError, match=rf"remove that last layer.* op\.{own}\(model"):
        model.fit((X, targets), verbose=0)
    with pytest.raises(ConfigError, match="remove that last layer"):
        model.evaluate((X, targets))


def test_log_probabilities_are_logits() -> None:
    layers = [nn.Input((4,)), nn.Dense(3)]
    plain = cd.NeuralNetwork(layers).evaluate((X, CLASSES))
    same = cd.NeuralNetwork([*layers, nn.LogSoftmax()]).evaluate((X, CLASSES))
    assert same["loss"] == pytest.approx(plain["loss"], rel=1e-6)


@pytest.mark.parametrize("loss", ["cross_entropy", "kl"])
def test_one_number_is_no_choice_between_classes(loss: str) -> None:
    targets = np.ones((20, 1), "float32") if loss == "kl" else np.zeros(20, "int64")
    with pytest.raises(ConfigError, match=r"at least 2 classes.*loss='binary_cross_entropy'"):
        fit(1, targets, loss)


@pytest.mark.parametrize(
    ("targets", "loss"),
    [
        (np.ones(20, "int64"), "cross_entropy"),
        (np.zeros((20, 3), "float32"), "binary_cross_entropy"),
        (-np.ones((20, 3), "float32"), "hinge"),
    ],
)
def test_targets_of_one_class_are_told_of(targets: np.ndarray, loss: str) -> None:
    with pytest.warns(
        UserWarning, match=r"all 20 targets are -?\d.*only learn this constant"
    ) as seen:
        fit(3, targets, loss)
    assert seen[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_values_and_an_evaluation_may_be_of_one_kind() -> None:
    fit(3, np.zeros((20, 3), "float32"), "mse")
    cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)]).evaluate((X, np.ones(20, "int64")))


@pytest.mark.parametrize(
    ("loss", "targets", "said"),
    [
        (
            "binary_cross_entropy",
            CLASSES[:, None] * np.ones(3),
            r"from 0 \(no\) to 1 \(yes\), got 0",
        ),
        ("binary_cross_entropy", np.sign(X[:, :3]), r"got -1.0 to 1.0; \(y \+ 1\) / 2"),
        ("hinge", X[:, :3] > 0, r"-1 \(no\) or 1 \(yes\).*2 \* y - 1"),
        ("kl", X[:, :3], "probabilities, which are not below 0"),
        ("kl", np.ones((20, 3)), "add up to 1"),
        (nn.losses.CrossEntropy(probabilities=True), np.ones((20, 3)), "add up to 1"),
    ],
)
def test_values_that_a_loss_is_not_made_for(loss: Any, targets: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        fit(3, targets.astype("float32"), loss)


def test_every_output_has_its_targets_checked() -> None:
    class Two(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss={"side": "cross_entropy", "size": "mse"})
            self.side, self.size = nn.Dense(2), nn.Dense(1)

        def forward(self, x: Any) -> Any:
            return {"side": self.side(x), "size": self.size(x)}

    with pytest.raises(ShapeError, match=r"targets for MeanSquared: .*y\[:, None\]"):
        Two().fit((X, CLASSES % 2, X[:, 0]), verbose=0)
    with pytest.raises(DataError, match=r"one array of targets for class_weights, got several"):
        Two().fit((X, CLASSES % 2, X[:, :1]), verbose=0, class_weights={1: 2.0})
    with pytest.raises(DataError, match="targets for CrossEntropy: expected classes from 0 to 1"):
        Two().fit((X, CLASSES, X[:, :1]), verbose=0)


def test_classes_of_a_segmentation_are_the_channels() -> None:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(32, 1, 6, 5)).astype("float32")
    y = (x[:, 0] > 0).astype("int64") + (x[:, 0] > 1)
    layers = [nn.Input((1, 6, 5)), nn.Conv2D(8, 1, activation="relu"), nn.Conv2D(3, 1)]
    model = cd.NeuralNetwork(layers, learning_rate=0.05, epochs=40)
    history = model.fit(x, y, verbose=0)
    assert model.loss == nn.losses.CrossEntropy(axis=1)
    assert history["accuracy"][-1] > 0.95
    logits = model.predict(x).astype("float64")
    log = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    wanted = -np.take_along_axis(log, y[:, None], axis=1).mean()
    assert model.evaluate(x, y)["loss"] == pytest.approx(wanted, rel=1e-5)
    # Where the last axis may be meant as well, it is.
    given = nn.losses.CrossEntropy().for_targets((2, 4, 4), (2, 4, 4, 4))
    assert given == nn.losses.CrossEntropy()
    with pytest.raises(ShapeError, match="the last layer and the targets"):
        model.fit(x, y[:, :3], verbose=0)


def test_functions_of_other_targets_name_the_way_out() -> None:
    def pinball(prediction: Any, target: Any) -> Any:
        error = target - prediction
        return op.maximum(0.1 * error, -0.9 * error)

    x = np.zeros((8, 2), "float32")
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], loss=pinball)
    with pytest.raises(ShapeError, match=r"write a class of nn\.losses\.Loss with .*target_spec"):
        model.fit(x, np.zeros((8, 1), "float32"), verbose=0)

    class Pinball(nn.losses.Loss):
        def per_sample(self, prediction: Any, target: Any) -> Any:
            return op.mean(pinball(prediction, target), axis=1)

        def target_spec(self, prediction_shape: Any, dtype: Any = "float32") -> Any:
            return (prediction_shape[0], 1), np.dtype(dtype)

    model.loss = Pinball()
    assert "loss" in model.fit(x, np.zeros((8, 1), "float32"), verbose=0)
