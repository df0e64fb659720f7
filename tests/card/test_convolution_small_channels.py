"""Convolutions of few channels on a card: every way to read channels, strides, uneven edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec, intern
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops import product
from caldera.core.memory import Device
from caldera.core.tensor.dtype import BY_NAME
from caldera.kernels.cuda.convolution.small_channels import kernels
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel
from tests.card.variants import numbers
from tests.unit.kernels.checking import LAYOUTS, TOLERANCE
from tests.unit.ops.cases.convolution import Setting, output_shape

EDGE = ((1, 1), (1, 1))
SETTINGS = [
    (Setting("16 channels", (2, 16, 8, 8), (16, 16, 3, 3), padding=EDGE), "bfloat16"),
    (Setting("32 to 64", (2, 32, 8, 8), (64, 32, 1, 3), padding=((0, 0), (1, 1))), "float16"),
    (Setting("first layer", (2, 3, 9, 8), (16, 3, 3, 3), padding=EDGE), "bfloat16"),
    (Setting("strided", (1, 3, 30, 24), (20, 3, 7, 7), (2, 2), ((3, 3), (3, 3))), "bfloat16"),
    (Setting("uneven", (2, 8, 8, 9), (10, 8, 2, 3), padding=((0, 2), (3, 0))), "float16"),
    (Setting("tf32", (2, 16, 8, 8), (8, 16, 3, 3), padding=EDGE), "float32"),
    (Setting("tf32, odd", (5, 3, 19, 15), (12, 3, 3, 4), (3, 2), ((1, 2), (0, 1))), "float32"),
]


def nodes_of(setting: Any, dtype: str) -> Iterator[Node]:
    """The convolution and both of its gradients, with images channels last."""
    how = {**setting.how, **({"compute": "tf32"} if dtype == "float32" else {})}
    x, w, g = (
        parameter(index, Spec(shape, BY_NAME[dtype], None if index == 1 else NHWC))
        for index, shape in enumerate([setting.x, setting.w, output_shape(setting)])
    )
    for node in (
        product.conv2d.node(x, w, **how),
        product.conv2d_input.node(g, w, shape=setting.x, **how),
        product.conv2d_weight.node(x, g, shape=setting.w, **how),
    ):
        order = None if node.op.name == "conv2d_weight" else NHWC
        yield intern(node.op, node.inputs, dict(node.attrs), (Spec(node.shape, node.dtype, order),))


def kernels_of(node: Node) -> list[Kernel]:
    return [each for each in TABLE.candidates(node, "cuda") if each.name.startswith("few")]


def inputs_of(node: Node) -> tuple[np.ndarray, ...]:
    """Numbers for its inputs, laid out as the node says."""
    return tuple(
        LAYOUTS["channels last" if given.spec.order else "dense"](
            numbers(*given.shape, dtype=node.dtype, seed=seed)
        )
        for seed, given in enumerate(node.inputs)
    )


def compare(output: np.ndarray, right: np.ndarray) -> None:
    tolerance = 2e-3 if output.dtype == np.float32 else TOLERANCE[output.dtype.name]
    wide = right.astype("float64")
    scale = float(np.abs(wide).max())
    np.testing.assert_allclose(output.astype("float64"), wide, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize(
    ("setting", "dtype"), SETTINGS, ids=[setting.name for setting, _ in SETTINGS]
)
def test_the_best_guess(card: Device, setting: Setting, dtype: str) -> None:
    for node in nodes_of(setting, dtype):
        found = kernels_of(node)
        assert bool(found) == (node.op.name != "conv2d_input" or setting.stride == (1, 1))
        for kernel in found[:1]:
            check(card, kernel, node)


def test_other_ways_of_large_work(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "LARGE_FLOPS", 0.0)
    for node in nodes_of(*SETTINGS[0]):
        others = kernels_of(node)[1:]
        assert others
        for kernel in others:
            check(card, kernel, node)


def check(card: Device, kernel: Kernel, node: Node) -> None:
    inputs = inputs_of(node)
    (right,) = evaluate(node, inputs)
    try:
        (first,) = run_kernel(card, kernel, node, inputs, times=2)
        compare(first, right)
    except Exception as problem:
        problem.add_note(f"{kernel.name}: {node}")
        raise
    (second,) = run_kernel(card, kernel, node, inputs)
    assert first.tobytes() == second.tobytes()


def test_what_a_pixel_does_not_see(card: Device) -> None:
    node = next(nodes_of(*SETTINGS[2]))
    images, filters = inputs_of(node)
    images[0, 1, 4, 4] = np.inf
    (result,) = run_kernel(card, kernels_of(node)[0], node, (images, filters))
    touched = ~np.isfinite(result.astype("float32")).all(axis=1)
    assert touched[0, 3:6, 3:6].all()
    assert touched.sum() == 9


@pytest.mark.parametrize("layout", ["with gaps", "dense"])
def test_images_that_lie_otherwise(card: Device, layout: str) -> None:
    node = next(nodes_of(*SETTINGS[2]))
    images, filters = inputs_of(node)
    images = LAYOUTS[layout](np.ascontiguousarray(images))
    (result,) = run_kernel(card, kernels_of(node)[0], node, (images, filters))
    compare(result, evaluate(node, (images, filters))[0])
