"""Attributes that are assigned to models, layers and optimizers take effect, or are refused."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.errors import CalderaError, CheckpointError, ConfigError
from tests.fuzz import attributes as fuzz

X = np.random.default_rng(0).normal(size=(8, 3, 8, 8)).astype("float32")


def made() -> cd.NeuralNetwork:
    layers = [
        nn.Input((3, 8, 8)),
        nn.Conv2D(4, 3, activation="relu"),
        nn.BatchNorm(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Dense(6, activation="relu"),
        nn.Activation("tanh"),
        nn.Dense(2),
    ]
    return cd.NeuralNetwork(layers, loss="mse")


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (1, "filters", 8),
        (1, "kernel", 5),
        (1, "bias", False),
        (1, "fill", "he_normal"),
        (5, "units", 128),
        (5, "bias", False),
        (5, "name", "head"),
        (5, "weight", np.zeros((144, 6))),
    ],
)
def test_what_shapes_parameters_is_settled_once_they_exist(
    place: int, name: str, value: Any
) -> None:
    model = made()
    before = model.predict(X)
    with pytest.raises(ConfigError, match=f"{name}"):
        setattr(model.layers[place], name, value)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [(1, "activation", "tanh"), (2, "eps", 0.5), (6, "kind", "relu"), (5, "activation", None)],
)
def test_what_does_not_takes_effect(place: int, name: str, value: Any) -> None:
    model = made()
    before = model.predict(X)
    setattr(model.layers[place], name, value)
    assert np.abs(model.predict(X) - before).max() > 1e-4


def test_values_are_checked_as_by_the_constructor() -> None:
    model = made()
    with pytest.raises(ConfigError, match="0 <= rate < 1"):
        model.layers[4].rate = 7.0  # type: ignore[attr-defined]
    new = nn.Conv2D(4, 3)
    with pytest.raises(ConfigError, match="filters="):
        new.filters = -1
    assert new.filters == 4


def test_before_the_first_call_all_takes_effect() -> None:
    layer = nn.Conv2D(4, 3)
    layer.kernel, layer.filters = 5, 2
    layer(op.input("x", (1, 3, 8, 8)))
    assert layer.weight.shape == (2, 3, 5, 5)


@pytest.mark.parametrize(
    ("name", "meant"), [("lr", "learning_rate"), ("batchsize", "batch_size"), ("optimzer", "optim")]
)
def test_unknown_attributes_are_refused_with_the_nearest_name(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{meant}"):
        setattr(made(), name, 1e-4)
    with pytest.raises(ConfigError, match="did you mean 'units'"):
        made().layers[5].unit = 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="did you mean 'beta1'"):
        optim.Adam().beta_1 = 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["layers", "dtype", "signature"])
def test_attributes_that_are_only_read_say_so(name: str) -> None:
    with pytest.raises(ConfigError, match="that can be assigned"):
        setattr(made(), name, None)


def test_layers_of_ones_own_note_down_what_they_like() -> None:
    @dataclass(eq=False)
    class Scaled(nn.Layer):
        factor: float = 1.0
        width: int = 2

        def build(self, x: Any) -> None:
            self.scale = self.parameter("scale", (self.width,))
            self.seen = x.shape

        def forward(self, x: Any) -> Any:
            self.last = x.shape
            return x * self.factor + op.sum(self.scale)

        def reset(self) -> None:
            self.cache = None

    layer = Scaled()
    model = cd.NeuralNetwork([nn.Input((4,)), layer], loss="mse")
    layer.reset()
    layer.factor = 3.0
    assert model.predict(np.ones((2, 4), "float32"))[0, 0] == 3.0
    with pytest.raises(ConfigError, match="make a new layer with width=5"):
        layer.width = 5


def test_a_file_that_cannot_be_loaded_takes_no_place(tmp_path: Path) -> None:
    model = made()
    path = model.save(tmp_path / "model.caldera")
    before = path.read_bytes()
    vars(model.layers[5])["units"] = 128
    with pytest.raises(CheckpointError, match="a file that can be loaded"):
        model.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["model.caldera"]


def test_the_learning_rate_of_an_optimizer_may_be_assigned() -> None:
    rates = []

    class Slower(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            run.model.optimizer.learning_rate = 0.5 / run.epoch
            rates.append(run.model.optimizer.current_rate())

    layers = [nn.Input((1,)), nn.Dense(1, fill="zero", bias=False)]
    model = cd.NeuralNetwork(layers, loss="mse", optimizer=optim.SGD(1.0), batch_size=1)
    x = np.ones((1, 1), "float32")
    model.fit(x, x, epochs=3, callbacks=[Slower()], verbose=0)
    assert rates == [0.5, 0.25, 0.5 / 3]
    # The weight goes from 0 to 2 with the rate 1, back to 1 with 0.5, where it stays.
    assert model.parameters()[0].numpy().item() == 1.0
    assert model.optimizer.arguments()["learning_rate"] == 0.5 / 3
    with pytest.raises(ConfigError, match="above 0"):
        model.optimizer.learning_rate = -1.0
    scheduled = optim.SGD(optim.Exponential(0.5, factor=0.5))
    with pytest.raises(ConfigError, match="no schedule decides"):
        scheduled.learning_rate = 0.1
    with pytest.raises(ConfigError, match="did you mean 'learning_rate'"):
        scheduled.lr = 0.1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (optim.SGD, "momentum", 0.9),
        (optim.RMSProp, "centered", True),
        (optim.RMSProp, "momentum", 0.5),
        (optim.Adam, "beta1", 0.5),
    ],
)
def test_what_an_optimizer_keeps_follows_what_is_assigned(kind: Any, name: str, value: Any) -> None:
    assigned, made = kind(0.1), kind(0.1, **{name: value})
    setattr(assigned, name, value)
    weights = []
    for optimizer in (assigned, made):
        model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(2)], optimizer=optimizer, seed=1)
        model.fit(X[:, :1, 0, :4].reshape(8, 4), np.arange(8) % 2, epochs=2, verbose=0)
        weights.append(model.parameters()[0].numpy())
    np.testing.assert_array_equal(*weights)
    setattr(assigned, name, type(value)(0))
    assert getattr(assigned, name) == 0


@pytest.mark.parametrize(
    ("made", "name", "value"),
    [
        (lambda: optim.SGD(), "decay", 3),
        (lambda: optim.SGD(), "momentum", "x"),
        (lambda: optim.Adam(), "beta1", 2.0),
        (lambda: nn.Dropout(0.1), "rate", "half"),
        (lambda: nn.BatchNorm(), "momentum", None),
        (lambda: nn.BatchNorm(), "name", np.ones(3)),
        (lambda: nn.BatchNorm(), "frozen", 3),
        (lambda: made(), "schema", "columns"),
    ],
)
def test_values_of_other_kinds_are_refused_at_once(made: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        setattr(made(), name, value)


def test_layers_inside_are_exchanged_for_layers_alone() -> None:
    block = nn.TransformerBlock(2)
    block(op.input("x", (1, 3, 4)))
    for value in (None, 3, "relu"):
        with pytest.raises(ConfigError, match="a layer"):
            block.norm1 = value  # type: ignore[assignment]


@pytest.mark.parametrize("seed", [0])
def test_assignments_take_effect_or_are_refused(seed: int) -> None:
    found = list(fuzz.assignments(12, seed))
    assert not [each for each in found if each.what in ("ignored", "raw")]


OTHER: dict[type, list[Any]] = {
    bool: [True, False],
    int: [1, 2, 3, 5, -1],
    float: [0.0, 0.25, 1.0, 3.0],
    str: ["relu", "tanh", "max", "average", "x"],
}


def kinds(random: np.random.Generator) -> list[nn.Layer]:
    makers: list[Any] = [
        lambda: nn.Conv2D(3, 3, padding="same", groups=1),
        lambda: nn.DepthwiseConv2D(3, padding="same"),
        lambda: nn.BatchNorm(),
        lambda: nn.LeakyReLU(0.1),
        lambda: nn.PReLU(),
        lambda: nn.MaxPool2D(2, 1),
        lambda: nn.Pooling2D("max", 2, 1),
        lambda: nn.AdaptiveAveragePool2D(4),
        lambda: nn.GroupNorm(1),
        lambda: nn.InstanceNorm(affine=True),
        lambda: nn.LocalResponseNorm(),
        lambda: nn.ConvTranspose2D(3, 3, padding=1),
    ]
    return [makers[each]() for each in random.integers(0, len(makers), 3)]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_assigned_is_saved_or_refused(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    layers = kinds(random)
    model = cd.NeuralNetwork([nn.Input((3, 8, 8)), *layers, nn.Flatten(), nn.Dense(2)], loss="mse")
    x = X[:2]
    for _ in range(12):
        layer = layers[random.integers(len(layers))]
        names = [each.name for each in fields(layer) if each.init and each.name != "device"]  # type: ignore[arg-type]
        name = str(random.choice(names))
        kind = type(getattr(layer, name))
        choices = OTHER.get(kind, [value for values in OTHER.values() for value in values])
        before = getattr(layer, name)
        try:
            setattr(layer, name, choices[random.integers(len(choices))])
            expected = model.predict(x)
        except CalderaError:
            vars(layer)[name] = before
            continue
        again = cd.load(model.save(tmp_path / "model.caldera"))
        np.testing.assert_allclose(again.predict(x), expected, rtol=1e-5, atol=1e-6)
