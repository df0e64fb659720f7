"""Translated networks give what Caldera gives: results, gradients, running statistics."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.bench.translate import to_jax, to_torch
from caldera.bench.translate._windows import WindowShape, window_means
from caldera.compiler.lazy import compile
from caldera.errors import ConfigError, DtypeError, ShapeError

TOLERANCE = 1e-9


def _narrow(layers: list[nn.Layer], by: int = 8) -> list[nn.Layer]:
    """The same network with fewer channels and units everywhere, and no dropout: quick."""
    for layer in nn.network(layers).walk():
        if isinstance(layer, nn.Conv2D):
            layer.filters //= by
        elif isinstance(layer, nn.Dense) and layer.units > 100:
            layer.units //= 64
        elif isinstance(layer, nn.models.PaddedShortcut):
            layer.channels //= by
        elif isinstance(layer, nn.Dropout):
            layer.rate = 0.0
    return layers


def _language_model(kind: type[nn.LSTM] | type[nn.GRU]) -> list[nn.Layer]:
    return [
        nn.Input((7,), dtype="int64"),
        nn.Embedding(11, 6),
        kind(5, return_sequences=True),
        nn.Dense(11),
    ]


def _masked() -> list[nn.Layer]:
    """Word 0 is padding, wherever it stands; one sample has nothing else."""
    return [
        nn.Input((7,), dtype="int64"),
        nn.Embedding(11, 6, mask_zero=True),
        nn.GRU(5, return_sequences=True, go_backwards=True, return_mask=True),
        nn.LSTM(4, return_sequences=True, bidirectional=True, return_mask=True),
        nn.LSTM(4, bidirectional=True),
        nn.Dense(3),
    ]


def _windows() -> list[nn.Layer]:
    """Every way to write a padding."""
    return [
        nn.Input((2, 19, 17)),
        nn.Conv2D(4, 3, stride=2, padding="same", activation="tanh"),
        nn.Conv2D(4, (2, 3), padding=((1, 0), (2, 1)), bias=False),
        nn.ConvTranspose2D(4, (3, 2), (1, 2), (1, 0), (0, 1), (1, 2), activation="tanh"),
        nn.BatchNorm(momentum=0.3, eps=1e-2),
        nn.MaxPool2D(3, 2, partial_windows=True, padding=((1, 0), (0, 0))),
        nn.MaxPool2D(3, 1, "same"),
        nn.AveragePool2D(3, 1, 1, count_padding=False),
        nn.AveragePool2D(2, 1, "same", count_padding=False),
        nn.AveragePool2D(2, 1, "same"),
        nn.Pooling2D("average", 3, 1, 2),
        nn.LocalResponseNorm(4, 0.5, 0.6, 2.0),
        nn.AdaptiveAveragePool2D((4, 3)),
        nn.Reshape((3, 4, -1)),
        nn.LayerNorm((-2, -1)),
        nn.Softmax(2),
        nn.Dense(2, activation="tanh"),
        nn.Flatten(),
        nn.BatchNorm(),
        nn.Dense(3),
    ]


def _dilated() -> list[nn.Layer]:
    return [
        nn.Input((4, 9, 9)),
        nn.Conv2D(6, 3, padding="same", dilation=(1, 2), groups=2),
        nn.Conv2D(2, 3, dilation=2),
        nn.DepthwiseConv2D(2, 3, stride=2, padding=1, activation="gelu_tanh"),
        nn.GroupNorm(3, eps=1e-2),
    ]


def _activations() -> list[nn.Layer]:
    kinds = [
        nn.ELU(0.5),
        nn.GELU(),
        nn.GELU(approximate=True),
        nn.HardSigmoid(),
        nn.HardSwish(),
        nn.LeakyReLU(0.2),
        nn.LogSoftmax(),
        nn.RBF(0.7),
        nn.ReLU(),
        nn.SELU(),
        nn.SiLU(),
        nn.Sigmoid(),
        nn.Softmax(),
        nn.Softplus(),
        nn.Tanh(),
        nn.Mish(),
        nn.Softsign(),
        nn.Activation("softplus"),
        nn.Activation("linear"),
    ]
    return [
        nn.Input((6,)),
        nn.Dense(8, fill=cd.uniform(-3, 3)),
        nn.Branches([nn.Sequential([nn.Dense(3), kind]) for kind in kinds]),
        nn.Output(),
    ]


def _shared() -> list[nn.Layer]:
    twice = nn.Dense(4, activation="sigmoid", bias=False)
    block = nn.Residual([twice, nn.Dense(4)], activation="relu")
    return [nn.Input((4,)), twice, block, twice]


PAPER = "googlenet of the paper"
"""Compiling it takes JAX long; all its layers are in other networks."""
NETWORKS: dict[str, tuple[Callable[[], list[nn.Layer]], tuple[int, ...]]] = {
    "mlp": (lambda: nn.models.mlp((1, 28, 28), hidden=(30, 20), activation="sigmoid"), (4,)),
    "lenet5": (lambda: nn.models.lenet5(activation="tanh", pooling="average"), (4,)),
    "resnet20": (lambda: _narrow(nn.models.resnet20((3, 16, 16)), 2), (4,)),
    "alexnet": (lambda: _narrow(nn.models.alexnet((3, 71, 71), 10)), (2,)),
    "vgg16": (lambda: _narrow(nn.models.vgg16((3, 32, 32), 10)), (2,)),
    "googlenet": (lambda: _narrow(nn.models.googlenet((3, 64, 64), 10)), (4,)),
    PAPER: (
        lambda: _narrow(nn.models.googlenet((3, 64, 64), 10, False, batch_norm=False)),
        (2,),
    ),
    "inception3": (lambda: _narrow(nn.models.inception3((3, 75, 75), 10, False)), (6,)),
    "resnet50": (lambda: _narrow(nn.models.resnet50((3, 64, 64), 10)), (4,)),
    "LSTM": (lambda: _language_model(nn.LSTM), (3,)),
    "GRU": (lambda: _language_model(nn.GRU), (3,)),
    "masked": (_masked, (4,)),
    "GPT": (lambda: nn.models.gpt(11, context=7, width=8, depth=2, heads=2), (3,)),
    "windows": (_windows, (3,)),
    "dilated": (_dilated, (2,)),
    "activations": (_activations, (5,)),
    "shared": (_shared, (3,)),
}


@dataclass(frozen=True)
class Case:
    """A network, data for it, and what Caldera makes of them.

    The loss is the sum of all results, each weighed by a random number.
    """

    model: cd.NeuralNetwork
    x: np.ndarray
    weights: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    gradients: list[np.ndarray]


@cache
def _case(name: str) -> Case:
    make, (samples,) = NETWORKS[name]
    model = cd.NeuralNetwork(make(), dtype="float64")
    generator = np.random.default_rng(0)
    ((shape, dtype),) = model.signature.inputs
    x = generator.normal(size=(samples, *shape))
    if dtype == "int64":
        x = generator.integers(0, 11, (samples, *shape))
        x[0], x[1, 2], x[1, 5:] = 0, 0, 0
    # Biases and statistics begin with 0 and 1, which would hide that one was forgotten.
    for variable in [*model.parameters(), *model.states()]:
        value = variable.numpy()
        variable.assign(value + 0.1 * generator.uniform(size=value.shape))
    with nn.trace(training=True, dtype="float64"):
        outputs = _by_name(model(op.input("x", x.shape, dtype=dtype)))
    weights = {key: generator.normal(size=each.shape) for key, each in outputs.items()}
    parts = [op.sum(each * weights[key]) for key, each in outputs.items()]
    loss = sum(parts[1:], parts[0])
    wanted = [*outputs.values(), *op.grad(loss, model.parameters())]
    found = [tensor.numpy().copy() for tensor in compile(wanted).run({"x": x})]
    count = len(outputs)
    return Case(model, x, weights, dict(zip(outputs, found, strict=False)), found[count:])


def _by_name(outputs: Any) -> dict[str, Any]:
    return outputs if isinstance(outputs, dict) else {"main": outputs}


def _check(case: Case, outputs: dict[str, np.ndarray], gradients: list[np.ndarray]) -> None:
    assert outputs.keys() == case.outputs.keys()
    for key, expected in case.outputs.items():
        assert _apart(outputs[key], expected) < TOLERANCE
    for variable, got, expected in zip(
        case.model.parameters(), gradients, case.gradients, strict=True
    ):
        assert got.shape == expected.shape, variable.name
        assert _apart(got, expected) < TOLERANCE, variable.name


def _apart(got: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, as a part of the largest number."""
    assert got.dtype == expected.dtype == np.float64
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def _arrays(case: Case) -> list[np.ndarray]:
    return [parameter.numpy() for parameter in case.model.parameters()]


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


@pytest.fixture(scope="module")
def jax() -> Iterator[Any]:
    found = pytest.importorskip("jax", reason="JAX is not installed")
    before = found.config.jax_enable_x64
    found.config.update("jax_enable_x64", True)
    yield found
    found.config.update("jax_enable_x64", before)


# --- results and gradients


@pytest.mark.parametrize("name", NETWORKS)
def test_torch(torch: Any, name: str) -> None:
    case = _case(name)
    network = to_torch(case.model)
    outputs = _by_name(network.module(torch.from_numpy(case.x)))
    sum((each * torch.from_numpy(case.weights[k])).sum() for k, each in outputs.items()).backward()
    found = {key: each.detach().numpy() for key, each in outputs.items()}
    _check(case, found, network.gradients())


def _run_jax(jax: Any, name: str, data_format: str) -> None:
    case = _case(name)
    network = to_jax(case.model, data_format)
    params, state = network.variables(_arrays(case))

    def loss(params: list[Any]) -> Any:
        outputs = _by_name(network.apply(params, state, case.x, True)[0])
        return sum((each * case.weights[key]).sum() for key, each in outputs.items()), outputs

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    quickly = step.lower(params).compile({"xla_backend_optimization_level": 0})
    (_, outputs), gradients = quickly(params)
    found = {key: np.asarray(each) for key, each in outputs.items()}
    _check(case, found, network.arrays(gradients))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != PAPER])
def test_jax(jax: Any, name: str) -> None:
    _run_jax(jax, name, "NHWC")


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "windows", "dilated"])
def test_jax_with_channels_first(jax: Any, name: str) -> None:
    _run_jax(jax, name, "NCHW")


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet20", "LSTM", "GRU", "GPT"])
def test_jax_with_products_in_half_precision(jax: Any, name: str) -> None:
    case = _case(name)
    network = to_jax(case.model)
    params, state = network.variables(_arrays(case))
    half = jax.numpy.bfloat16

    def loss(params: list[Any], narrow: Any) -> Any:
        outputs, after = network.apply(params, state, case.x, True, narrow)
        return (outputs * case.weights["main"]).sum(), (outputs, after)

    def run(params: list[Any]) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(params, half)

    (_, (outputs, after)), gradients = jax.jit(run)(params)
    assert outputs.dtype == half
    # Parameters, their gradients and the statistics are not narrowed.
    assert {each.dtype.name for each in (*gradients, *after.statistics)} == {"float64"}
    expected = case.outputs["main"]
    difference = np.linalg.norm(np.asarray(outputs, np.float64) - expected)
    assert difference < 0.05 * np.linalg.norm(expected)
    for line in str(jax.make_jaxpr(run)(params)).splitlines():
        if " dot_general" in line or " conv_general_dilated" in line:
            assert "bf16[" in line.split("=")[0], line


# --- evaluation, running statistics, float32


def _small(dtype: str = "float64") -> cd.NeuralNetwork:
    layers = [
        nn.Input((3, 8, 8)),
        nn.Conv2D(4, 3),
        nn.BatchNorm(momentum=0.3),
        nn.LocalResponseNorm(3, 0.5),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Dense(5),
    ]
    return cd.NeuralNetwork(layers, dtype=dtype)


def _after_a_step(model: cd.NeuralNetwork, x: np.ndarray) -> list[np.ndarray]:
    """The running statistics that one step of Caldera would leave."""
    given = op.input("x", x.shape, dtype=x.dtype.name)
    with nn.trace(training=True, dtype=x.dtype.name, random=op.random_state()) as traced:
        model(given)
    news = [traced.latest(state) for state in model.states()]
    return [tensor.numpy().copy() for tensor in compile(news).run({"x": x})]


def _equal(first: list[np.ndarray], second: list[np.ndarray], within: float = 1e-12) -> None:
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, rtol=within, atol=within)


def _random_images(dtype: str) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(4, 3, 8, 8)).astype(dtype)


def test_torch_keeps_running_statistics_and_evaluates_with_them(torch: Any) -> None:
    model = _small()
    x = _random_images("float64")
    network = to_torch(model)
    network.module(torch.from_numpy(x))
    _equal(network.states(), _after_a_step(model, x))
    network = to_torch(model)
    network.module.eval()
    _equal([network.module(torch.from_numpy(x)).detach().numpy()], [model.predict(x)])


def test_jax_keeps_running_statistics_and_evaluates_with_them(jax: Any) -> None:
    model = _small()
    x = _random_images("float64")
    network = to_jax(model)
    params, state = network.variables([p.numpy() for p in model.parameters()])
    _, after = network.apply(params, state, x, training=True)
    _equal(network.states(after), _after_a_step(model, x))
    assert not np.array_equal(after.key, state.key)
    y, same = network.apply(params, state, x, training=False)
    _equal([np.asarray(y)], [model.predict(x)])
    _equal(network.states(same), network.states(state))


def test_dropout_leaves_out_its_part(torch: Any) -> None:
    model = cd.NeuralNetwork([nn.Input((10_000,)), nn.Dropout(0.25)])
    y = to_torch(model).module(torch.ones(1, 10_000)).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(4 / 3)}
    assert 0.2 < (y == 0).mean() < 0.3


def test_a_network_in_float32_can_be_cast(torch: Any) -> None:
    model = _small("float32")
    network = to_torch(model)
    assert {array.dtype for array in network.parameters()} == {np.dtype("float32")}
    network.module.double()
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=p.shape) for p in model.parameters()]
    network.load(arrays)
    _equal(network.parameters(), arrays, within=0)
    assert network.module(torch.zeros(4, 3, 8, 8, dtype=torch.float64)).dtype == torch.float64


def test_loaded_arrays_come_back(jax: Any) -> None:
    case = _case("windows")
    network = to_jax(case.model)
    _equal(network.arrays(network.variables(_arrays(case))[0]), _arrays(case), within=0)


# --- what cannot be translated


def test_wrong_arrays_are_refused(torch: Any) -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    with pytest.raises(ShapeError, match=r"2 arrays.*\(3, 4\), \(4, 3\)"):
        to_torch(model).load([np.zeros((3, 4)), np.zeros(3)])
    with pytest.raises(ShapeError, match="got 1 arrays"):
        to_torch(model).load([np.zeros((4, 3))])


def test_unknown_layers_are_named(torch: Any) -> None:
    @dataclass(eq=False)
    class Own(nn.Dense):
        pass

    for layer in (nn.RNN(3), Own(3)):
        model = cd.NeuralNetwork([nn.Input((4, 3)), nn.Sequential([layer], name="inner")])
        with pytest.raises(ConfigError, match=f"PyTorch, inner/0-{type(layer).__name__}: "):
            to_torch(model)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Dense(3)], "build_for"),
        ([nn.Input((4,)), nn.LayerNorm(1)], "the last axes"),
        ([nn.Input((3, 64, 64)), nn.models.GoogLeNet(5, rescale_input=True)], "rescale_input"),
    ],
)
def test_settings_without_a_translation_are_refused(
    torch: Any, layers: list[nn.Layer], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        to_torch(cd.NeuralNetwork(layers))


def test_attention_with_a_mask_is_refused(torch: Any) -> None:
    layers = [
        nn.Input((5,), dtype="int64"),
        nn.Embedding(7, 4, mask_zero=True),
        nn.TransformerBlock(2),
    ]
    network = to_torch(cd.NeuralNetwork(layers))
    with pytest.raises(ConfigError, match="2-TransformerBlock: expected one sequence"):
        network.module(torch.zeros(2, 5, dtype=torch.int64))


def test_frozen_layers_and_half_precision_are_refused(torch: Any) -> None:
    model = cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)])
    model.freeze()
    with pytest.raises(ConfigError, match="frozen"):
        to_torch(model)
    with pytest.raises(DtypeError, match="bfloat16"):
        to_torch(cd.NeuralNetwork([nn.Input((4,)), nn.Dense(3)], dtype="bfloat16"))


def test_jax_knows_two_orders_of_axes() -> None:
    with pytest.raises(ConfigError, match="NCHW"):
        to_jax(cd.NeuralNetwork([nn.Input((4,))]), data_format="CHWN")


@pytest.mark.parametrize(("package", "translate"), [("torch", to_torch), ("jax", to_jax)])
def test_a_missing_framework_says_what_to_install(
    package: str, translate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=f"pip install {package}"):
        translate(cd.NeuralNetwork([nn.Input((4,))]))


# --- windows


@pytest.mark.parametrize("length", range(5, 12))
@pytest.mark.parametrize("before", [0, 1])
def test_partial_windows_are_those_of_caldera(length: int, before: int) -> None:
    windows = WindowShape("", (3, 3), (2, 2), written=before, partial=True)
    layer = nn.MaxPool2D(3, 2, before, partial_windows=True)
    rows = layer(op.input("x", (1, 1, length, length))).shape[2]
    padding = windows.padding((length, length))[0]
    assert (length + sum(padding) - 3) // 2 + 1 == rows


def test_means_of_adaptive_windows_are_those_of_caldera() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 13, 7)).astype("float32")
    expected = nn.AdaptiveAveragePool2D((6, 3))(x).numpy()
    got = window_means(13, 6) @ x @ window_means(7, 3).T
    np.testing.assert_allclose(got, expected, atol=1e-6)
