"""Convolutions of few channels on a card: every way to read channels, strides, uneven edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera.graph.node import Node, Spec, intern
from caldera.graph.opdef import parameter
from caldera.graph.ops import product
from caldera.graph.order import NHWC
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from caldera.memory import Device
from caldera.tensor.dtype import BY_NAME
from tests.card.candidates import TOLERANCE, run_kernel
from tests.card.variants import numbers
from tests.unit.kernels.test_candidates import LAYOUTS
from tests.unit.ops.cases.convolution import Setting, output_shape

EDGE = ((1, 1), (1, 1))
SETTINGS = [
    (Setting("16 channels", (3, 16, 8, 8), (16, 16, 3, 3), padding=EDGE), "bfloat16"),
    (Setting("32 to 64", (2, 32, 8, 8), (64, 32, 3, 3), padding=EDGE), "float16"),
    (Setting("64 to 48", (2, 64, 6, 6), (48, 64, 1, 1)), "bfloat16"),
    (Setting("first layer", (2, 3, 9, 9), (16, 3, 3, 3), padding=EDGE), "bfloat16"),
    (Setting("one channel", (5, 1, 9, 8), (6, 1, 5, 5), padding=((2, 2), (2, 2))), "float16"),
    (Setting("strided", (2, 16, 9, 11), (24, 16, 3, 3), (2, 2), ((1, 1), (1, 0))), "bfloat16"),
    (Setting("7x7 strided", (1, 3, 20, 20), (40, 3, 7, 7), (2, 2), ((3, 3), (3, 3))), "bfloat16"),
    (Setting("8 to 10", (1, 8, 7, 12), (10, 8, 2, 3), padding=((0, 2), (3, 0))), "float16"),
    (Setting("tf32", (2, 16, 8, 8), (8, 16, 3, 3), padding=EDGE), "float32"),
    (Setting("tf32, one channel", (3, 1, 8, 8), (6, 1, 5, 5), padding=((2, 2), (2, 2))), "float32"),
    (Setting("tf32, 6 to 16", (3, 6, 10, 10), (16, 6, 5, 5)), "float32"),
    (Setting("tf32, strided", (1, 5, 11, 11), (20, 5, 3, 3), (3, 2), ((1, 2), (0, 1))), "float32"),
]


def nodes_of(setting: Any, dtype: str) -> Iterator[Node]:
    """The convolution and both of its gradients, with images channels last."""
    how = {**setting.how, **({"compute": "tf32"} if dtype == "float32" else {})}
    x, w, g = (
        parameter(index, Spec(shape, BY_NAME[dtype], None if index == 1 else NHWC))
        for index, shape in enumerate([setting.x, setting.w, output_shape(setting)])
    )
    for node in (product.conv2d.node(x, w, **how),
                 product.conv2d_input.node(g, w, shape=setting.x, **how),
                 product.conv2d_weight.node(x, g, shape=setting.w, **how)):  # fmt: skip
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
    ("setting", "dtype"), SETTINGS, ids=[f"{setting.name}" for setting, _ in SETTINGS]
)
def test_every_way(card: Device, setting: Setting, dtype: str) -> None:
    for node in nodes_of(setting, dtype):
        inputs = inputs_of(node)
        (right,) = evaluate(node, inputs)
        found = kernels_of(node)
        assert found or (node.op.name == "conv2d_input" and setting.stride != (1, 1))
        for kernel in found:
            try:
                (result,) = run_kernel(card, kernel, node, inputs, times=2)
                compare(result, right)
            except Exception as problem:
                problem.add_note(f"{kernel.name}: {node}")
                raise
