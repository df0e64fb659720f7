"""Residual blocks, branches, joining; activations as layers."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from caldera import nn, op, testing
from caldera.errors import ShapeError


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def test_a_residual_block_adds_its_input() -> None:
    inner = nn.Dense(3)
    x = _x(2, 3)
    y = nn.Residual([inner], activation="relu")(x).numpy()
    np.testing.assert_allclose(y, np.maximum(x @ inner.weight.numpy() + x, 0), rtol=1e-5)


def test_a_shortcut_takes_the_place_of_the_input() -> None:
    inner, shortcut = nn.Dense(4), nn.Dense(4)
    x = _x(2, 3)
    block = nn.Residual([inner], shortcut)
    y = block(x).numpy()
    expected = x @ inner.weight.numpy() + x @ shortcut.weight.numpy()
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    assert [p.name for p in block.parameters()][::2] == [
        "Residual/0-Dense/weight",
        "Residual/shortcut/weight",
    ]


def test_branches_are_joined_along_the_channels() -> None:
    one, two = nn.Conv2D(2, 1), nn.Conv2D(3, 1)
    block = nn.Branches([one, [two, nn.ReLU()]])
    x = _x(2, 3, 4, 4)
    y = block(x).numpy()
    np.testing.assert_array_equal(y[:, :2], one(x).numpy())
    np.testing.assert_array_equal(y[:, 2:], np.maximum(two(x).numpy(), 0))


def test_branches_of_other_sizes_are_refused() -> None:
    block = nn.Branches([nn.Conv2D(2, 1), nn.Conv2D(2, 3)])
    expected = r"Branches: expected parts that differ along axis 1 only, got \(1, 2, 4, 4\) and"
    with pytest.raises(ShapeError, match=expected):
        block(op.input("x", (1, 3, 4, 4)))


def test_a_cell_is_a_graph_of_layers() -> None:
    one, two, three = (nn.Dense(3) for _ in range(3))
    x = _x(2, 3)
    cell = nn.Cell([[0], [0, 1]], [one, two, three])
    expected = two(x).numpy() + three(one(x).numpy()).numpy()
    np.testing.assert_allclose(cell(x).numpy(), expected, rtol=1e-6)
    loose = nn.Cell([[0], [0]], [one, [two, nn.ReLU()]], "loose", axis=-1)
    both = [one(x).numpy(), np.maximum(two(x).numpy(), 0)]
    np.testing.assert_array_equal(loose(x).numpy(), np.concatenate(both, -1))
    with pytest.raises(
        ShapeError, match=r"Cell: expected layers whose outputs all have shape \(2, 3\), got"
    ):
        nn.Cell([[0, 0]], [nn.Dense(3), nn.Dense(4)])(x)


def test_add_and_concat_take_several_inputs() -> None:
    a, b = _x(2, 3), _x(2, 3) + 1
    np.testing.assert_array_equal(nn.Add()(a, b, a).numpy(), a + b + a)
    np.testing.assert_array_equal(nn.Concat(axis=-1)(a, b).numpy(), np.concatenate([a, b], 1))
    with pytest.raises(
        ShapeError, match=r"Add: expected inputs of the same shape, \(2, 3\), got \(3,\)"
    ):
        nn.Add()(a, a[0])
    with pytest.raises(ShapeError, match="Concat: expected parts that have an axis 2"):
        nn.Concat(axis=2)(a, b)


ACTIVATIONS = {
    "relu": (nn.ReLU(), lambda x: np.maximum(x, 0)),
    "sigmoid": (nn.Sigmoid(), lambda x: 1 / (1 + np.exp(-x))),
    "tanh": (nn.Tanh(), np.tanh),
    "leaky_relu": (nn.LeakyReLU(), lambda x: np.where(x > 0, x, 0.01 * x)),
    "elu": (nn.ELU(), lambda x: np.where(x > 0, x, np.expm1(x))),
    "selu": (
        nn.SELU(),
        lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    ),
    "gelu": (nn.GELU(), lambda x: x * np.array([0.02275013, 0.30853754, 0.5, 0.99865010])),
    "gelu_tanh": (
        nn.GELU(approximate=True),
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    "silu": (nn.SiLU(), lambda x: x / (1 + np.exp(-x))),
    "softplus": (nn.Softplus(), lambda x: np.log1p(np.exp(x))),
    "hard_sigmoid": (nn.HardSigmoid(), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    "hard_swish": (nn.HardSwish(), lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "mish": (nn.Mish(), lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "softsign": (nn.Softsign(), lambda x: x / (1 + np.abs(x))),
    "rbf": (nn.RBF(), lambda x: np.exp(-(x**2))),
    "softmax": (nn.Softmax(), lambda x: np.exp(x) / np.exp(x).sum()),
    "relu6": (nn.Activation("relu6"), lambda x: np.clip(x, 0, 6)),
    "hard_tanh": (nn.Activation("hard_tanh"), lambda x: np.clip(x, -1, 1)),
    "tanh_shrink": (nn.Activation("tanh_shrink"), lambda x: x - np.tanh(x)),
    "soft_shrink": (
        nn.Activation("soft_shrink"),
        lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    ),
    "hard_shrink": (nn.Activation("hard_shrink"), lambda x: np.where(np.abs(x) > 0.5, x, 0)),
    "log_sigmoid": (nn.Activation("log_sigmoid"), lambda x: -np.log1p(np.exp(-x))),
    "softmin": (nn.Activation("softmin"), lambda x: np.exp(-x) / np.exp(-x).sum()),
    "glu": (nn.Activation("glu"), lambda x: x[:2] / (1 + np.exp(-x[2:]))),
    "log_softmax": (nn.LogSoftmax(), lambda x: x - np.log(np.exp(x).sum())),
}


def test_every_activation_has_a_formula() -> None:
    assert set(ACTIVATIONS) == set(nn.activations)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    layer, formula = ACTIVATIONS[name]
    x = np.array([-2.0, -0.5, 0.0, 3.0])
    with nn.trace(dtype="float64"):
        found, named = layer(x).numpy(), nn.Activation(name)(x).numpy()
    np.testing.assert_allclose(found, formula(x), rtol=1e-6)
    np.testing.assert_array_equal(found, named)


@pytest.mark.parametrize(
    ("layer", "formula"),
    [
        (nn.LeakyReLU(0.5), lambda x: np.where(x > 0, x, 0.5 * x)),
        (nn.PReLU(), lambda x: np.where(x > 0, x, 0.25 * x)),
        (nn.ELU(2.0), lambda x: np.where(x > 0, x, 2 * np.expm1(x))),
        (nn.RBF(2.0), lambda x: np.exp(-((2 * x) ** 2))),
        (nn.Softmax(axis=0), lambda x: np.exp(x) / np.exp(x).sum(0)),
        (
            nn.GELU(approximate=True),
            lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_settings_of_activations(layer: nn.Layer, formula: Any) -> None:
    x = np.array([[-2.0, -0.5], [0.1, 3.0]])
    with nn.trace(dtype="float64"):
        np.testing.assert_allclose(layer(x).numpy(), formula(x), rtol=1e-6)


def test_a_network_of_all_kinds_has_right_gradients() -> None:
    net = nn.Sequential(
        [
            nn.Reshape((2, 3, 3)),
            nn.Branches([nn.Conv2D(2, 2), [nn.Conv2D(1, 2), nn.Tanh()]]),
            nn.Residual([nn.GroupNorm(1)]),
            nn.Flatten(),
            nn.Dense(3, activation="sigmoid"),
        ]
    )
    with nn.trace(dtype="float64"):
        testing.check_gradients(net, [np.random.default_rng(0).normal(size=(2, 18))])


def test_layers_document_themselves() -> None:
    for name in nn.layers:
        assert inspect.getdoc(nn.layers[name]), name


def test_a_layer_that_takes_no_mask_says_so() -> None:
    net = nn.Sequential([nn.Embedding(9, 4, mask_zero=True), nn.Dropout(0.1), nn.LSTM(3)])
    with pytest.raises(ShapeError, match="expected one input, got 2 results of the layer before"):
        net(op.input("x", (2, 3), "int64"))
