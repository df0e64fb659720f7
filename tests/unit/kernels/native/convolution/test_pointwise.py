"""Convolutions as products of our own: filters of one pixel in every dtype, and bfloat16 images in
tile registers with filters of one pixel and larger ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec
from caldera.kernels.native import families  # noqa: F401 - registers its kernels
from caldera.kernels.native.product import amx
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from caldera.kernels.tuning.correctness import compare, tolerance_of
from caldera.kernels.tuning.measure import _aligned, _placed, some_numbers
from tests.unit.kernels.native.convolution.cases import convolution_nodes
from tests.unit.kernels.native.other_targets import building_for
from tests.unit.kernels.native.tile_registers import with_tile_registers

NAME, LARGER, PACKED = "amx 1x1 product", "amx im2col", "1x1 product"
SHAPES = [((2, 3, 4, 5), 7), ((1, 40, 3, 3), 33), ((3, 64, 6, 6), 16)]


@pytest.fixture
def tile_registers() -> Iterator[None]:
    with with_tile_registers():
        yield


def _kernel(node: Node, name: str = NAME) -> Kernel | None:
    return next((each for each in TABLE.candidates(node, "cpu") if each.name == name), None)


def _bound(node: Node, kernel: Kernel) -> tuple[Call, object]:
    draw = np.random.default_rng(0)
    specs = [given.outputs[0] for given in node.inputs]
    inputs = tuple(_placed(each, some_numbers(each.shape, each.dtype, draw)) for each in specs)
    workspace = _aligned(Spec((kernel.workspace(node),), np.dtype(np.uint8)))
    call = Call(node, tuple(_aligned(each) for each in node.outputs), inputs, workspace)
    return call, kernel.bind(call)


def _check(node: Node, kernel: Kernel, threads: int) -> None:
    with settings.override(threads=threads):
        call, run = _bound(node, kernel)
        assert callable(run)
        # What an earlier call left must not be seen.
        call.workspace.fill(255)
        call.outputs[0].fill(7.0)
        run()
        run()
    (right,) = evaluate(node, call.inputs)
    compare(call.outputs[0], right, tolerance_of(node, right.dtype))


@pytest.mark.usefixtures("tile_registers")
@pytest.mark.parametrize(("image", "results"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_it_computes_what_the_oracle_does(
    image: tuple[int, ...], results: int, threads: int, stride: tuple[int, int]
) -> None:
    filters = (results, image[1], 1, 1)
    for node in convolution_nodes(image, filters, dtype="bfloat16", stride=stride):
        kernel = _kernel(node)
        assert kernel is not None
        _check(node, kernel, threads)


def test_it_compiles_on_machines_without_tile_registers() -> None:
    may = patch.object(amx, "has_amx", lambda: True)
    with settings.override(threads=1), building_for("amx"), may:
        for node in convolution_nodes((1, 32, 4, 4), (32, 32, 1, 1), dtype="bfloat16"):
            kernel = _kernel(node)
            assert kernel is not None
            _bound(node, kernel)


def test_other_convolutions_are_left_to_other_kernels() -> None:
    others = [
        {"w": (16, 16, 3, 3), "order": NHWC},
        {"w": (16, 16, 1, 1), "padding": ((1, 1), (1, 1))},
        {"w": (16, 8, 1, 1), "groups": 2},
        {"w": (16, 16, 1, 1), "dtype": "float32"},
        {"w": (16, 16, 1, 1), "order": None},
    ]
    with patch.object(amx, "has_amx", lambda: True):
        for each in others:
            how = {"dtype": "bfloat16", **each}
            nodes = convolution_nodes((2, 16, 6, 6), how.pop("w"), **how)
            assert all(_kernel(node) is None for node in nodes), each


ALL = {"conv2d", "conv2d_input", "conv2d_weight"}


@pytest.mark.usefixtures("tile_registers")
@pytest.mark.parametrize(
    ("image", "filters", "how", "missing"),
    [
        ((2, 16, 7, 5), (20, 16, 3, 3), {"padding": ((1, 1), (1, 1))}, set()),
        ((1, 17, 8, 8), (16, 17, 3, 3), {}, set()),
        ((2, 32, 7, 5), (64, 32, 3, 2), {"padding": ((2, 1), (0, 1)), "stride": (2, 1)}, set()),
        ((2, 16, 9, 8), (16, 16, 3, 2), {"stride": (2, 2), "padding": ((1, 1), (0, 1))}, set()),
        ((1, 16, 9, 9), (16, 16, 3, 3), {"dilation": (2, 2), "padding": ((2, 2), (1, 3))}, set()),
        # Rows of windows are wide enough, but few channels are not.
        (
            (2, 3, 9, 12),
            (16, 3, 5, 6),
            {"stride": (2, 2), "padding": ((2, 2), (1, 3))},
            {"conv2d_input"},
        ),
        # Windows of the outputs' gradient begin inside of it.
        ((1, 16, 5, 5), (16, 16, 2, 2), {"padding": ((3, 0), (0, 3))}, set()),
        # There are pixels that nobody sees.
        ((1, 16, 7, 7), (16, 16, 2, 2), {"stride": (3, 3)}, {"conv2d_input"}),
    ],
)
def test_windows_as_rows_compute_what_the_oracle_does(
    image: tuple[int, ...], filters: tuple[int, ...], how: dict[str, Any], missing: set[str]
) -> None:
    offered = set()
    for node in convolution_nodes(image, filters, dtype="bfloat16", **how):
        kernel = _kernel(node, LARGER)
        if kernel is not None:
            offered.add(node.op.name)
            _check(node, kernel, threads=2)
    assert offered == ALL - missing


@pytest.mark.usefixtures("tile_registers")
@pytest.mark.parametrize("seed", [0, 1, 2, 3, 1024, 1089, 1189])
def test_random_convolutions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(amx, "_PIECE", draw.choice([16, 1024]))
    channels, results = (draw.choice([3, 16, 21, 32, 40, 64]) for _ in range(2))
    taps, stride, dilation = ((draw.randint(1, most), draw.randint(1, most)) for most in (4, 3, 2))
    padding = tuple((draw.randint(0, 2), draw.randint(0, 2)) for _ in range(2))
    sides = tuple((count - 1) * 2 + draw.randint(1, 9) for count in taps)
    nodes = convolution_nodes(
        (draw.randint(1, 3), channels, *sides),
        (results, channels, *taps),
        dtype="bfloat16",
        stride=stride,
        padding=padding,
        dilation=dilation,
    )
    for node in nodes:
        for name in (NAME, LARGER):
            kernel = _kernel(node, name)
            if kernel is not None:
                _check(node, kernel, threads=draw.choice([1, 2, 5]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize(
    ("image", "results", "stride"),
    [
        ((2, 48, 7, 9), 16, 1),
        ((3, 20, 16, 13), 200, 1),
        ((2, 33, 9, 8), 5, 2),
        ((1, 5, 5, 5), 4, 1),
    ],
)
def test_packed_products_of_pixels(
    image: tuple[int, ...], results: int, stride: int, threads: int, dtype: str
) -> None:
    filters = (results, image[1], 1, 1)
    for node in convolution_nodes(image, filters, dtype=dtype, stride=(stride, stride)):
        with settings.override(threads=threads):
            kernel = _kernel(node, PACKED)
        assert kernel is not None
        _check(node, kernel, threads)


@pytest.mark.usefixtures("tile_registers")
@pytest.mark.parametrize(("name", "taps"), [(NAME, 1), (LARGER, 2)])
def test_arrays_may_lie_in_any_way(name: str, taps: int) -> None:
    draw = np.random.default_rng(0)
    for node in convolution_nodes((2, 16, 5, 5), (16, 16, taps, taps), dtype="bfloat16"):
        kernel = _kernel(node, name)
        assert kernel is not None
        specs = [given.outputs[0] for given in node.inputs]
        values = [some_numbers(each.shape, each.dtype, draw) for each in specs]
        # Of each array every second column, from the last to the first.
        inputs = tuple(np.repeat(each, 2, axis=3)[..., ::-2][..., ::-1] for each in values)
        out = np.zeros((*node.shape[:3], 2 * node.shape[3]), node.dtype)[..., ::2]
        workspace = _aligned(Spec((kernel.workspace(node),), np.dtype(np.uint8)))
        run = kernel.bind(Call(node, (out,), inputs, workspace))
        run()
        (right,) = evaluate(node, inputs)
        compare(out, right, tolerance_of(node, right.dtype))
