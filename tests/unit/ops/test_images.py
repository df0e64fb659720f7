"""Volumes, sequences, ceil mode, padding with itself, resizing and windows, against plain NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from caldera import op
from caldera.errors import ConfigError, ShapeError
from caldera.testing import check_gradients
from tests.unit.ops.case import numbers

X = numbers(2, 2, 5, 7)


def close(found: object, right: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-12, atol=1e-12)


# --- padding


@pytest.mark.parametrize(
    ("mode", "theirs"), [("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")]
)
def test_padding_with_more_of_itself(mode: str, theirs: Any) -> None:
    widths = ((0, 0), (1, 0), (4, 2), (0, 5))
    close(op.pad(X, widths, mode=mode), np.pad(X, widths, theirs))
    close(op.pad(X, 9, mode="replicate"), np.pad(X, 9, "edge"))
    check_gradients(lambda x: op.pad(x, 2, mode=mode), [numbers(3, 4)])


@pytest.mark.parametrize(
    ("widths", "mode", "error", "message"),
    [
        ((0, 3), "reflect", ShapeError, "at most 2 elements of padding along axis 0 of length 3"),
        ((4, 0), "circular", ShapeError, "at most 3 elements"),
        (1, "mirror", ConfigError, "constant, reflect, replicate or circular, got 'mirror'"),
    ],
)
def test_padding_longer_than_what_there_is(
    widths: Any, mode: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        op.pad([1.0, 2.0, 3.0], widths, mode=mode)
    with pytest.raises(ShapeError, match="at most 0"):
        op.pad(np.zeros((0,)), 1, mode="replicate")


# --- pooling


def _pooled(x: np.ndarray, size: int, stride: int, padding: int, kind: str, ceil: bool) -> Any:
    """Window by window; what lies outside of the padding never counts."""
    rank = x.ndim - 2
    room = [n + 2 * padding - size for n in x.shape[2:]]
    counts = [(-(-each // stride) if ceil else each // stride) + 1 for each in room]
    counts = [
        c - (ceil and (c - 1) * stride >= n + padding)
        for c, n in zip(counts, x.shape[2:], strict=True)
    ]
    wide = [(0, 0), (0, 0)] + [(padding, padding + size)] * rank
    image = np.pad(x, wide, constant_values=-math.inf if kind == "max" else 0)
    counted = np.pad(np.ones(x.shape), wide)
    if kind == "mean":
        inner = [(0, 0), (0, 0)] + [(padding, padding)] * rank
        counted = np.pad(
            np.pad(np.ones(x.shape), inner, constant_values=1),
            [(0, 0), (0, 0)] + [(0, size)] * rank,
        )
    y = np.empty((*x.shape[:2], *counts))
    for place in itertools.product(*map(range, counts)):
        cut = (..., *(slice(i * stride, i * stride + size) for i in place))
        axes = tuple(range(2, 2 + rank))
        total = image[cut].max(axes) if kind == "max" else image[cut].sum(axes)
        y[(..., *place)] = total if kind == "max" else total / counted[cut].sum(axes)
    return y


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("size", "stride", "padding", "ceil"), [(2, 2, 0, False), (3, 2, 1, True), (2, 3, 1, True)]
)
def test_pools_over_any_number_of_axes(
    rank: int, size: int, stride: int, padding: int, ceil: bool
) -> None:
    x = numbers(*(2, 2, 4, 6, 5)[: rank + 2])
    largest, mean = (getattr(op, f"{kind}_pool{rank}d") for kind in ("max", "avg"))
    close(
        largest(x, size, stride, padding, ceil_mode=ceil),
        _pooled(x, size, stride, padding, "max", ceil),
    )
    close(
        mean(x, size, stride, padding, ceil_mode=ceil),
        _pooled(x, size, stride, padding, "mean", ceil),
    )
    close(
        mean(x, size, stride, padding, count_padding=False, ceil_mode=ceil),
        _pooled(x, size, stride, padding, "inside", ceil),
    )


def test_derivatives_of_pools() -> None:
    volume = numbers(1, 1, 3, 3, 3)
    check_gradients(lambda x: op.max_pool3d(x, 2, 1, ceil_mode=True), [volume])
    check_gradients(lambda x: op.avg_pool3d(x, 2, 2, 1, ceil_mode=True), [volume])


def test_pools_want_their_number_of_axes() -> None:
    with pytest.raises(ShapeError, match=r"op\.max_pool1d: expected x of shape \(N, C, L\)"):
        op.max_pool1d(X, 2)
    with pytest.raises(ShapeError, match="size= one or three integers"):
        op.avg_pool3d(numbers(1, 1, 2, 2, 2), (2, 2))


# --- convolution


def test_convolution_of_volumes() -> None:
    x, w = numbers(2, 4, 5, 4, 6), numbers(6, 2, 3, 2, 3, seed=1)
    y = op.conv3d(x, w, stride=(2, 1, 2), padding=((1, 1), (0, 1), (2, 0)), groups=2)
    image = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 1), (2, 0)))
    views = np.lib.stride_tricks.sliding_window_view(image, (3, 2, 3), (2, 3, 4))[:, :, ::2, :, ::2]
    groups = [
        np.einsum("ncdhwijk,ocijk->nodhw", views[:, 2 * g : 2 * g + 2], w[3 * g : 3 * g + 3])
        for g in (0, 1)
    ]
    close(y, np.concatenate(groups, 1))
    small = [numbers(1, 1, 3, 2, 3), numbers(1, 1, 2, 2, 2, seed=1)]
    check_gradients(lambda x, w: op.conv3d(x, w, dilation=(2, 1, 1)), small)
    with pytest.raises(ShapeError, match=r"op\.conv3d: expected a depth of at least 3"):
        op.conv3d(x[:, :, :2], w, groups=2)


def test_transposed_convolution_of_sequences_is_the_gradient_of_convolution() -> None:
    w = numbers(3, 2, 3, seed=1)
    x = op.var("x", (1, 2, 8), dtype="float64")
    y = op.conv1d(x, w, stride=2, padding=1, dilation=2)
    given = numbers(*y.shape, seed=2)
    back = op.conv_transpose1d(given, w, stride=2, padding=1, dilation=2, output_padding=1)
    close(back, op.grad(op.sum(y * given), x))


# --- resizing


def _line(places: np.ndarray, row: np.ndarray) -> np.ndarray:
    return np.interp(places, np.arange(len(row)), row)


def test_straight_lines_between_pixels() -> None:
    row = numbers(7)
    image = np.tile(row, (1, 1, 3, 1))
    found = op.interpolate(image, (3, 10), mode="bilinear").numpy()[0, 0, 1]
    close(found, _line((np.arange(10) + 0.5) * 0.7 - 0.5, row))
    found = op.interpolate(image, (3, 4), mode="bilinear", align_corners=True).numpy()[0, 0, 1]
    close(found, _line(np.linspace(0, 6, 4), row))


def test_nearest_pixels() -> None:
    rows, columns = np.arange(8) * 5 // 8, np.arange(3) * 7 // 3
    close(op.interpolate(X, (8, 3)), X[:, :, rows][..., columns])
    close(op.interpolate(X, scale=2), X.repeat(2, 2).repeat(2, 3))
    close(op.interpolate(X, scale=(1, 0.5)), X[..., [0, 2, 4]])


def test_cubic_curves_through_pixels() -> None:
    # Keys' kernel with a slope of -3/4, written out at a quarter and three quarters.
    weights = np.array([-0.10546875, 0.87890625, 0.26171875, -0.03515625])
    row = numbers(6)
    found = op.interpolate(np.tile(row, (1, 1, 2, 1)), (2, 12), mode="bicubic").numpy()[0, 0, 0]
    close(found[5], weights @ row[1:5])
    close(found[6], weights[::-1] @ row[1:5])
    close(found[0], weights[::-1] @ row[[0, 0, 0, 1]])


def test_derivatives_of_resizing() -> None:
    small = numbers(1, 1, 2, 3)
    check_gradients(lambda x: op.interpolate(x, (3, 5), mode="bicubic"), [small])
    check_gradients(lambda x: op.interpolate(x, (3, 5)), [small])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "size= or scale="),
        ({"size": 3, "scale": 2.0}, "size= or scale="),
        ({"size": 3, "mode": "cubic"}, "mode= one of nearest, linear, bilinear, bicubic"),
        ({"size": 3, "align_corners": True}, "the first without align_corners"),
        ({"scale": -1.0}, "scale= a number above 0"),
        ({"scale": 0.1}, "a result of at least one element"),
    ],
)
def test_resizing_says_what_it_wants(how: Any, message: str) -> None:
    with pytest.raises((ConfigError, ShapeError), match=message):
        op.interpolate(X, **how)


# --- windows and channels


def test_windows_as_columns() -> None:
    found = op.unfold(X, (2, 3), stride=(1, 2), padding=((1, 0), (0, 0)))
    image = np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 0)))
    views = np.lib.stride_tricks.sliding_window_view(image, (2, 3), (2, 3))[:, :, :, ::2]
    close(found, views.transpose(0, 1, 4, 5, 2, 3).reshape(2, 12, -1))
    check_gradients(lambda x: op.unfold(x, 2), [numbers(1, 1, 3, 3)])
    with pytest.raises(ShapeError, match="an image of at least the window"):
        op.unfold(X, 6)


def test_channels_become_neighbours_and_back() -> None:
    x = numbers(2, 8, 2, 3)
    shuffled = op.pixel_shuffle(x, 2)
    assert shuffled.shape == (2, 2, 4, 6)
    close(shuffled[:, :, 1::2, ::2], x[:, 2::4])
    close(op.pixel_unshuffle(shuffled, 2), x)
    with pytest.raises(ShapeError, match="a multiple of 9 channels"):
        op.pixel_shuffle(x, 3)
    with pytest.raises(ShapeError, match="height and width as multiples of 2"):
        op.pixel_unshuffle(x, 2)


# --- normalisation


def test_each_channel_of_each_sample_by_itself() -> None:
    scale, shift = numbers(2, seed=1), numbers(2, seed=2)
    mean, variance = X.mean((2, 3), keepdims=True), X.var((2, 3), keepdims=True)
    plain = (X - mean) / np.sqrt(variance + 1e-5)
    close(op.instance_norm(X), plain)
    close(op.instance_norm(X, scale, shift), plain * scale[:, None, None] + shift[:, None, None])
    with pytest.raises(ShapeError, match=r"op\.instance_norm: expected x of shape"):
        op.instance_norm(X[0, 0])


def test_root_mean_squares() -> None:
    scale = numbers(5, 7, seed=1)
    right = X / np.sqrt((X**2).mean((2, 3), keepdims=True) + 1e-6) * scale
    close(op.rms_norm(X, scale, (2, 3)), right)
    check_gradients(op.rms_norm, [numbers(2, 4), numbers(4, seed=1)])
    half = op.cast(np.full((1, 4), 300.0), "float16")
    assert op.rms_norm(half).tolist() == [[1.0, 1.0, 1.0, 1.0]]
    with pytest.raises(ShapeError, match=r"op\.rms_norm: expected scale of shape \(7,\)"):
        op.rms_norm(X, scale)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_scales_that_keep_the_lengths_move_nothing(rank: int, mode: str) -> None:
    x = numbers(1, 2, *(3, 2, 5)[:rank])
    close(op.interpolate(x, scale=1.1, mode=mode), x)
