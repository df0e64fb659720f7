"""Our own convolutions on a card: every kind, dtype and memory order, odd shapes, cut sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import product
from caldera.core.graph.ops.epilogue import conv2d_epilogue
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.convolution import implicit_gemm
from caldera.kernels.cuda.convolution import source as convolution_source
from caldera.kernels.cuda.convolution.implicit_gemm import Divider
from caldera.kernels.cuda.product.problem import TILES, ProductTiling, ThreadTile
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE
from tests.card.accepted import check_for_a_card
from tests.card.candidates import check, run_kernel
from tests.card.test_product import numbers
from tests.unit.kernels.checking import DTYPES, compare, in_both_orders
from tests.unit.ops.cases.convolution import SETTINGS, Setting, output_shape

FEW_LAYOUTS = ("dense", "channels last")


def nodes_of(setting: Any, dtype: str) -> Iterator[Node]:
    """The convolution and both of its gradients, with images row major and channels last."""
    x, w, g = (
        parameter(index, Spec(shape, BY_NAME[dtype]))
        for index, shape in enumerate([setting.x, setting.w, output_shape(setting)])
    )
    yield from in_both_orders(product.conv2d(x, w, **setting.how))
    yield from in_both_orders(product.conv2d_input(g, w, shape=setting.x, **setting.how))
    yield from in_both_orders(product.conv2d_weight(x, g, shape=setting.w, **setting.how))


def inputs_of(node: Node) -> tuple[np.ndarray, ...]:
    """Numbers for its inputs."""
    return numbers(*[given.shape for given in node.inputs], dtype=node.dtype.name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_kind(card: Device, setting: Setting, dtype: str) -> None:
    for node in nodes_of(setting, dtype):
        assert "direct" in check(card, node, inputs_of(node))


EpilogueCode = tuple[bool, str | None, Any]
"""Whether there is a bias; the activation and its attributes."""
ENDINGS: list[EpilogueCode] = [
    (True, "relu", ()),
    (False, "tanh", ()),
    (True, "leaky_relu", (("slope", 0.1),)),
    (True, "sigmoid", ()),
    (True, None, ()),
    (True, "gelu", (("approximate", False),)),
]


def ended_of(setting: Setting, dtype: str, ending: EpilogueCode) -> Iterator[Node]:
    """A convolution that ends so, with images row major and channels last."""
    has_bias, activation, attributes = ending
    shapes = [setting.x, setting.w, *([(setting.w[0], 1, 1)] if has_bias else [])]
    given = [parameter(i, Spec(shape, BY_NAME[dtype])) for i, shape in enumerate(shapes)]
    how = {"activation": activation, "attributes": attributes, **setting.how}
    yield from in_both_orders(conv2d_epilogue(*given, **how))


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: str(ending[1]))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_bias_and_activation(card: Device, ending: EpilogueCode, dtype: str) -> None:
    for setting in (TILED[0], TILED[3]):
        for node in ended_of(setting, dtype, ending):
            assert "direct" in check(card, node, inputs_of(node), layouts=FEW_LAYOUTS)


def test_a_relu_lets_nan_through(card: Device) -> None:
    for node in ended_of(TILED[0], "bfloat16", ENDINGS[0]):
        images, filters, bias = inputs_of(node)
        images[0, 0, 4, 3] = np.nan
        images[1, 1, 2, 2] = -np.inf
        check(card, node, (images, filters, bias), layouts=FEW_LAYOUTS)


TILED = [
    Setting("3x3", (2, 8, 9, 7), (12, 8, 3, 3), padding=((1, 1), (1, 1))),
    Setting("strided", (2, 12, 9, 8), (16, 12, 3, 3), stride=(2, 2), padding=((1, 0), (0, 1))),
    Setting("grouped, dilated", (1, 16, 7, 8), (24, 8, 2, 3), dilation=(2, 1), groups=2),
    Setting("1x1", (3, 16, 5, 4), (20, 16, 1, 1)),
    Setting("three channels", (2, 3, 11, 10), (9, 3, 5, 5), stride=(2, 1)),
    Setting("one channel", (2, 1, 11, 10), (9, 1, 5, 5)),
]


@pytest.mark.parametrize(
    ("setting", "dtype"),
    [(TILED[1], dtype) for dtype in DTYPES] + [(setting, "float32") for setting in TILED[2:]],
    ids=lambda value: getattr(value, "name", value),
)
def test_tiles(card: Device, setting: Setting, dtype: str) -> None:
    for node in nodes_of(setting, dtype):
        assert "direct" in check(card, node, inputs_of(node), layouts=FEW_LAYOUTS)


def test_without_a_workspace(card: Device) -> None:
    for setting in (TILED[1], SETTINGS[9]):
        for node in nodes_of(setting, "float32"):
            (kernel,) = [each for each in TABLE.candidates(node, "cuda") if each.name == "direct"]
            inputs = inputs_of(node)
            (result,) = run_kernel(card, replace(kernel, workspace=lambda _: 0), node, inputs)
            compare(result, evaluate(node, inputs)[0])


@pytest.mark.parametrize("layout", ["with gaps", "columns first", "backwards", "repeated"])
def test_arrays_that_lie_anyhow(card: Device, layout: str) -> None:
    for node in nodes_of(TILED[1], "float32"):
        check(card, node, inputs_of(node), ["direct"], layouts=(layout,))


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.side}")
def test_tiles_of_every_size(
    card: Device,
    tile: ThreadTile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def chosen(rows: int, columns: int, length: int, count: int, *rest: int) -> ProductTiling:
        across, down = -(-columns // tile.side), -(-rows // tile.side)
        span = max(1, -(-length // tile.depth)) * tile.depth
        return ProductTiling(tile, across, down, 1, span, length, count)

    for module in (implicit_gemm, implicit_gemm):
        monkeypatch.setattr(module, "tiling", chosen)
    for setting in TILED[:2]:
        for node in nodes_of(setting, "float32"):
            check(card, node, inputs_of(node), ["direct"], layouts=("channels last",))


LONG = Setting("many pixels", (4, 12, 16, 16), (9, 12, 3, 3))
THIN = Setting("many pixels, depthwise", (3, 6, 20, 20), (6, 1, 3, 3), groups=6)


@pytest.mark.parametrize("setting", [LONG, THIN], ids=lambda setting: setting.name)
def test_long_sums_are_cut(card: Device, setting: Setting) -> None:
    for node in nodes_of(setting, "float32"):
        (kernel,) = [each for each in TABLE.candidates(node, "cuda") if each.name == "direct"]
        if node.op.name == "conv2d_weight":
            assert kernel.workspace(node) >= 2 * node.spec.nbytes
        inputs = inputs_of(node)
        check(card, node, inputs, ["direct"], layouts=("channels last",))
        (first,), (second,) = (run_kernel(card, kernel, node, inputs) for _ in range(2))
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("precision", [None, "tf32", "bfloat16"])
def test_training_steps(card: Device, precision: str | None) -> None:
    images = np.random.default_rng(0).uniform(-1, 1, (4, 3, 9, 9)).astype("float32")
    losses = {}
    for place in ("cpu", card):
        x = cd.tensor(images, device=place)
        first = op.var("first", (8, 3, 3, 3), fill=cd.constant(0.1), device=place)
        second = op.var("second", (12, 8, 1, 1), fill=cd.constant(0.1), device=place)
        hidden = op.relu(op.conv2d(x, first, stride=2, padding=1))
        loss = op.mean(op.conv2d(hidden, second) ** 2.0)
        gradients = op.grad(loss, [first, second])
        steps = [op.assign(v, v - 0.1 * g) for v, g in zip((first, second), gradients, strict=True)]
        plan = cd.compile([loss, *steps], device=place, precision=precision)
        losses[place] = [plan.run()[0].item() for _ in range(3)]
        names = {step.node.op.name: step.kernel for step in plan.schedule.steps}
        assert names["conv2d_weight"].family == ("cpu" if place == "cpu" else "cuda")
    tolerance = {None: 1e-5, "tf32": 2e-3, "bfloat16": 1e-2}[precision]
    np.testing.assert_allclose(losses[card], losses["cpu"], rtol=tolerance)


def test_division_by_multiplication() -> None:
    generator = np.random.default_rng(0)
    for divisor in (1, 2, 3, 5, 7, 9, 49, 64, 112, 12544, 65537, 2**30 + 1):
        by = Divider.by(divisor)
        for number in (0, 1, divisor - 1, divisor, 2**31 - 1, *generator.integers(0, 2**31, 50)):
            high = (int(number) * by.magic) >> 32
            assert (high + int(number)) >> by.shift == number // divisor


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_text_is_cuda(dtype: str) -> None:
    many = min(4, 16 // BY_NAME[dtype].itemsize)
    tile = TILES[1 if dtype == "float64" else 0]
    sources = [
        convolution_source.tiles_text(kernel, dtype, tile, (whole, many), (not whole, 1), whole)
        for kernel in (convolution_source.CORRELATE, convolution_source.WEIGHT)
        for whole in (True, False)
    ]
    sources += [
        convolution_source.text(convolution_source.EACH, dtype, last=last)
        for last in ("true", "false")
    ]
    sources += [convolution_source.text(convolution_source.EACH_WEIGHT, dtype)]
    sources += [
        convolution_source.text(convolution_source.SPLIT_K_REDUCE, dtype, places=each)
        for each in ("ImagePlaces", "FilterPlaces")
    ]
    for source in sources:
        check_for_a_card(source)
