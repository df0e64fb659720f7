"""Native convolutions against the oracle: sizes around the edges of tiles, strips and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import NHWC, Order, laid_out
from caldera.core.graph.node import Node, Spec
from caldera.kernels.common.geometry import Geometry, forward, input_phases
from caldera.kernels.native.convolution import tiling
from caldera.kernels.native.convolution.direct import packing
from caldera.kernels.native.convolution.weight_blocking import WeightGradientTile
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel
from tests.unit.kernels.native.convolution.cases import convolution_nodes

NAMES = ("direct", "im2col", "1x1 product")
TOLERANCE = {"float64": 1e-13, "float32": 4e-6, "bfloat16": 2e-2}
"""Largest error, beside the largest element of the result."""


def _guarded(spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """An array between two guards, and all of that memory."""
    memory = np.full(spec.size + 2 * 64, np.nan).astype(spec.dtype)
    return memory, laid_out(memory[64 : 64 + spec.size], spec.shape, spec.order)


def _kernels(node: Node) -> list[Kernel]:
    return [kernel for kernel in TABLE.candidates(node, "cpu") if kernel.name in NAMES]


def _check(node: Node, kernel: Kernel) -> np.ndarray:
    generator = np.random.default_rng(1)
    inputs = []
    for given in node.inputs:
        _, array = _guarded(given.outputs[0])
        array[...] = generator.uniform(-1, 1, array.shape)
        inputs.append(array)
    memory, out = _guarded(node.outputs[0])
    needed = kernel.workspace(node)
    workspace = np.full(needed + 64, 0xFF, np.uint8)
    kernel.bind(Call(node, (out,), tuple(inputs), workspace[:needed]))()
    (right,) = evaluate(node, inputs)
    wide = right.astype(np.float64)
    allowed = TOLERANCE[node.dtype.name] * max(float(np.abs(wide).max(initial=0.0)), 1e-30)
    np.testing.assert_allclose(out.astype(np.float64), wide, rtol=0, atol=allowed)
    for guard in (memory[:64], memory[-64:]):
        assert np.isnan(guard.astype(np.float64)).all(), "written beside the result"
    assert (workspace[needed:] == 0xFF).all(), "written behind the workspace"
    return out


PAD = ((1, 1), (1, 1))
CASES: dict[str, dict[str, Any]] = {
    "tiles come out even": {"x": (2, 16, 8, 10), "w": (20, 16, 3, 3), "padding": PAD},
    "odd everything": {"x": (3, 7, 9, 11), "w": (13, 7, 3, 3), "padding": PAD},
    "first layer": {
        "x": (2, 3, 23, 19),
        "w": (24, 3, 7, 7),
        "stride": (2, 2),
        "padding": ((3, 2), (3, 3)),
    },
    "one channel": {"x": (3, 1, 14, 14), "w": (6, 1, 5, 5)},
    "one result": {"x": (2, 5, 6, 7), "w": (1, 5, 3, 3), "padding": PAD},
    "1x1": {"x": (3, 9, 5, 4), "w": (11, 9, 1, 1)},
    "1x1 strided": {"x": (2, 9, 7, 6), "w": (5, 9, 1, 1), "stride": (2, 2)},
    "1x1 strided past the last pixel": {
        "x": (2, 9, 7, 6),
        "w": (5, 9, 1, 1),
        "stride": (2, 3),
        "padding": ((0, 2), (0, 1)),
    },
    "1x1 strided in groups": {"x": (3, 8, 9, 9), "w": (70, 4, 1, 1), "stride": (3, 2), "groups": 2},
    "strided": {"x": (2, 6, 13, 12), "w": (9, 6, 3, 3), "stride": (2, 3), "padding": PAD},
    "stride and dilation share a factor": {
        "x": (1, 5, 17, 16),
        "w": (6, 5, 3, 4),
        "stride": (4, 2),
        "dilation": (2, 4),
        "padding": ((2, 3), (5, 1)),
    },
    "dilated": {"x": (2, 4, 12, 12), "w": (5, 4, 3, 3), "dilation": (2, 3), "padding": PAD},
    "more padding than kernel": {"x": (1, 3, 4, 4), "w": (5, 3, 2, 2), "padding": ((3, 4), (2, 3))},
    "grouped": {"x": (2, 12, 7, 7), "w": (9, 4, 3, 3), "groups": 3, "padding": PAD},
    "depthwise": {"x": (2, 21, 9, 9), "w": (21, 1, 3, 3), "groups": 21, "padding": PAD},
    "depthwise strided": {
        "x": (2, 18, 9, 10),
        "w": (18, 1, 5, 3),
        "groups": 18,
        "stride": (2, 2),
        "padding": ((2, 2), (0, 1)),
    },
    "two results a channel": {"x": (2, 6, 5, 5), "w": (12, 1, 3, 3), "groups": 6, "padding": PAD},
    "sums longer than a part": {"x": (1, 150, 4, 5), "w": (9, 150, 3, 3), "padding": PAD},
    "some pixels are never met": {"x": (2, 3, 8, 8), "w": (4, 3, 3, 3), "stride": (4, 4)},
    "no images": {"x": (0, 3, 5, 5), "w": (4, 3, 3, 3)},
    "a single pixel": {"x": (1, 3, 1, 1), "w": (4, 3, 3, 3), "padding": PAD},
}


FLOAT64 = (
    "odd everything",
    "1x1",
    "1x1 strided past the last pixel",
    "stride and dilation share a factor",
    "grouped",
    "depthwise strided",
    "sums longer than a part",
)
"""Cases in float64 too: of a kernel only the widths differ, and it is compiled again."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*[(name, "float32") for name in CASES], *[(name, "float64") for name in FLOAT64]],
)
def test_kernels_compute_what_the_oracle_does(name: str, dtype: str) -> None:
    for node in convolution_nodes(**CASES[name], dtype=dtype):
        assert _kernels(node)
        for kernel in _kernels(node):
            _check(node, kernel)


@pytest.mark.parametrize("order", [None, NHWC, (0, 3, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_may_lie_in_any_order_and_in_halves(order: Order | None, dtype: str) -> None:
    for node in convolution_nodes(**CASES["odd everything"], dtype=dtype, order=order):
        for kernel in _kernels(node):
            _check(node, kernel)


@pytest.mark.parametrize("name", ["odd everything", "1x1", "grouped", "depthwise strided"])
def test_small_strips_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images cut into strips of single rows, or many images in one."""
    case = dict(CASES[name], x=(9, *CASES[name]["x"][1:]))
    for size, pixels in ((1, 1), (1 << 24, 1 << 10)):
        monkeypatch.setattr(tiling, "STRIP_BYTES", size)
        monkeypatch.setattr(tiling, "FEWEST_PIXELS", pixels)
        for node in convolution_nodes(**case):
            for kernel in _kernels(node):
                _check(node, kernel)


@pytest.mark.parametrize("name", ["odd everything", "1x1", "strided", "grouped", "depthwise"])
def test_results_do_not_depend_on_the_number_of_threads(name: str) -> None:
    case = dict(CASES[name], x=(6, *CASES[name]["x"][1:]))
    for node in convolution_nodes(**case):
        for kernel in [each for each in _kernels(node) if each.name == "direct"]:
            found = []
            for threads in (1, 2, 3):
                with settings.override(threads=threads):
                    found.append(_check(node, kernel))
            for other in found[1:]:
                np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("threads", [1, 4])
def test_pixels_of_a_phase_may_be_fewer_than_those_of_another(threads: int) -> None:
    """Several images in a strip, whose gradient consists of phases with 3 and 2 rows, or none."""
    wide = {"x": (9, 5, 9, 13), "w": (6, 5, 3, 3), "stride": (4, 2), "padding": ((2, 3), (0, 1))}
    unseen = {"x": (9, 2, 1, 1), "w": (3, 2, 1, 1), "stride": (4, 4), "padding": PAD}
    with settings.override(threads=threads):
        for case in (wide, unseen):
            for node in convolution_nodes(**case):
                for kernel in _kernels(node):
                    _check(node, kernel)


def test_every_kernel_was_there_to_be_checked() -> None:
    for dtype, names in (("float32", CASES), ("float64", FLOAT64)):
        seen = {
            kernel.name
            for name in names
            for node in convolution_nodes(**CASES[name], dtype=dtype)
            for kernel in _kernels(node)
        }
        assert seen == set(NAMES), dtype


def test_rows_are_made_for_gradients_alone() -> None:
    """Forward they took longer than another way at every size that was measured."""
    names = [
        {kernel.name for kernel in _kernels(node)} for node in convolution_nodes(**CASES["strided"])
    ]
    assert names == [{"direct"}, {"direct", "im2col"}, {"direct", "im2col"}]


@pytest.mark.parametrize("name", CASES)
def test_phases_share_out_the_pixels_and_the_taps(name: str) -> None:
    """Every image pixel is in one phase; the products of all phases are those that there are."""
    (_, node, _) = convolution_nodes(**CASES[name])
    geometry = Geometry.of(node)
    met = np.zeros(geometry.image[2:], int)
    for rows, columns, _ in input_phases(geometry):
        met[rows.first :: rows.step, columns.first :: columns.step] += 1
    assert (met == 1).all()
    rows_of = {row.first: row.taps for row, _, _ in input_phases(geometry)}
    if geometry.image[2] >= geometry.stride[0]:
        assert sum(rows_of.values()) == geometry.taps[0] * (
            1 if geometry.dilation[0] == 1 else len(rows_of) // geometry.stride[0]
        )


def test_a_strip_fits_its_share_of_the_cache() -> None:
    (node, *_) = convolution_nodes((4, 64, 100, 100), (64, 64, 3, 3), padding=PAD)
    held = packing(node).strips
    assert held.length * 4 <= tiling.STRIP_BYTES
    assert held.a_image > 1
    assert held.items == 4 * held.a_image
    small = tiling.cut(
        forward(Geometry.of(next(convolution_nodes((64, 8, 7, 7), (8, 8, 3, 3))))), 8, 4, 4
    )
    assert small.images > 1
    assert small.items * small.images >= 64


def test_what_is_not_a_number_reaches_those_pixels_that_see_it() -> None:
    node = next(convolution_nodes((1, 3, 9, 9), (5, 3, 3, 3), padding=PAD))
    x = laid_out(np.ones(243, np.float32), (1, 3, 9, 9), NHWC)
    x[0, 1, 4, 4] = np.inf
    w = np.ones((5, 3, 3, 3), np.float32)
    for kernel in _kernels(node):
        out = laid_out(np.empty(405, np.float32), (1, 5, 9, 9), NHWC)
        workspace = np.full(kernel.workspace(node), 0xFF, np.uint8)
        kernel.bind(Call(node, (out,), (x, w), workspace))()
        expected = np.zeros((9, 9), bool)
        expected[3:6, 3:6] = True
        assert (np.isinf(out) == expected).all()


def test_the_first_guess_knows_what_suits_which_shape() -> None:
    def first(op: int, **case: Any) -> str:
        node = list(convolution_nodes(**case))[op]
        return next(each.name for each in TABLE.candidates(node, "cpu") if each.name in NAMES)

    assert first(0, x=(32, 3, 64, 64), w=(64, 3, 7, 7), stride=(2, 2)) == "direct"
    assert first(0, x=(32, 1, 28, 28), w=(32, 1, 5, 5)) == "direct"
    assert first(2, x=(32, 1, 28, 28), w=(32, 1, 5, 5)) == "direct"
    assert first(0, **CASES["depthwise"]) == "direct"


@pytest.mark.parametrize("threads", [3, 16])
def test_output_channels_are_shared_out_where_partial_sums_are_few(threads: int) -> None:
    """A gradient of large filters, each part of whose channels copies what it needs alone."""
    case = {"x": (2, 70, 9, 9), "w": (300, 70, 1, 1), "stride": (2, 2)}
    node = list(convolution_nodes(**case))[2]
    (kernel,) = [each for each in _kernels(node) if each.name == "direct"]
    with settings.override(threads=threads):
        gradient = WeightGradientTile(forward(Geometry.of(node).unstrided), node.dtype)
        assert gradient.splits > 1
        _check(node, kernel)


def test_the_guess_knows_that_columns_are_made_by_each_part_of_the_channels() -> None:
    """ResNet-50's convolutions with a stride, whose columns several threads make several times."""
    for x, w, padding in (
        ((16, 128, 56, 56), (128, 128, 3, 3), PAD),
        ((16, 256, 28, 28), (256, 256, 3, 3), PAD),
        ((16, 256, 56, 56), (512, 256, 1, 1), ((0, 0), (0, 0))),
    ):
        _, of_image, of_filters = convolution_nodes(x, w, stride=(2, 2), padding=padding)
        with settings.override(threads=16):
            assert _kernels(of_filters)[0].name == "direct"
            assert _kernels(of_image)[0].name == "direct"
