"""Transforms: what each may do to an image, and that chance depends on the place alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera import data
from caldera.errors import ConfigError, DataError, ShapeError

DRAW = data.Draw(seed=3, epoch=1)


def images(count: int = 50, height: int = 6, width: int = 7, channels: int = 2) -> np.ndarray:
    """Bytes that are all different inside an image, and never 0."""
    one = np.arange(1, channels * height * width + 1, dtype=np.uint8)
    return np.tile(one, count).reshape(count, channels, height, width)


@given(
    size=st.tuples(st.integers(1, 8), st.integers(1, 9)),
    padding=st.integers(0, 3),
    three_axes=st.booleans(),
)
@settings(deadline=None)
def test_crop_gives_windows_of_the_framed_image(
    size: tuple[int, int], padding: int, three_axes: bool
) -> None:
    x = images(20)[:, 0] if three_axes else images(20)
    before = x.copy()
    if size[0] > 6 + 2 * padding or size[1] > 7 + 2 * padding:
        with pytest.raises(ShapeError, match=r"data\.Crop"):
            data.Crop(size, padding)(x, DRAW)
        return
    cropped = data.Crop(size, padding)(x, DRAW)
    assert cropped.shape == (*x.shape[:-2], *size)
    assert cropped.dtype == x.dtype
    np.testing.assert_array_equal(x, before)
    edges = [(0, 0)] * (x.ndim - 2) + [(padding, padding)] * 2
    framed = np.pad(x, edges)
    for number in range(len(x)):
        windows = [
            framed[number, ..., top : top + size[0], left : left + size[1]]
            for top in range(6 + 2 * padding - size[0] + 1)
            for left in range(7 + 2 * padding - size[1] + 1)
        ]
        assert any((cropped[number] == window).all() for window in windows)


def test_crop_finds_every_place() -> None:
    corners = data.Crop((2, 3))(images(500, channels=1), DRAW)[:, 0, 0, 0]
    assert set(corners.tolist()) == {1 + 7 * top + left for top in range(5) for left in range(5)}


def test_mirror_turns_about_as_many_as_it_should() -> None:
    x = images(1000)
    mirrored = data.Mirror(0.3)(x, DRAW)
    turned = (mirrored == x[..., ::-1]).all(axis=(1, 2, 3))
    same = (mirrored == x).all(axis=(1, 2, 3))
    assert (turned ^ same).all()
    assert 230 < turned.sum() < 370
    assert (data.Mirror(0.0)(x, DRAW) == x).all()
    assert (data.Mirror(1.0)(x, DRAW) == x[..., ::-1]).all()
    assert mirrored.dtype == np.uint8


def test_cutout_hides_one_square_in_all_channels() -> None:
    x = images(400)
    cut = data.Cutout(3)(x, DRAW)
    hidden = cut == 0
    assert (cut[~hidden] == x[~hidden]).all()
    assert (hidden[:, 0] == hidden[:, 1]).all()
    counts = hidden[:, 0].sum(axis=(1, 2))
    # The square is whole inside and cut at an edge, where two of its three rows are left.
    assert set(counts.tolist()) == {9, 6, 4}
    for mask in hidden[:, 0]:
        rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
        assert mask.sum() == len(rows) * len(columns)
        assert rows[-1] - rows[0] + 1 == len(rows)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "float16", "int64"])
def test_normalise_is_the_formula(dtype: str) -> None:
    x = images(5).astype(dtype)
    mean, std = (0.25, 0.5), (0.5, 2.0)
    result = data.Normalise(mean, std)(x, DRAW)
    unit = x.astype(np.float64) / (255 if dtype == "uint8" else 1)
    wanted = (unit - np.reshape(mean, (2, 1, 1))) / np.reshape(std, (2, 1, 1))
    expected_dtype = dtype if dtype.startswith("float") else "float32"
    assert result.dtype == expected_dtype
    tolerance = {"float64": 1e-14, "float16": 1e-2}.get(dtype, 1e-5)
    np.testing.assert_allclose(result.astype(np.float64), wanted, rtol=tolerance, atol=tolerance)


def test_normalise_of_data_gives_mean_0_and_deviation_1() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal([5.0, -3.0, 1000.0], [0.1, 4.0, 1.0], (2500, 3))
    samples = data.ArrayData(x)
    normalise = data.Normalise.of(samples)
    np.testing.assert_allclose(normalise.mean, x.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(normalise.std, x.std(axis=0), rtol=1e-10)
    normalised = samples.transformed(normalise).x
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(normalised.std(axis=0), 1, rtol=1e-10)


def test_normalise_of_images_is_for_channels() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 5)).astype(np.uint8)
    samples = data.ArrayData(x)
    normalise = data.Normalise.of(samples)
    np.testing.assert_allclose(normalise.mean, (x / 255).mean(axis=(0, 2, 3)), rtol=1e-6)
    result = samples.transformed(normalise).x
    np.testing.assert_allclose(result.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(result.std(axis=(0, 2, 3)), 1, rtol=1e-5)
    with pytest.raises(DataError, match="at least one axis"):
        data.Normalise.of(data.ArrayData(np.arange(3)))
    with pytest.raises(DataError, match="got 0 of shape"):
        data.Normalise.of(data.ArrayData(np.zeros((0, 3))))


@pytest.mark.parametrize(
    "transform",
    [data.Crop(4, 2), data.Mirror(), data.Cutout(3), data.Compose([data.Mirror(), data.Crop(3)])],
    ids=repr,
)
def test_chance_depends_on_the_place_alone(transform: data.Transform) -> None:
    x = images(20)
    whole = transform(x, data.Draw(seed=1, epoch=2, first=100))
    part = transform(x[7:12], data.Draw(seed=1, epoch=2, first=107))
    np.testing.assert_array_equal(part, whole[7:12])
    for other in (data.Draw(2, 2, 100), data.Draw(1, 3, 100), data.Draw(1, 2, 120)):
        assert (transform(x, other) != whole).any()


def test_equal_transforms_in_a_sequence_draw_differently() -> None:
    marked = np.zeros((200, 1, 1, 5), np.uint8)
    marked[..., 0] = 1
    once = data.Mirror()(marked, DRAW)
    twice = data.Compose([data.Mirror(), data.Mirror()])(marked, DRAW)
    assert (once != marked).any()
    # If both drew the same, the second would undo the first.
    assert (twice != marked).any()
    nested = data.Compose([data.Compose([data.Mirror()]), data.Mirror()])(marked, DRAW)
    np.testing.assert_array_equal(nested, twice)


def test_empty_batches_pass() -> None:
    x = images(0)
    for transform in (data.Crop(3, 1), data.Mirror(), data.Cutout(2), data.Normalise(0.5, 1.0)):
        assert len(transform(x, DRAW)) == 0


def test_mistakes_are_named() -> None:
    for wrong in (lambda: data.Crop(0), lambda: data.Crop(3, -1), lambda: data.Crop((1, 2, 3))):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"data\.Crop"):
            wrong()
    with pytest.raises(ConfigError, match="probability"):
        data.Mirror(1.5)
    with pytest.raises(ConfigError, match=r"data\.Cutout"):
        data.Cutout(0)
    with pytest.raises(ConfigError, match="std above 0"):
        data.Normalise(0.0, (1.0, 0.0))
    with pytest.raises(ConfigError, match="finite"):
        data.Normalise(float("nan"), 1.0)
    with pytest.raises(ShapeError, match="3 channels"):
        data.Normalise((0.0,) * 3, (1.0,) * 3)(images(), DRAW)
    with pytest.raises(ShapeError, match="a batch of images"):
        data.Mirror()(np.zeros((3, 4)), DRAW)
    with pytest.raises(ConfigError, match="expected transforms, got 3"):
        data.Compose([3])  # type: ignore[list-item]
