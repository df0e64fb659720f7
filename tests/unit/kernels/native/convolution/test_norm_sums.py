"""Convolutions that give the sums of batch normalisation, by every kernel, against the oracle.

Shapes in which blocks of rows are whole images, parts of them, or neither; one to three workers;
and what the oracle cannot say: accuracy where the mean is large, and the same bits for any number
of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec, intern_like
from caldera.core.graph.opdef import OPS, parameter
from caldera.kernels.native.convolution import winograd
from caldera.kernels.native.convolution.norm_sums import convolution_of
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel

SHAPES = [
    (24, 8, 8, 16, 8, 3),
    (4, 8, 9, 32, 32, 3),
    (33, 9, 17, 7, 5, 3),
    (5, 8, 8, 15, 33, 3),
    (3, 5, 70, 6, 4, 1),
]
"""Batch, channels, results, height, width, taps."""
TOLERANCE = {"float32": 1e-4, "float64": 1e-11}


def _numbers(*shape: int, dtype: str, low: float = -2.0, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng([seed, *shape]).uniform(low, 2.0, shape)
    return np.asarray(drawn, dtype)


def _last(array: np.ndarray) -> np.ndarray:
    if array.ndim != 4:
        return array
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def _node(name: str, inputs: Sequence[np.ndarray], **attrs: Any) -> Node:
    """The op with images channels last, all but the filters."""
    plain = [parameter(i, Spec(array.shape, array.dtype)) for i, array in enumerate(inputs)]
    node = OPS[name].node(*plain, **attrs)
    lying = [
        parameter(i, Spec(a.shape, a.dtype, NHWC if a.ndim == 4 and i != 1 else None))
        for i, a in enumerate(inputs)
    ]
    outputs = [
        Spec(spec.shape, spec.dtype, NHWC if spec.rank == 4 else None) for spec in node.outputs
    ]
    return intern_like(node, tuple(lying), tuple(outputs))


def _kernels(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cpu") if each.name != "reference"]


def _computed(kernel: Kernel, node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What a kernel gives; its memory holds nonsense before."""
    outputs = [
        _last(np.full(spec.nbytes, 0xFF, np.uint8).view(spec.dtype).reshape(spec.shape))
        for spec in node.outputs
    ]
    needed = kernel.workspace(node)
    workspace = np.full(needed, 0xFF, np.uint8) if needed else None
    given = tuple(a if i == 1 else _last(a) for i, a in enumerate(inputs))
    kernel.bind(Call(node, tuple(outputs), given, workspace))()
    return outputs


def _forward(shape: tuple[int, ...], dtype: str = "float32", level: float = 0.0) -> Any:
    batch, channels, results, height, width, taps = shape
    x = _numbers(batch, channels, height, width, dtype=dtype) + np.asarray(level, dtype)
    w = _numbers(results, channels, taps, taps, dtype=dtype)
    return _node("conv2d_moments", (x, w), **_how(taps)), (x, w)


def _how(taps: int) -> dict[str, Any]:
    edge = (taps // 2, taps // 2)
    return {"stride": (1, 1), "padding": (edge, edge), "dilation": (1, 1), "groups": 1}


def _backward(shape: tuple[int, ...], mask: str | None, added: bool, dtype: str = "float32") -> Any:
    batch, channels, results, height, width, taps = shape
    image = (batch, channels, height, width)
    vectors = [_numbers(channels, dtype=dtype, seed=i) for i in range(3)]
    variance = _numbers(channels, dtype=dtype, low=0.5)
    inputs = [
        _numbers(batch, results, height, width, dtype=dtype, seed=3),
        _numbers(results, channels, taps, taps, dtype=dtype),
        _numbers(*image, dtype=dtype),
        *vectors[:2],
        variance,
    ]
    inputs += [_numbers(*image, dtype=dtype, seed=4)] if added else []
    inputs += {"x": [vectors[2]], "y": [_numbers(*image, dtype=dtype, seed=5)]}.get(mask or "", [])
    attrs = {"mask": mask, "added": added, "eps": 0.1, "shape": image, **_how(taps)}
    return _node("conv2d_input_norm_reduce", inputs, **attrs), inputs


def _check(node: Node, inputs: Sequence[np.ndarray], dtype: str = "float32") -> list[str]:
    expected = evaluate(node, [np.asarray(each, "float64") for each in inputs])
    kernels = _kernels(node)
    for kernel in kernels:
        for found, right in zip(_computed(kernel, node, inputs), expected, strict=True):
            most = np.abs(right).max() * TOLERANCE[dtype]
            np.testing.assert_allclose(found, right, rtol=0, atol=most, err_msg=kernel.name)
    return [kernel.name for kernel in kernels]


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(settings, "threads", request.param)
    return int(request.param)


@pytest.mark.parametrize("shape", SHAPES)
def test_moments(shape: tuple[int, ...], threads: int) -> None:
    node, inputs = _forward(shape)
    names = _check(node, inputs)
    assert ("winograd 2x2" in names) == (shape[-1] == 3)


@pytest.mark.parametrize(
    ("shape", "mask", "added"),
    [
        (SHAPES[0], None, False),
        (SHAPES[0], "y", True),
        (SHAPES[1], "x", True),
        (SHAPES[2], "x", False),
        (SHAPES[3], "y", False),
        (SHAPES[4], "x", True),
    ],
)
def test_gradients(shape: tuple[int, ...], mask: str | None, added: bool) -> None:
    _check(*_backward(shape, mask, added))


def test_doubles() -> None:
    _check(*_forward(SHAPES[4], "float64"), "float64")
    _check(*_backward(SHAPES[4], "x", True, "float64"), "float64")


def test_winograd_takes_the_sums_itself_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "threads", 2)
    taken = [
        [winograd.takes_sums(convolution_of(node), 2) for node in pair]
        for pair in ((_forward(s)[0], _backward(s, "x", False)[0]) for s in SHAPES[:4])
    ]
    # Images of an odd height are not cut, and the last are too few to be shared.
    assert taken == [[True, True], [True, True], [True, True], [False, False]]


def test_a_large_mean_costs_no_accuracy() -> None:
    node, inputs = _forward(SHAPES[0], level=300.0)
    _, mean, _ = evaluate(node, [np.asarray(each, "float64") for each in inputs])
    for kernel in _kernels(node):
        found = _computed(kernel, node, inputs)
        # Of what was computed, whose own rounding is that of the convolution.
        wide = found[0].astype("float64")
        np.testing.assert_allclose(found[1], wide.mean((0, 2, 3)), rtol=1e-6)
        np.testing.assert_allclose(found[2], wide.var((0, 2, 3)), rtol=1e-5)
        np.testing.assert_allclose(found[1], mean, rtol=1e-5)


def test_bits_do_not_depend_on_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    for node, inputs in (_forward(SHAPES[1]), _backward(SHAPES[1], "y", True)):
        found = []
        for count in (1, 2, 5):
            monkeypatch.setattr(settings, "threads", count)
            (kernel,) = [each for each in _kernels(node) if each.name == "winograd 2x2"]
            found.append([each.tobytes() for each in _computed(kernel, node, inputs)])
        assert found[0] == found[1] == found[2]


def test_nothing_finite_stays_so() -> None:
    node, inputs = _forward(SHAPES[0])
    inputs[0][0, 0, 0, 0] = np.inf
    inputs[0][3, 1, 5, 5] = np.nan
    for kernel in _kernels(node):
        _, mean, variance = _computed(kernel, node, inputs)
        assert not np.isfinite(mean).any(), kernel.name
        assert np.isnan(variance).all(), kernel.name
