"""Stages: what each may do to an image, and that chance depends on the place alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from caldera import data
from caldera.data.transforms.stage import Stages
from caldera.errors import ConfigError, DataError, DtypeError, ShapeError
from tests.unit.data.files import picture

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
    normalised = data.Pipeline(samples, normalise).x
    np.testing.assert_allclose(normalised.mean(axis=0), 0, atol=1e-10)
    np.testing.assert_allclose(normalised.std(axis=0), 1, rtol=1e-10)


def test_normalise_of_images_is_for_channels() -> None:
    x = np.random.default_rng(0).integers(0, 256, (40, 3, 5, 5)).astype(np.uint8)
    samples = data.ArrayData(x)
    normalise = data.Normalise.of(samples)
    np.testing.assert_allclose(normalise.mean, (x / 255).mean(axis=(0, 2, 3)), rtol=1e-6)
    result = data.Pipeline(samples, normalise).x
    np.testing.assert_allclose(result.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(result.std(axis=(0, 2, 3)), 1, rtol=1e-5)
    with pytest.raises(DataError, match="at least one axis"):
        data.Normalise.of(data.ArrayData(np.arange(3)))
    with pytest.raises(DataError, match="got 0 of shape"):
        data.Normalise.of(data.ArrayData(np.zeros((0, 3))))


@pytest.mark.parametrize(
    "stages",
    [
        [data.Crop(4, 2)],
        [data.Mirror()],
        [data.Cutout(3)],
        [data.Rotate(30)],
        [data.Colour(0.3, 0.3, 0.3)],
        [data.OneHot(4), data.Mixup()],
        [data.Mirror(), data.Crop(3)],
    ],
    ids=repr,
)
def test_chance_depends_on_the_place_alone(stages: list[data.Stage]) -> None:
    x = images(21, channels=3)
    x, y, all_of_them = x, np.arange(21) % 4, Stages(stages)
    more = all_of_them.following

    def made(start: int, end: int, draw: data.Draw) -> list[np.ndarray]:
        return list(all_of_them.apply((x[start : end + more], y[start : end + more]), draw))

    whole = made(0, 20, data.Draw(seed=1, epoch=2, first=100))
    part = made(7, 12, data.Draw(seed=1, epoch=2, first=107))
    for found, wanted in zip(part, whole, strict=True):
        np.testing.assert_array_equal(found, wanted[7:12])
    for other in (data.Draw(2, 2, 100), data.Draw(1, 3, 100), data.Draw(1, 2, 120)):
        assert (made(0, 20, other)[0] != whole[0]).any()


def test_equal_transforms_in_a_sequence_draw_differently() -> None:
    marked = np.zeros((200, 1, 1, 5), np.uint8)
    marked[..., 0] = 1
    once = data.Mirror()(marked, DRAW)
    twice = Stages([data.Mirror(), data.Mirror()]).apply((marked,), DRAW)[0]
    assert (once != marked).any()
    # If both drew the same, the second would undo the first.
    assert (twice != marked).any()


def test_empty_batches_pass() -> None:
    x = images(0)
    for stage in (
        data.Crop(3, 1),
        data.Mirror(),
        data.Cutout(2),
        data.Normalise(0.5, 1.0),
        data.Rotate(9),
        data.Colour(0.1, 0.1),
        data.SubtractMean(0.5),
    ):
        assert len(stage(x, DRAW)) == 0


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
    with pytest.raises(ConfigError, match="expected stages, got 3"):
        data.Pipeline(images(), [3])  # type: ignore[list-item]


# --- rotation


def test_rotation_by_nothing_and_about_the_centre() -> None:
    x = images(20)
    np.testing.assert_array_equal(data.Rotate(0)(x, DRAW), x)
    dots = np.zeros((50, 1, 7, 7), np.uint8)
    dots[:, 0, 3, 3] = 200
    turned = data.Rotate(180)(dots, DRAW)
    assert (turned[:, 0, 3, 3] == 200).all()
    assert turned.dtype == np.uint8


def test_rotation_keeps_flat_images_and_brings_in_zeros() -> None:
    flat = np.full((100, 1, 9, 9), 200, np.uint8)
    turned = data.Rotate(45)(flat, DRAW)
    assert (turned[:, 0, 2:7, 2:7] == 200).all()
    assert (turned[:, 0, 0, 0] < 200).any()
    assert turned.max() == 200


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_rotation_is_that_of_pillow(dtype: str) -> None:
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (8, 8)).astype(np.uint8))
    smooth = np.asarray(coarse.resize((32, 32), Image.Resampling.BICUBIC))
    x = np.tile(smooth.astype(dtype), (40, 1, 1, 1))
    turned = data.Rotate(25)(x, DRAW)
    # The angle is what Pillow needs for the nearest picture: it must be found, and evenly spread.
    angles = np.linspace(-25, 25, 201)
    picture = Image.fromarray(smooth)
    every = [np.asarray(picture.rotate(a, Image.Resampling.BILINEAR)) for a in angles]
    inside = (slice(8, 24), slice(8, 24))
    found = []
    for image in turned[:, 0]:
        errors = [np.abs(image[inside] - each[inside].astype(float)).mean() for each in every]
        assert min(errors) < 1.5
        found.append(angles[int(np.argmin(errors))])
    assert min(found) < -15
    assert max(found) > 15
    assert abs(np.mean(found)) < 8


# --- colour


def test_brightness_contrast_and_saturation_are_what_they_say() -> None:
    x = np.random.default_rng(0).integers(60, 180, (200, 3, 5, 5)).astype(np.uint8)
    unit = x.astype(float)

    def spread(values: np.ndarray) -> np.ndarray:
        return np.abs(values - values.mean(axis=(1, 2, 3), keepdims=True)).mean(axis=(1, 2, 3))

    brighter = data.Colour(brightness=0.3)(x, DRAW).astype(float)
    factors = brighter.sum(axis=(1, 2, 3)) / unit.sum(axis=(1, 2, 3))
    assert factors.min() < 0.75
    assert 1.25 < factors.max() < 1.305
    assert np.abs(brighter - unit * factors[:, None, None, None]).max() < 2
    sharper = data.Colour(contrast=0.3)(x, DRAW).astype(float)
    assert np.abs(sharper.mean(axis=(1, 2, 3)) - unit.mean(axis=(1, 2, 3))).max() < 1
    factors = spread(sharper) / spread(unit)
    assert factors.min() < 0.75
    assert 1.25 < factors.max() < 1.32
    greyer = data.Colour(saturation=1.0)(x, DRAW).astype(float)
    chroma = np.ptp(greyer, axis=1).mean(axis=(1, 2))
    assert chroma.min() < 0.1 * chroma.max()
    for channels in (1, 3):
        floats = data.Colour(0.3, 0.3, 0.3)(x[:, :channels].astype(np.float32), DRAW)
        whole = data.Colour(0.3, 0.3, 0.3)(x[:, :channels], DRAW).astype(np.float32)
        kept = (whole > 2) & (whole < 253)
        assert np.abs(floats - whole)[kept].max() < 3
        assert floats.dtype == np.float32


def test_no_change_of_colour_is_none() -> None:
    x = images(10, channels=3)
    np.testing.assert_array_equal(data.Colour()(x, DRAW), x)
    with pytest.raises(ShapeError, match="1 or 3 channels"):
        data.Colour(saturation=0.1)(images(channels=2), DRAW)


# --- means and targets


def test_the_mean_of_each_pixel_becomes_zero() -> None:
    x = np.random.default_rng(0).integers(0, 256, (60, 3, 4, 4)).astype(np.uint8)
    stage = data.SubtractMean.of(data.ArrayData(x))
    assert stage.mean.shape == (3, 4, 4)
    centred = data.Pipeline(x, stage)
    assert centred.dtype == np.float32
    np.testing.assert_allclose(centred.x.mean(axis=0), 0, atol=1e-6)
    by_channel = data.SubtractMean([0.1, 0.2, 0.3])(x, DRAW)
    np.testing.assert_allclose(by_channel[:, 1], x[:, 1] / 255 - 0.2, atol=1e-6)
    with pytest.raises(ShapeError, match=r"samples of shape \(2,\)"):
        data.SubtractMean([0.1, 0.2])(x, DRAW)
    with pytest.raises(DataError, match="expected samples"):
        data.SubtractMean.of(data.ArrayData(x[:0]))


def test_one_hot_rows_add_up_to_one() -> None:
    y = np.array([2, 0, 1, 2])
    x = np.zeros((4, 1))
    rows = data.OneHot(3).apply((x, y), DRAW)[-1]
    np.testing.assert_array_equal(rows, np.eye(3, dtype=np.float32)[y])
    smooth = data.OneHot(3, smoothing=0.3).apply((x, y), DRAW)[-1]
    np.testing.assert_allclose(smooth.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(smooth[0], [0.1, 0.1, 0.8], rtol=1e-6)
    for wrong in (np.array([3]), np.array([-1])):
        with pytest.raises(DataError, match="classes from 0 to 2"):
            data.OneHot(3).apply((x[:1], wrong), DRAW)
    with pytest.raises(ShapeError, match="one class number"):
        data.OneHot(3).apply((x, x), DRAW)
    with pytest.raises(ShapeError, match="no targets"):
        data.OneHot(3).apply((x,), DRAW)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixing_takes_the_same_part_of_both(alpha: float) -> None:
    count = 4000
    x = np.arange(count + 1, dtype=np.float32)[:, None]
    y = np.stack([np.arange(count + 1) % 2, 1 - np.arange(count + 1) % 2], 1).astype(np.float32)
    mixed, targets = data.Mixup(alpha).apply((x, y), DRAW)
    part = 1 - (mixed[:, 0] - x[:-1, 0])
    assert len(mixed) == count
    assert ((part > -1e-3) & (part < 1.001)).all()
    np.testing.assert_allclose(
        targets, y[:-1] * part[:, None] + y[1:] * (1 - part[:, None]), atol=1e-3
    )
    # The moments of Beta(alpha, alpha).
    assert abs(part.mean() - 0.5) < 0.03
    assert abs(part.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_only_floats_and_bytes_can_be_mixed() -> None:
    x = np.zeros((3, 1), np.uint8)
    assert data.Mixup().apply((x, x.astype(np.float32)), DRAW)[0].dtype == np.float32
    with pytest.raises(DtypeError, match=r"OneHot\(classes\) before"):
        data.Mixup().apply((x, np.arange(3)), DRAW)


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in (
        lambda: data.Rotate(-1),
        lambda: data.Rotate(181),
        lambda: data.Colour(brightness=1.5),
        lambda: data.OneHot(0),
        lambda: data.OneHot(3, smoothing=1.0),
        lambda: data.Mixup(0.0),
        lambda: data.SubtractMean(np.array([np.nan])),
        lambda: data.Decode(channels=2),
        lambda: data.Decode(size=(0, 4)),
    ):
        with pytest.raises(ConfigError, match=r"data\."):
            wrong()


# --- decoding


def encoded(*contents: bytes) -> np.ndarray:
    found = np.empty(len(contents), object)
    found[:] = contents
    return found


def test_images_are_decoded_to_one_size() -> None:
    x = encoded(picture(10, (5, 4)), picture(20, (5, 4), "JPEG"), picture(30, (5, 4), "BMP"))
    found = data.Decode()(x, DRAW)
    assert (found.shape, found.dtype) == ((3, 3, 4, 5), np.uint8)
    assert np.abs(found[:, 0, 0, 0].astype(int) - [10, 20, 30]).max() < 3
    assert data.Decode((8, 6), channels=1)(x, DRAW).shape == (3, 1, 8, 6)
    with pytest.raises(DataError, match="an image of 4x5, got 5x4"):
        data.Decode()(encoded(picture(1, (5, 4)), picture(1, (4, 5))), DRAW)
    with pytest.raises(DataError, match=r"data\.Decode: expected an image"):
        data.Decode()(encoded(b"no image"), DRAW)
    with pytest.raises(DataError, match="encoded images"):
        data.Decode()(images(), DRAW)
