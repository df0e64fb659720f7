"""Batches that are made on a device: places instead of samples, transforms as expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, op
from caldera.data import ArrayData, Draw, Loader, Share
from caldera.data.random_draws import LazyDraw
from caldera.data.transforms.stage import Stages


def lazily(stages: Any, arrays: tuple[np.ndarray, ...], draw: Draw) -> list[np.ndarray]:
    """What stages make of a batch on a device."""
    state = np.array([draw.seed, draw.epoch])
    inputs = [op.input(f"a{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    changed = Stages(stages).expressions(
        tuple(inputs), LazyDraw(state, np.int64(draw.first), draw.stream)
    )
    assert changed is not None
    plan = cd.compile(list(changed), device="loopback")
    feeds = {name: arrays[int(name[1:])] for name in plan.inputs}
    return [each.numpy() for each in plan.run(feeds)]


STAGES: list[Any] = [
    data.Crop(6),
    data.Crop((5, 7), padding=2),
    data.Crop(8, padding=1),
    data.Mirror(),
    data.Mirror(0.0),
    data.Mirror(1.0),
    data.Cutout(3),
    data.Cutout(20),
    data.Normalise(0.5, 0.25),
    data.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    [data.Crop(8, padding=2), data.Mirror(), data.Cutout(3), data.Normalise(0.5, 0.25)],
    [data.Mirror(), data.Mirror(), data.Mirror()],
    data.Rotate(30),
    data.Rotate(180),
    data.SubtractMean(np.linspace(0, 1, 192).reshape(3, 8, 8)),
    data.SubtractMean([0.4, 0.5, 0.6]),
]
DTYPES = ["uint8", "float32", "float64", "float16", "bfloat16", "int32"]


# The dtypes that images have with every stage, the others in turn.
CASES = [
    (stages, dtype)
    for number, stages in enumerate(STAGES)
    for dtype in (*DTYPES[:2], DTYPES[2 + number % 4])
]


@pytest.mark.parametrize(("stages", "dtype"), CASES, ids=str)
def test_stages_do_on_a_device_what_they_do_on_the_host(stages: Any, dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8)).astype(dtype)
    check_alike(stages, (x,))


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_of_bytes_do(channels: int) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, channels, 8, 8)).astype(np.uint8)
    for stage in (
        data.Colour(0.5),
        data.Colour(0, 0.5),
        data.Colour(0, 0, 0.5),
        data.Colour(1, 1, 1),
    ):
        check_alike(stage, (x,))


@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_targets_do(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, 3, 8, 8)).astype(dtype)
    y = np.arange(9) % 4
    for stages in (
        [data.OneHot(4)],
        [data.OneHot(4, smoothing=0.1), data.Mixup(0.3)],
        [data.Crop(8, 1), data.OneHot(4), data.Mixup(), data.Mirror(), data.Mixup(2.0)],
    ):
        check_alike(stages, (x, y))


def check_alike(stages: Any, arrays: tuple[np.ndarray, ...]) -> None:
    """A device makes the bits that the host makes."""
    draw = Draw(seed=-3, epoch=4, first=13)
    expected = Stages(stages).apply(arrays, draw)
    for got, wanted in zip(lazily(stages, arrays, draw), expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_images_may_have_more_axes_or_no_channels() -> None:
    draw = Draw(seed=1)
    for shape in [(4, 6, 6), (4, 2, 3, 6, 6)]:
        x = np.random.default_rng(0).normal(size=shape).astype("float32")
        for stage in (data.Crop(4, padding=1), data.Mirror(), data.Cutout(2), data.Rotate(20)):
            np.testing.assert_array_equal(lazily(stage, (x,), draw)[0], stage(x, draw))


def test_a_stage_that_does_not_fit_is_refused_alike() -> None:
    with pytest.raises(cd.ShapeError, match="at least 9x9"):
        lazily(data.Crop(9), (np.zeros((1, 1, 8, 8)),), Draw())
    with pytest.raises(cd.ShapeError, match="2 channels"):
        lazily(data.Normalise((0.0, 0.0), (1.0, 1.0)), (np.zeros((1, 3)),), Draw())
    with pytest.raises(cd.ShapeError, match="batch of images"):
        lazily(data.Mirror(), (np.zeros((1, 3)),), Draw())


def test_what_has_no_expression_says_so() -> None:
    class Own(data.Transform):
        def __call__(self, x: Any, draw: Draw) -> Any:
            return x

    x = op.input("x", (1, 1, 4, 4))
    draw = LazyDraw(np.zeros(2, np.int64), np.int64(0))
    assert Stages([data.Mirror(), Own()]).expressions((x,), draw) is None
    assert Stages([lambda x, draw: x]).expressions((x,), draw) is None
    # Sums of floats depend on their order, which is not the same everywhere.
    assert Stages(data.Colour(0.1)).expressions((x,), draw) is None


@pytest.mark.parametrize("below", [(1,), (3, 5), (1000, 7, 2)])
def test_whole_numbers_are_the_same(below: tuple[int, ...]) -> None:
    draw = Draw(seed=2**63 + 5, epoch=7, first=1001, stream=2)
    state = np.array([draw.seed, draw.epoch], np.uint64).view(np.int64)
    lazy = LazyDraw(state, np.int64(draw.first), draw.stream)
    np.testing.assert_array_equal(lazy.whole(50, below).numpy(), draw.whole(50, below))


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_the_places_of_batches(ranks: int, drop_last: bool) -> None:
    for rank in range(ranks):
        one, other = (
            Loader(ArrayData(np.arange(23)), 5, seed=4, rank=rank, ranks=ranks, drop_last=drop_last)
            for _ in range(2)
        )
        for _ in range(2):
            order = other.order()
            for batch, share in zip(one, other.shares(), strict=True):
                place = share.start + share.first
                assert batch.x.tolist() == order[place : place + len(share)].tolist()
                assert (batch.first, batch.count) == (share.first, share.count)
                assert (share.count == share.size) == (share.count == 5)
                assert one.state() == other.state()


def test_an_epoch_of_shares_can_be_left_and_continued() -> None:
    loader = Loader(ArrayData(np.arange(10)), 3)
    assert next(loader.shares()) == Share(0, 0, 3, 3, 3)
    assert [share.start for share in loader.shares()] == [3, 6, 9]
    assert (loader.epoch, loader.position) == (1, 0)


def test_the_order_is_made_once_and_belongs_to_the_epoch() -> None:
    loader = Loader(ArrayData(np.arange(10)), 3)
    first = loader.order()
    assert loader.order() is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    list(loader)
    assert loader.order().tolist() != first.tolist()
    loader.restore({"epoch": 0, "position": 0, "seed": 0, "samples": 10})
    assert loader.order().tolist() == first.tolist()


def test_stored_samples_are_those_of_the_subset() -> None:
    whole = ArrayData(np.arange(10), np.arange(10) * 2, scale=None)
    stored = whole.subset([7, 1]).stored()
    assert stored is not None
    assert len(stored) == 2
    assert [array.tolist() for array in stored.samples()] == [[7, 1], [14, 2]]
