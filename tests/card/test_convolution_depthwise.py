"""Convolutions of each channel by itself on a card: strides, edges, dilation, channels of any
number."""

from __future__ import annotations

import numpy as np
import pytest

from caldera.core.graph.node import Node
from caldera.core.memory import Device
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Kernel
from tests.card.candidates import run_kernel
from tests.card.test_convolution_small_channels import compare, inputs_of, nodes_of
from tests.unit.kernels.checking import LAYOUTS
from tests.unit.ops.cases.convolution import Setting

EDGE = ((1, 1), (1, 1))
SETTINGS = [
    (Setting("plain", (2, 16, 9, 10), (16, 1, 3, 3), padding=EDGE, groups=16), "bfloat16"),
    (Setting("strided", (2, 8, 9, 12), (8, 1, 3, 3), (2, 2), EDGE, groups=8), "bfloat16"),
    (
        Setting(
            "other strides", (1, 12, 11, 13), (12, 1, 4, 5), (3, 2), ((2, 1), (0, 3)), groups=12
        ),
        "float32",
    ),
    (
        Setting("stride of three", (2, 6, 9, 14), (6, 1, 2, 3), (1, 3), ((0, 1), (2, 0)), groups=6),
        "float16",
    ),
    (
        Setting(
            "dilated", (1, 4, 12, 11), (4, 1, 3, 2), (1, 2), ((2, 2), (1, 1)), (2, 3), groups=4
        ),
        "float64",
    ),
    (
        Setting(
            "more packs than threads", (3, 264, 5, 3), (264, 1, 3, 3), padding=EDGE, groups=264
        ),
        "bfloat16",
    ),
    (
        Setting(
            "one number at a time", (2, 7, 6, 5), (7, 1, 7, 7), padding=((3, 3), (3, 3)), groups=7
        ),
        "float32",
    ),
    (
        Setting(
            "several strips, dilated",
            (1, 6, 45, 9),
            (6, 1, 3, 3),
            (1, 1),
            ((2, 1), (3, 3)),
            (2, 3),
            groups=6,
        ),
        "float32",
    ),
    (
        Setting(
            "five rows, two at a time",
            (1, 8, 41, 7),
            (8, 1, 5, 5),
            (2, 1),
            ((2, 2), (2, 2)),
            groups=8,
        ),
        "bfloat16",
    ),
    (
        Setting(
            "rows that nobody sees", (2, 4, 31, 9), (4, 1, 2, 1), (3, 2), ((1, 0), (0, 0)), groups=4
        ),
        "float32",
    ),
]


def kernel_of(node: Node) -> Kernel:
    (found,) = [each for each in TABLE.candidates(node, "cuda") if each.name == "depthwise"]
    return found


@pytest.mark.parametrize(
    ("setting", "dtype"), SETTINGS, ids=[setting.name for setting, _ in SETTINGS]
)
def test_convolutions_and_their_gradients(card: Device, setting: Setting, dtype: str) -> None:
    for node in nodes_of(setting, dtype):
        inputs = inputs_of(node)
        (right,) = evaluate(node, inputs)
        (first,) = run_kernel(card, kernel_of(node), node, inputs, times=2)
        compare(first, right)
        (second,) = run_kernel(card, kernel_of(node), node, inputs)
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("layout", ["with gaps", "dense"])
def test_images_that_lie_otherwise(card: Device, layout: str) -> None:
    for node in nodes_of(*SETTINGS[0]):
        inputs = tuple(LAYOUTS[layout](np.ascontiguousarray(each)) for each in inputs_of(node))
        (result,) = run_kernel(card, kernel_of(node), node, inputs)
        compare(result, evaluate(node, inputs)[0])


def test_others_are_left_to_others(card: Device) -> None:
    two_results = Setting("two results", (2, 4, 6, 6), (8, 1, 3, 3), padding=EDGE, groups=4)
    large_filter = Setting("large", (1, 4, 16, 16), (4, 1, 11, 11), padding=EDGE, groups=4)
    for setting in (two_results, large_filter):
        for node in nodes_of(setting, "bfloat16"):
            assert "depthwise" not in [each.name for each in TABLE.candidates(node, "cuda")]
