"""What every layer has: paths, parameters, sharing, freezing, contexts, errors, custom layers."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.base.registry import Registry
from caldera.errors import ConfigError, ShapeError
from caldera.nn import layer as layer_module


@pytest.mark.usefixtures("own_layers")
def test_the_documented_layer_works_and_trains() -> None:
    text = layer_module.__doc__ or ""
    block = textwrap.dedent(text[text.index("    @nn.register") : text.index("`build` is called")])
    names: dict[str, Any] = {"nn": nn, "cd": cd, "dataclass": dataclass, "__name__": __name__}
    exec(block, names)
    assert len(block.strip().splitlines()) <= 10
    scale = names["Scale"](start=3.0)
    x = np.array([[1.0, 2.0]], np.float32)
    y = scale(x)
    assert y.tolist() == [[3.0, 6.0]]
    assert op.grad(op.sum(y), scale.factor).tolist() == [1.0, 2.0]
    assert nn.from_config(nn.to_config(scale)).start == 3.0  # type: ignore[attr-defined]


def test_a_layer_without_dataclass_or_call_to_init_works() -> None:
    class Net(nn.Layer):
        def __init__(self) -> None:
            self.parts = [nn.Dense(4), nn.Dense(2)]
            self.head = {"last": nn.Dense(3)}

        def forward(self, x: cd.Expr) -> cd.Expr:
            return self.head["last"](self.parts[1](self.parts[0](x)))

    net = Net()
    assert net(op.input("x", (5, 6))).shape == (5, 3)
    assert [p.name for p in net.parameters()][::2] == [
        "Net/parts0/weight",
        "Net/parts1/weight",
        "Net/last/weight",
    ]


@pytest.mark.parametrize("kind", ["parameter", "state"])
@pytest.mark.parametrize("base", [nn.Layer, cd.Model])
def test_parameters_made_in_forward_are_refused(base: Any, kind: str) -> None:
    class Scale(base):  # type: ignore[misc]
        def forward(self, x: cd.Expr) -> cd.Expr:
            return x * getattr(self, kind)("factor", (3,), fill=cd.constant(1.0))

    message = r"Scale: expected .* in build\(self, x\).*got 'factor' in forward(.|\n)*self.factor ="
    with pytest.raises(ConfigError, match=message):
        Scale()(op.input("x", (2, 3)))


def test_paths_follow_the_nesting_and_given_names() -> None:
    inner = nn.Sequential([nn.Dense(2), nn.ReLU(), nn.Dense(2, name="last")], name="block")
    net = nn.network([nn.Dense(2), inner])
    net(op.input("x", (1, 3)))
    names = [p.name for p in net.parameters()]
    assert names[::2] == ["0-Dense/weight", "block/0-Dense/weight", "block/last/weight"]


def test_the_same_layer_twice_shares_its_parameters() -> None:
    shared = nn.Dense(3)
    net = nn.Sequential([shared, nn.Tanh(), shared])
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    y = net(x)
    assert len(net.parameters()) == 2
    w = shared.weight.numpy()
    np.testing.assert_allclose(y.numpy(), np.tanh(x @ w) @ w, rtol=1e-5)


def test_frozen_layers_keep_their_parameters_out_of_training() -> None:
    net = nn.Sequential([nn.Dense(4), nn.Sequential([nn.Dense(2)])])
    net(op.input("x", (1, 3)))
    net.layers[1].freeze()
    assert len(net.parameters()) == 4
    assert net.trainable() == net.layers[0].parameters()
    net.freeze(False)
    assert len(net.trainable()) == 4


def test_layers_take_arrays_of_floats_in_the_dtype_of_the_trace_and_keep_integers() -> None:
    with nn.trace(dtype="float64"):
        assert nn.Dense(2)(np.ones((1, 2), np.float32)).dtype.name == "float64"
        assert nn.Flatten()(np.ones((1, 2), np.int64)).dtype.name == "int64"
    assert nn.Dense(2)(np.ones((1, 2))).dtype.name == "float32"


def test_inputs_in_a_list_are_refused() -> None:
    a = op.input("a", (1, 2))
    with pytest.raises(ConfigError, match="each input as a separate argument"):
        nn.Add()([a, a])


def test_a_trace_records_calls_from_the_outside_in() -> None:
    net = nn.Sequential([nn.Dense(4, name="a"), nn.Residual([nn.Dense(4, name="b")], name="r")])
    with nn.trace() as traced:
        net(op.input("x", (1, 3)))
    assert [call.layer.path for call in traced.calls] == [
        "Sequential",
        "Sequential/a",
        "Sequential/r",
        "Sequential/r/b",
    ]


def test_without_allocation_parameters_have_shapes_but_no_memory() -> None:
    layer = nn.Dense(1 << 20)
    with nn.trace(allocate=False):
        layer(op.input("x", (1, 1 << 20)))
    assert sum(p.size for p in layer.parameters()) == (1 << 40) + (1 << 20)


def test_counting_leaves_the_layers_as_they_are() -> None:
    made, new = nn.Dense(3), nn.Dense(2)
    made(op.input("x", (1, 4)))
    weight = made.weight
    assert nn.count_parameters([made, new], (4,)) == 15 + 8
    assert made.weight is weight
    assert not new.built
    with pytest.raises(ConfigError, match=r"shape of a sample.*nn\.Input"):
        nn.count_parameters([nn.Dense(3)])


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        ([nn.Input((3,))], (1, 4), r"0-Input: expected samples of shape \(3,\), got \(4,\)"),
        ([nn.Output((3,))], (1, 4), r"0-Output: expected results of shape \(3,\), got \(4,\)"),
        ([nn.Dense(2)], (4,), r"0-Dense: expected a batch of vectors, got \(4,\)"),
        (
            [nn.Dense(3), nn.Reshape((2, 2))],
            (1, 4),
            r"1-Reshape/op\.reshape of .*with the 3 elements",
        ),
        ([nn.Conv2D(2, 3)], (1, 4), r"0-Conv2D: expected images \(N, C, H, W\), got shape"),
        ([nn.Conv2D(2, 5, name="first")], (1, 1, 3, 3), r"first/op\.conv2d: expected"),
        ([nn.Conv2D(4, 1, groups=3)], (1, 3, 2, 2), r"0-Conv2D: .*3 groups divide, got 3 channels"),
        ([nn.Residual([nn.Dense(2)])], (1, 4), r"0-Residual: expected .*\(1, 4\), got \(1, 2\)"),
        ([nn.LSTM(2)], (1, 4), r"0-LSTM: expected sequences \(N, T, C\), got shape \(1, 4\)"),
        ([nn.MultiHeadAttention(3)], (1, 2, 4), "0-MultiHeadAttention: .*that 3 heads divide"),
        ([nn.Embedding(5, 2)], (1, 4), "0-Embedding: expected integers, got float32"),
        ([nn.GroupNorm(3)], (1, 4), r"0-GroupNorm: .*that 3 groups divide, got shape \(1, 4\)"),
        ([nn.BatchNorm()], (4,), r"0-BatchNorm: expected a batch \(N, C, ...\), got shape \(4,\)"),
        ([nn.PositionalEmbedding(3)], (1, 4, 2), "0-PositionalEmbedding: .*at most 3 steps"),
        ([nn.AdaptiveAveragePool2D(2)], (1, 4), "0-AdaptiveAveragePool2D: expected images"),
    ],
)
def test_a_mistake_names_the_layer_what_it_expected_and_what_it_got(
    layers: list[nn.Layer], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        nn.network(layers)(op.input("x", shape))


def test_a_layer_called_again_with_another_width_is_refused() -> None:
    layer = nn.Dense(2, name="head")
    layer(op.input("x", (1, 4)))
    with pytest.raises(ShapeError, match=r"head: expected 4 values on the last axis, got \(1, 5\)"):
        layer(op.input("x", (1, 5)))


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: nn.Dense(0), "units= an integer >= 1, got 0"),
        (lambda: nn.Dense(2.5), "units= an integer >= 1, got 2.5"),
        (
            lambda: nn.Dense(2, activation="rleu"),
            "activation: expected a registered name, got 'rleu'.*'relu'",
        ),
        (lambda: nn.Dropout(1.0), "0 <= rate < 1, got 1.0"),
        (lambda: nn.Conv2D(2, (1, 2, 3)), "kernel= 2 sizes"),
        (lambda: nn.Pooling2D("min"), "'max' or 'average', got 'min'"),
        (lambda: nn.Sequential([nn.Dense(2), "relu"]), "expected layers, got 'relu'"),
        (lambda: nn.Sequential([nn.Dense(2, name="a"), nn.Dense(2, name="a")]), "two named 'a'"),
        (lambda: nn.Branches([]), "at least one branch"),
        (lambda: nn.Residual([nn.Dense(2)], [nn.Dense(2)]), "shortcut= a layer or None"),
        (lambda: nn.BatchNorm(momentum=2.0), "0 <= momentum <= 1"),
        (lambda: nn.LSTM(2, bidirectional=True, go_backwards=True), "both directions, or one"),
        (lambda: nn.LSTM(2, return_mask=True), "a mask together with sequences"),
        (lambda: nn.TransformerBlock(2, ratio=0.0), "ratio > 0"),
        (lambda: nn.AdaptiveAveragePool2D((2, 2, 2)), "size= one to 2 sizes"),
        (lambda: nn.Dense(2, fill="he_norml")(np.ones((1, 2))), "filler: .*'he_norml'.*he_normal"),
    ],
)
def test_settings_that_cannot_be_are_refused(write: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write()


def test_two_classes_cannot_have_one_name_in_files() -> None:
    registry: Registry[type[nn.Layer]] = Registry("layer")
    registry.add("Dense", nn.Dense)
    with pytest.raises(ConfigError, match="an unused name"):
        registry.add("Dense", nn.Conv2D)


# --- randomness


def _dropped(net: nn.Layer, x: np.ndarray, **circumstances: Any) -> np.ndarray:
    with nn.trace(training=True, random=op.random_state(), **circumstances):
        return net(x).numpy()


def test_dropout_is_off_in_evaluation_and_needs_a_random_state_in_training() -> None:
    x = np.ones((4, 100), np.float32)
    layer = nn.Dropout(0.5)
    assert (layer(x).numpy() == 1).all()
    assert set(np.unique(_dropped(layer, x))) == {0.0, 2.0}
    with nn.trace(training=True), pytest.raises(ConfigError, match=r"Dropout: .*random state"):
        layer(x)


def test_dropout_does_not_depend_on_how_a_batch_is_split() -> None:
    x = np.ones((6, 50), np.float32)
    layer = nn.Dropout(0.5)
    whole = _dropped(layer, x)
    parts = [_dropped(layer, x[:2]), _dropped(layer, x[2:], first=2)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_a_dropout_used_twice_in_a_step_draws_twice() -> None:
    x = np.ones((4, 100), np.float32)
    layer = nn.Dropout(0.5)
    with nn.trace(training=True, random=op.random_state()):
        first, second = layer(x).numpy(), layer(x).numpy()
    assert (first != second).any()
    np.testing.assert_array_equal(first, _dropped(layer, x))
