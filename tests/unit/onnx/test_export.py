"""What `export` writes, judged by onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import caldera as cd
from caldera import nn, op
from caldera.errors import ConfigError
from tests.unit.onnx.files import by_onnxruntime


class Written(cd.Model):
    """A model that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(loss="mean_squared")
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def agree(model: cd.Model, folder: Path, *inputs: np.ndarray) -> None:
    """The same results in onnxruntime, for these samples and for other numbers of them."""
    model.build_for(*inputs)
    path = cd.onnx.export(model, folder / "model.onnx")
    for count in (len(inputs[0]), 1):
        parts = [each[:count] for each in inputs]
        expected = model.predict(*parts)
        (found, *_) = by_onnxruntime(path, *parts)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-2, 2, shape).astype(np.float32)


LAYERS = {
    "conv1d": (nn.Conv1D(4, 3, stride=2, padding="same"), (3, 9)),
    "conv2d": (nn.Conv2D(6, (3, 2), stride=2, padding=((0, 1), (1, 0)), groups=3), (3, 8, 7)),
    "conv transpose": (
        nn.ConvTranspose2D(2, 3, stride=2, padding=1, output_padding=1),
        (3, 4, 5),
    ),
    "depthwise": (nn.DepthwiseConv2D(3, multiplier=2, padding="same"), (3, 6, 6)),
    "group norm": (nn.GroupNorm(2), (4, 5, 5)),
    "instance norm": (nn.InstanceNorm(affine=True), (4, 5)),
    "rms norm": (nn.RMSNorm(), (4, 5)),
    "slopes by channel": (nn.PReLU(per_channel=True), (3, 4, 4)),
    "layer norm": (nn.LayerNorm((-2, -1)), (4, 5, 6)),
    "layer norm on another axis": (nn.LayerNorm(1), (4, 5)),
    "local response norm": (nn.LocalResponseNorm(3), (6, 4, 4)),
    "local response norm of an even window": (nn.LocalResponseNorm(4), (6, 4, 4)),
    "adaptive pool": (nn.AdaptiveAveragePool2D((2, 3)), (2, 5, 7)),
    "average pool": (nn.AveragePool2D(3, 2, 1, count_padding=False), (2, 7, 7)),
    "max pool": (nn.MaxPool2D(3, 2, partial_windows=True), (2, 8, 8)),
    "gru": (nn.GRU(4, return_sequences=True), (5, 3)),
    "rnn backwards": (nn.RNN(4, go_backwards=True, return_sequences=True), (5, 3)),
    "attention": (nn.MultiHeadAttention(2), (5, 6)),
    "activations": (
        nn.Sequential(
            [
                nn.LeakyReLU(0.2),
                nn.ELU(),
                nn.SELU(),
                nn.GELU(),
                nn.SiLU(),
                nn.Softplus(),
                nn.HardSwish(),
                nn.HardSigmoid(),
                nn.Softmax(),
            ]
        ),
        (7,),
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_the_same_in_onnxruntime(name: str, tmp_path: Path) -> None:
    layer, shape = LAYERS[name]
    agree(
        cd.NeuralNetwork([nn.Input(shape), layer], loss="mean_squared"),
        tmp_path,
        numbers(3, *shape),
    )


def _bits(n: Any) -> Any:
    counts = op.cast(op.abs(n) % 80, n.dtype)
    return ((n & 60) ^ (n | 17)) + ~n + (n << counts) * 3 + (n >> counts)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "arithmetic": lambda x: (x + 1.0) * x - x / 3.0 + abs(x) ** 1.5 - (-x),
    "remainders": lambda x: op.mod(x, 0.7) + op.floor_div(x, 0.3),
    "remainders of whole numbers": lambda x: op.cast(
        op.cast(x * 10.0, "int64") % 3 + op.cast(x * 10.0, "int64") // 3, "float32"
    ),
    "bits": lambda x: op.cast(_bits(op.cast(x * 50.0, "int16")), "float32"),
    "bits of unsigned integers": lambda x: op.cast(
        _bits(op.cast(op.abs(x) * 50.0, "uint64")), "float32"
    ),
    "products of integers": lambda x: (
        op.cast(
            op.matmul(op.cast(x * 50.0, "int8"), op.cast(x * 50.0, "int8"), transpose_b=True),
            "float32",
        )
        + op.cast(op.cast(x, "int64") @ np.ones((5, 4), np.int64) + 1, "float32")
    ),
    "signs": lambda x: op.copysign(x * 2.0, op.ceil(x / 10.0)) + op.signbit(-x),
    "functions": lambda x: op.exp(x) + op.log(abs(x) + 0.1) + op.sin(x) * op.cos(x) + op.erf(x),
    "near zero": lambda x: op.log1p(abs(x)) + op.expm1(x),
    "angles": lambda x: op.tan(x) + op.atan(x) + op.asin(x / 9.0) + op.acos(x / 9.0),
    "hyperbolic": lambda x: (
        op.sinh(x) + op.cosh(x) + op.asinh(x) + op.acosh(abs(x) + 1.0) + op.atanh(x / 9.0)
    ),
    "other bases": lambda x: op.log2(abs(x) + 1.0) + op.log10(abs(x) + 1.0) + op.exp2(x),
    "lengths": lambda x: op.hypot(x, 2.0) + op.logaddexp(x, 1.0) + op.erfc(x) + op.trunc(x),
    "gates": lambda x: op.mish(x) + op.softsign(x) + op.prelu(x, 0.3),
    "roots": lambda x: op.rsqrt(abs(x) + 1.0) + op.sqrt(abs(x)) + op.reciprocal(x + 4.0),
    "rounding": lambda x: op.floor(x) + op.ceil(x) + op.round(x) + op.sign(x) + op.square(x),
    "comparison": lambda x: op.where(
        op.logical_and(x > 0.0, op.logical_not(x == 1.0)) | (x != x), x, -x
    ),
    "finite": lambda x: op.where(op.isfinite(x / (x - x)), x, 2.0) + op.where(op.isnan(x), 1.0, x),
    "extremes": lambda x: op.maximum(x, 0.5) + op.minimum(x, 0.1) + op.clip(x, -0.3, 0.3),
    "reductions": lambda x: op.sum(x, 1, keepdims=True) + op.max(x, (1, 2), keepdims=True),
    "more reductions": lambda x: op.prod(x, 2) - op.min(x, 2) + op.mean(x, 2) + op.logsumexp(x, 2),
    "norms": lambda x: op.norm(x, axis=2) + op.variance(x, axis=2),
    "places": lambda x: op.cast(op.argmax(x, 2) + op.argmin(x, 2), "float32"),
    "running sum": lambda x: op.cumsum(x, 1, reverse=True),
    "moving": lambda x: op.flip(op.transpose(x, (0, 2, 1))[:, ::2, 1:], 1),
    "padding": lambda x: op.pad(x, ((0, 0), (1, 2), (0, 1)), 3.0),
    "repeating": lambda x: op.concat([op.tile(x, (1, 2, 1)), op.repeat(x, 2, 1)], axis=2),
    "over the samples": lambda x: x - op.mean(x, 0) + op.sum(x) / x.size,
    "samples and steps joined": lambda x: op.reshape(op.reshape(x, (-1, 5)) * 2.0, x.shape),
    "splitting": lambda x: op.split(x, (1, 3), axis=1)[1] * op.split(x, (3, 1), axis=1)[0],
    "products": lambda x: op.einsum("nij,nkj->nik", x, x) @ op.matmul(x, x, transpose_b=True),
    "sorting": lambda x: op.sort(x, 2, descending=True) + op.top_k(x, 2, 1)[0][:, :1],
    "looking up": lambda x: (
        op.gather(x, [2, 0, -1], axis=1) + op.take_along_axis(x, op.argsort(x, 1), 1)[:, :3]
    ),
    "one hot": lambda x: op.one_hot(op.argmax(x, 2), 5) + op.softmax(x, 2) + op.log_softmax(x, 1),
    "adding at places": lambda x: op.put_along_axis_add(x, op.argsort(x, 2), x, 2),
    "adding rows at places": lambda x: op.scatter_add(
        x, [[0, 2], [-1, 0]], x[:, :2, None] * np.ones((1, 1, 2, 1), np.float32), axis=1
    ),
    "arrays as indices": lambda x: x[:, [0, 2], ::2] + x[:, np.arange(4) % 2 == 0][:, :, [1, 1, 0]],
    "new values at places": lambda x: x.at[:, [1, 3]].set(0.5).at[:, op.argmax(x[0], 0)].add(1.0),
    "masked attention": lambda x: op.scaled_dot_product_attention(x, x, x, mask=x[:, :, :4] > 0.0),
    "causal attention": lambda x: op.scaled_dot_product_attention(x[:, 2:], x, x, causal=True),
    "triangles": lambda x: op.tril(x) + op.triu(x, 2),
    "a loop": lambda x: op.scan(
        lambda total, step: (total + step, None), x[:, 0] * 0.0, op.transpose(x, (1, 0, 2))
    )[0],
    "loss": lambda x: op.square(x - 1.0) + op.elu(x, 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_expression_is_the_same_in_onnxruntime(name: str, tmp_path: Path) -> None:
    agree(Written(FUNCTIONS[name]), tmp_path, numbers(3, 4, 5))


def test_several_inputs_and_outputs_keep_their_names(tmp_path: Path) -> None:
    class Two(cd.Model):
        def __init__(self) -> None:
            super().__init__(loss={"sum": "mean_squared"})
            self.dense = nn.Dense(3)

        def forward(self, a: Any, b: Any) -> Any:
            return {"sum": self.dense(a) + b, "difference": self.dense(a) - b}

    model, a, b = Two(), numbers(4, 5), numbers(4, 3)
    model.build_for(a, b)
    path = cd.onnx.export(model, tmp_path / "two.onnx")
    graph = onnx.load(path).graph
    assert [each.name for each in graph.input] == ["input0", "input1"]
    assert [each.name for each in graph.output] == ["sum", "difference"]
    assert {each.name for each in graph.initializer} == {"dense/weight", "dense/bias"}
    total, difference = by_onnxruntime(path, a, b)
    np.testing.assert_allclose(total - difference, 2 * b, rtol=1e-5, atol=1e-5)


def test_products_and_convolutions_take_their_bias_with_them(tmp_path: Path) -> None:
    model = cd.NeuralNetwork(nn.models.lenet5())
    graph = onnx.load(cd.onnx.export(model, tmp_path / "lenet5.onnx")).graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("Conv") == 2
    assert kinds.count("Gemm") == 3
    assert "Add" not in kinds
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "samples"


def test_a_product_that_is_itself_a_result_stays(tmp_path: Path) -> None:
    weight, bias = numbers(3, 2), numbers(2)

    def both(x: Any) -> dict[str, Any]:
        product = x @ weight
        return {"output": product + bias, "product": product}

    model, x = Written(both), numbers(4, 3)
    model.build_for(x)
    total, product = by_onnxruntime(cd.onnx.export(model, tmp_path / "m.onnx"), x)
    np.testing.assert_allclose(product, x @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total - product, np.broadcast_to(bias, (4, 2)), atol=1e-5)


def test_a_number_of_samples_can_be_fixed(tmp_path: Path) -> None:
    # The square of the number of samples is no size that a file could leave open.
    model = Written(lambda x: op.reshape(x @ op.transpose(x), (-1,)))
    x = numbers(4, 3)
    model.build_for(x)
    with pytest.raises(ConfigError, match="batch_size="):
        cd.onnx.export(model, tmp_path / "open.onnx")
    path = cd.onnx.export(model, tmp_path / "fixed.onnx", batch_size=4)
    np.testing.assert_allclose(by_onnxruntime(path, x)[0], (x @ x.T).reshape(-1), rtol=1e-5)


def test_what_onnx_has_no_form_for_is_named(tmp_path: Path) -> None:
    model = Written(lambda x: op.qr(x)[0])
    model.build_for(numbers(2, 3, 3))
    with pytest.raises(ConfigError, match="ops that ONNX has a form for, got qr"):
        cd.onnx.export(model, tmp_path / "qr.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_needs_a_folder(tmp_path: Path) -> None:
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)])
    with pytest.raises(ConfigError, match="a folder that exists"):
        cd.onnx.export(model, tmp_path / "none" / "model.onnx")
