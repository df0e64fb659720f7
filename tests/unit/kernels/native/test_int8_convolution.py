"""Convolutions of bytes: every kind of instruction against sums of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.core.graph import NHWC, laid_out
from caldera.core.graph.node import Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.int8 import PANEL, int8_conv2d, int8_conv2d_relu
from caldera.errors import DtypeError, ShapeError
from caldera.kernels.native.product import problem
from caldera.kernels.table import TABLE, Call
from caldera.nn.quantised import filters_of
from tests.unit.kernels.native.other_targets import building_for, runs_here

Arrays = list[np.ndarray]


def _case(seed: int) -> tuple[Any, Arrays, np.ndarray]:
    """A node with its arrays, and the right result by sums of integers."""
    draw = np.random.default_rng(seed)
    images, channels, filters = (int(draw.integers(1, most)) for most in (4, 40, 70))
    taps, stride, gaps = (tuple(draw.integers(1, most, 2).tolist()) for most in (4, 3, 3))
    borders = tuple(tuple(each) for each in draw.integers(0, 3, (2, 2)).tolist())
    height, width = (
        int(gap * (tap - 1) + draw.integers(1, 20)) for gap, tap in zip(gaps, taps, strict=True)
    )
    x = draw.normal(size=(images, channels, height, width)).astype("float32")
    weight = draw.integers(-127, 128, (filters, channels, *taps)).astype("int8")
    scale, bias = draw.uniform(0.001, 0.1, (2, -(-filters // PANEL) * PANEL)).astype("float32")
    step = (None, np.float32(0.02))[seed % 2]
    steps = np.abs(x).max((1, 2, 3), keepdims=True) / np.float32(127) if step is None else step
    whole = np.clip(np.rint(x * (np.float32(1) / steps)), -127, 127).astype("int64")
    whole = np.pad(whole, ((0, 0), (0, 0), *borders))
    reach = [gap * (tap - 1) + 1 for gap, tap in zip(gaps, taps, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(whole, reach, (2, 3))
    windows = windows[:, :, :: stride[0], :: stride[1], :: gaps[0], :: gaps[1]]
    sums = np.einsum("nchwrs,fcrs->nfhw", windows, weight.astype("int64")).astype("float32")
    column = (filters, 1, 1)
    right = sums * steps * scale[:filters].reshape(column) + bias[:filters].reshape(column)
    arrays: Arrays = [x, filters_of(weight), scale, bias]
    how = {"filters": filters, "stride": stride, "padding": borders, "dilation": gaps}
    how["step"] = None if step is None else float(step)
    op = int8_conv2d
    if seed % 3:
        op, right = int8_conv2d_relu, np.maximum(right, 0) if seed % 3 == 1 else right
    if seed % 3 == 2:
        arrays.append(draw.normal(size=right.shape).astype("float32"))
        right = np.maximum(right + arrays[-1], 0)
    nodes = [parameter(i, Spec(each.shape, each.dtype)) for i, each in enumerate(arrays)]
    return op(*nodes, **how), arrays, right


def _channels_last(array: np.ndarray) -> np.ndarray:
    found = laid_out(np.empty(array.size, array.dtype), array.shape, NHWC)
    found[...] = array
    return found


def _check(seed: int, *, is_called: bool = True, is_last: bool = True) -> None:
    node, arrays, right = _case(seed)
    kernel = next(each for each in TABLE.candidates(node, "cpu") if each.name == "bytes")
    workspace = np.full(kernel.workspace(node) + 64, 0xFF, np.uint8)
    out = np.full(right.shape, np.nan, "float32")
    if is_last:
        out = _channels_last(out)
        arrays = [
            _channels_last(each) if index in (0, 4) else each for index, each in enumerate(arrays)
        ]
    runner = kernel.bind(Call(node, (out,), tuple(arrays), workspace[:-64]))
    if is_called:
        runner()
        runner()
        assert (workspace[-64:] == 0xFF).all(), "written behind the workspace"
        np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("name", ["sse2", "avx2", "vnni", "avxvnni", "neon", "dot"])
def test_every_instruction_set(name: str) -> None:
    with cd.settings.override(threads=1), building_for(name):
        _check(5, is_called=runs_here(name))


@pytest.mark.parametrize("threads", [1, 3])
def test_random_sizes(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "WORTH_SPLITTING", 2)
    with cd.settings.override(threads=threads):
        for seed in range(5):
            _check(seed, is_last=seed != 3)


def test_images_that_are_no_numbers_do_not_disturb_others() -> None:
    node, (x, *others), right = _case(12)
    assert node.attrs["step"] is None
    assert len(x) > 1
    x[0, 0, 0, 0] = np.inf
    plan = TABLE.candidates(node, "cpu")[0]
    out = np.zeros(right.shape, "float32")
    plan.bind(Call(node, (out,), (x, *others), np.empty(plan.workspace(node), np.uint8)))()
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out[1:], right[1:], rtol=2e-6, atol=2e-5)


def test_refused() -> None:
    shapes = [(2, 8, 5, 5), (1, 3, 3, 2, PANEL, 4), (PANEL,), (PANEL,)]
    kinds = ["float32", "int8", "float32", "float32"]
    how = {"filters": 9, "step": None, "stride": (1, 1), "dilation": (1, 1)}
    how["padding"] = ((0, 0), (0, 0))

    def call(**changed: Any) -> Any:
        given = {**dict(enumerate(zip(shapes, kinds, strict=True))), **changed.pop("given", {})}
        specs = [Spec(shape, np.dtype(kind)) for shape, kind in given.values()]
        return int8_conv2d(*(parameter(i, each) for i, each in enumerate(specs)), **how, **changed)

    assert call().shape == (2, 9, 3, 3)
    with pytest.raises(ShapeError, match="images, and weights"):
        call(given={0: ((2, 9, 5, 5), "float32")})
    with pytest.raises(ShapeError, match="a scale and a bias for each of 16 filters"):
        call(given={3: ((9,), "float32")})
    with pytest.raises(DtypeError, match="int8 weights, and float32 inputs"):
        call(given={1: (shapes[1], "uint8")})
