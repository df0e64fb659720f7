"""Normalisation, softmax and cross entropy as native kernels, against the oracle.

Shapes with tails in every direction, both layouts of images, all float dtypes, one to three
workers; and what the oracle cannot say: accuracy where the mean is large, the same bits for any
number of workers, and results that are written over an input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.native import families  # noqa: F401 - registers its kernels
from caldera.kernels.native.codegen import strides
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel

Layout = Callable[[np.ndarray], np.ndarray]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
DTYPES = ("float32", "float64", "float16", "bfloat16")
EPS = 1e-5
RESPONSE = {"window": 5, "alpha": 0.5, "beta": 0.75, "k": 2.0}


def rows(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array)


def channels_last(array: np.ndarray) -> np.ndarray:
    """Images with all channels of a pixel side by side; anything else as it is."""
    if array.ndim != 4:
        return array
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def numbers(*shape: int, dtype: str, seed: int = 0, low: float = -2.0) -> np.ndarray:
    generator = np.random.default_rng([seed, *shape])
    return np.asarray(generator.uniform(low, 3.0, shape)).astype(BY_NAME[dtype])


def made(name: str, inputs: Sequence[np.ndarray], **attrs: Any) -> Node:
    given = [parameter(i, Spec(array.shape, array.dtype)) for i, array in enumerate(inputs)]
    return OPS[name].node(*given, **attrs)


def kernel_of(node: Node) -> Kernel:
    (kernel,) = [each for each in TABLE.candidates(node, "cpu") if each.name == "native"]
    return kernel


def computed(
    node: Node,
    inputs: Sequence[np.ndarray],
    layout: Layout = rows,
    outputs: Sequence[np.ndarray] | None = None,
) -> tuple[np.ndarray, ...]:
    """What the native kernel gives; its memory holds nonsense before."""
    kernel = kernel_of(node)
    if outputs is None:
        outputs = [
            layout(np.full(spec.nbytes, 0xFF, np.uint8).view(spec.dtype).reshape(spec.shape))
            for spec in node.outputs
        ]
    needed = kernel.workspace(node)
    workspace = np.full(needed, 0xFF, np.uint8) if needed else None
    given = tuple(layout(array) for array in inputs)
    kernel.bind(Call(node, tuple(outputs), given, workspace))()
    return tuple(outputs)


def check(name: str, inputs: Sequence[np.ndarray], layout: Layout = rows, **attrs: Any) -> None:
    node = made(name, inputs, **attrs)
    with np.errstate(all="ignore"):
        expected = evaluate(node, inputs)
    for found, right in zip(computed(node, inputs, layout), expected, strict=True):
        wide = right.astype("float64")
        scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
        tolerance = TOLERANCE[right.dtype.name]
        np.testing.assert_allclose(
            found.astype("float64"), wide, rtol=tolerance, atol=tolerance * scale
        )


@pytest.fixture(params=[1, 2, 3])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A number of threads, with everything large enough to be shared by them."""
    monkeypatch.setattr(strides, "CHEAP", 1)
    monkeypatch.setattr(strides, "COSTLY", 1)
    before = settings.threads
    settings.threads = request.param
    yield request.param
    settings.threads = before


# --- batch, group, neighbouring channels

IMAGES = [(2, 3, 5, 7), (3, 17, 20, 15), (1, 1, 2, 2), (2, 64, 3, 1)]
OTHERS = [(300, 21), (7, 3), (2, 6, 5), (1, 4)]


def _statistics(shape: tuple[int, ...], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    wide = "float64" if dtype == "float64" else "float32"
    return numbers(*shape, dtype=wide, seed=5), numbers(*shape, dtype=wide, seed=6, low=0.5)


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        *[(shape, "float32", layout) for shape in IMAGES for layout in (rows, channels_last)],
        *[(shape, "float32", rows) for shape in OTHERS],
        (IMAGES[1], "float64", channels_last),
        (IMAGES[1], "float16", rows),
        (IMAGES[1], "bfloat16", channels_last),
    ],
)
def test_images(shape: tuple[int, ...], dtype: str, layout: Layout) -> None:
    channels = shape[1]
    x, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    groups = next(n for n in (4, 3, 2, 1) if channels % n == 0)
    for vectors in {dtype, "float32" if dtype == "float16" else dtype}:
        scale, shift = (numbers(channels, dtype=vectors, seed=seed) for seed in (3, 4))
        statistics = _statistics((channels,), dtype)
        batch = {"axis": 1, "eps": EPS}
        check("batch_norm", (x, scale, shift), layout, **batch)
        check("batch_norm_grad", (g, x, scale, *statistics), layout, **batch)
        check("batch_norm_inference", (x, scale, shift, *statistics), layout, **batch)
        for more in ((), (g,)):
            check("batch_norm_relu", (x, scale, shift, *more), layout, **batch)
            check(
                "batch_norm_inference_relu", (x, scale, shift, *statistics, *more), layout, **batch
            )
        check("batch_norm_relu_grad", (g, x, scale, shift, *statistics), layout, **batch)
        of_groups = _statistics((shape[0], groups), dtype)
        check("group_norm", (x, scale, shift), layout, groups=groups, eps=EPS)
        check("group_norm_grad", (g, x, scale, *of_groups), layout, groups=groups, eps=EPS)
    check("local_response_norm", (x,), layout, **RESPONSE)
    check("local_response_norm_grad", (g, x), layout, **RESPONSE)


@pytest.mark.parametrize(("window", "beta"), [(1, 0.5), (2, 0.6), (8, 1.0)])
def test_windows_of_channels(window: int, beta: float) -> None:
    x, g = (numbers(2, 11, 3, 3, dtype="float32", seed=seed) for seed in (1, 2))
    attrs = {**RESPONSE, "window": window, "beta": beta}
    for layout in (rows, channels_last):
        check("local_response_norm", (x,), layout, **attrs)
        check("local_response_norm_grad", (g, x), layout, **attrs)


def test_images_whose_operands_lie_differently() -> None:
    x, g = (numbers(2, 5, 4, 3, dtype="float32", seed=seed) for seed in (1, 2))
    scale = numbers(5, dtype="float32", seed=3)
    inputs = (channels_last(g), x, scale, *_statistics((5,), "float32"))
    check("batch_norm_grad", inputs, axis=1, eps=EPS)


# --- layers


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((5, 7), (1,)),
        ((131, 64), (1,)),
        ((3, 4, 33), (2,)),
        ((3, 4, 33), (1, 2)),
        ((3, 4, 5), (1,)),
        ((4, 3, 2), (0, 2)),
        ((6,), (0,)),
        ((3, 2500), (1,)),
        ((3, 1), (1,)),
    ],
)
def test_layers(shape: tuple[int, ...], axis: tuple[int, ...], dtype: str) -> None:
    x, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    own = tuple(shape[a] for a in axis)
    scale, shift = (numbers(*own, dtype=dtype, seed=seed) for seed in (3, 4))
    statistics = _statistics(tuple(n for a, n in enumerate(shape) if a not in axis), dtype)
    check("layer_norm", (x, scale, shift), axis=axis, eps=EPS)
    check("layer_norm_grad", (g, x, scale, *statistics), axis=axis, eps=EPS)


def test_gradients_in_half_precision_beside_x_of_float32() -> None:
    shape = (6, 8, 5, 3)
    g, x = numbers(*shape, dtype="bfloat16", seed=2), numbers(*shape, dtype="float32", seed=1)

    def backward(name: str, own: int, *samples: int, **attrs: Any) -> None:
        scale = numbers(own, dtype="float32", seed=3)
        check(name, (g, x, scale, *_statistics(samples, "float32")), **attrs, eps=EPS)

    backward("layer_norm_grad", 3, 6, 8, 5, axis=(3,))
    backward("batch_norm_grad", 8, 8, axis=1)
    backward("group_norm_grad", 8, 6, 4, groups=4)


# --- classes

CLASSES = [
    ((65, 10), 1),
    ((3, 1000), 1),
    ((2, 2500), 1),
    ((2, 21, 5, 7), 1),
    ((3, 100, 9), 1),
    ((10, 33), 0),
    ((2, 3, 5), 2),
    ((1, 1), 1),
    ((7,), 0),
    ((100,), 0),
    ((4, 1), 1),
]


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        *[(*given, "float32") for given in CLASSES],
        *[(*given, dtype) for given in CLASSES[:2] for dtype in DTYPES[1:]],
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_classes(shape: tuple[int, ...], axis: int, dtype: str, special: bool) -> None:
    x, g = (numbers(*shape, dtype=dtype, seed=seed) for seed in (1, 2))
    if special:
        x.flat[0], x.flat[-1], x.flat[x.size // 2] = np.inf, -np.inf, np.nan
    kept = tuple(n for a, n in enumerate(shape) if a != axis)
    labels = np.random.default_rng(3).integers(0, shape[axis], kept)
    targets, slopes = numbers(*shape, dtype=dtype, low=0.0), numbers(*kept, dtype=dtype)
    targets.flat[0] = 0
    check("softmax", (x,), axis=axis)
    check("log_softmax", (x,), axis=axis)
    check("softmax_grad", (g, x), axis=axis)
    check("log_softmax_grad", (g, -np.abs(x)), axis=axis)
    check("cross_entropy", (x, labels), axis=axis)
    check("cross_entropy_grad", (slopes, x, labels), axis=axis)
    check("cross_entropy_probabilities", (x, targets), axis=axis)
    check("cross_entropy_probabilities_grad", (slopes, x, targets), axis=axis)


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_labels_that_are_no_class_give_nan(classes: int, dtype: str) -> None:
    x = numbers(5, classes, dtype="float32")
    labels = np.array([0, classes - 1, classes, 127, 1]).astype(dtype)
    (losses,) = computed(made("cross_entropy", (x, labels), axis=1), (x, labels))
    np.testing.assert_array_equal(np.isnan(losses), labels >= classes)
    check("cross_entropy_grad", (np.ones(5, "float32"), x, labels), axis=1)


def test_a_gradient_that_is_one_number_for_all_samples() -> None:
    x = numbers(50, 10, dtype="float32")
    labels = np.arange(50) % 10
    slopes = np.broadcast_to(np.float32(0.02), (50,))
    node = made("cross_entropy_grad", (slopes, x, labels), axis=1)
    outputs = (np.empty((50, 10), "float32"),)
    kernel_of(node).bind(Call(node, outputs, (slopes, x, labels)))()
    np.testing.assert_allclose(outputs[0], evaluate(node, (slopes, x, labels))[0], atol=1e-8)


# --- what the oracle does not say


@pytest.mark.parametrize("layout", [rows, channels_last])
def test_a_large_mean_costs_no_accuracy(layout: Layout) -> None:
    """The variance of numbers near 1000 with deviation 0.01, against float64."""
    noise = np.random.default_rng(0).normal(0.0, 0.01, (8, 12, 15, 15))
    x = (1000.0 + noise).astype("float32")
    scale, shift = np.ones(12, "float32"), np.zeros(12, "float32")
    _, mean, variance = computed(
        made("batch_norm", (x, scale, shift), axis=1, eps=EPS), (x, scale, shift), layout
    )
    exact = x.astype("float64")
    np.testing.assert_allclose(mean, exact.mean((0, 2, 3)), rtol=1e-7)
    np.testing.assert_allclose(variance, exact.var((0, 2, 3)), rtol=1e-5)
    ones, zeros = np.ones(12 * 225, "float32"), np.zeros(12 * 225, "float32")
    flat = x.reshape(8, -1)
    layer = made("layer_norm", (flat, ones, zeros), axis=(1,), eps=EPS)
    _, mean, variance = computed(layer, (flat, ones, zeros))
    np.testing.assert_allclose(variance, flat.astype("float64").var(1), rtol=1e-5)


def _sample(name: str) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    x, g = (numbers(6, 12, 17, 17, dtype="float32", seed=seed) for seed in (1, 2))
    table, slopes = x.reshape(-1, 17), g.reshape(-1, 17)
    scale, shift = (numbers(12, dtype="float32", seed=seed) for seed in (3, 4))
    labels = np.arange(len(table)) % 17
    samples: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {
        "batch_norm": ((x, scale, shift), {"axis": 1, "eps": EPS}),
        "batch_norm_grad": (
            (g, x, scale, *_statistics((12,), "float32")),
            {"axis": 1, "eps": EPS},
        ),
        "batch_norm_inference": (
            (x, scale, shift, *_statistics((12,), "float32")),
            {"axis": 1, "eps": EPS},
        ),
        "batch_norm_relu": ((x, scale, shift, g), {"axis": 1, "eps": EPS}),
        "batch_norm_relu_grad": (
            (g, x, scale, shift, *_statistics((12,), "float32")),
            {"axis": 1, "eps": EPS},
        ),
        "group_norm": ((x, scale, shift), {"groups": 3, "eps": EPS}),
        "group_norm_grad": (
            (g, x, scale, *_statistics((6, 3), "float32")),
            {"groups": 3, "eps": EPS},
        ),
        "layer_norm": (
            (table, shift[:1].repeat(17), scale[:1].repeat(17)),
            {"axis": (1,), "eps": EPS},
        ),
        "layer_norm_grad": (
            (slopes, table, numbers(17, dtype="float32"), *_statistics((len(table),), "float32")),
            {"axis": (1,), "eps": EPS},
        ),
        "local_response_norm": ((x,), RESPONSE),
        "local_response_norm_grad": ((g, x), RESPONSE),
        "softmax": ((table,), {"axis": 1}),
        "softmax_grad": ((slopes, table), {"axis": 1}),
        "log_softmax": ((table,), {"axis": 1}),
        "log_softmax_grad": ((slopes, table), {"axis": 1}),
        "cross_entropy": ((table, labels), {"axis": 1}),
        "cross_entropy_grad": ((slopes[:, 0].copy(), table, labels), {"axis": 1}),
        "cross_entropy_probabilities": ((table, slopes), {"axis": 1}),
        "cross_entropy_probabilities_grad": ((slopes[:, 0].copy(), table, slopes), {"axis": 1}),
    }
    return samples[name]


NAMES = [
    "batch_norm",
    "batch_norm_grad",
    "batch_norm_inference",
    "batch_norm_relu",
    "batch_norm_relu_grad",
    "group_norm",
    "group_norm_grad",
    "layer_norm",
    "layer_norm_grad",
    "local_response_norm",
    "local_response_norm_grad",
    "softmax",
    "softmax_grad",
    "log_softmax",
    "log_softmax_grad",
    "cross_entropy",
    "cross_entropy_grad",
    "cross_entropy_probabilities",
    "cross_entropy_probabilities_grad",
]
NEVER_IN_PLACE = (
    "cross_entropy",
    "cross_entropy_probabilities",
    "cross_entropy_probabilities_grad",
)


@pytest.mark.parametrize("layout", [rows, channels_last])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_workers_gives_the_same_bits(name: str, layout: Layout, workers: int) -> None:
    inputs, attrs = _sample(name)
    node = made(name, inputs, **attrs)
    shared = computed(node, inputs, layout)
    settings.threads = 1
    for one, other in zip(computed(node, inputs, layout), shared, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("layout", [rows, channels_last])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEVER_IN_PLACE])
def test_outputs_may_lie_where_inputs_were(name: str, layout: Layout) -> None:
    """Every output over every input of its shape and dtype."""
    inputs, attrs = _sample(name)
    node = made(name, inputs, **attrs)
    assert kernel_of(node).in_place(node)
    right = computed(node, inputs, layout)
    for index, spec in enumerate(node.outputs):
        for place, given in enumerate(inputs):
            if given.shape != spec.shape or given.dtype != spec.dtype:
                continue
            copies = [layout(array.copy()) for array in inputs]
            outputs = [layout(np.empty(each.shape, each.dtype)) for each in node.outputs]
            outputs[index] = copies[place]
            kernel = kernel_of(node)
            workspace = np.empty(max(kernel.workspace(node), 1), np.uint8)
            kernel.bind(Call(node, tuple(outputs), tuple(copies), workspace))()
            for found, wanted in zip(outputs, right, strict=True):
                np.testing.assert_array_equal(found, wanted)
