"""Batches that are made on a device: places instead of samples, transforms as expressions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import data, op
from caldera.data import ArrayData, Draw, Loader, Share
from caldera.data.draw import LazyDraw
from caldera.data.transform import as_transform


def lazily(transform: Any, x: np.ndarray, draw: Draw, where: str = "loopback") -> np.ndarray:
    """What a transform makes of a batch on a device."""
    state = np.array([draw.seed, draw.epoch])
    chain = as_transform(transform)
    assert chain is not None
    changed = chain.lazily(
        op.input("x", x.shape, x.dtype), LazyDraw(state, np.int64(draw.first), draw.stream)
    )
    assert changed is not None
    return cd.compile(changed, device=where).run({"x": x})[0].numpy()


TRANSFORMS: list[Any] = [
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
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64", "float16", "bfloat16", "int32"])
def test_transforms_do_on_a_device_what_they_do_on_the_host(transform: Any, dtype: str) -> None:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (9, 3, 8, 8)).astype(dtype)
    draw = Draw(seed=-3, epoch=4, first=13)
    chain = as_transform(transform)
    assert chain is not None
    expected = chain(x, draw)
    got = lazily(transform, x, draw)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_images_may_have_more_axes_or_no_channels() -> None:
    draw = Draw(seed=1)
    for shape in [(4, 6, 6), (4, 2, 3, 6, 6)]:
        x = np.random.default_rng(0).normal(size=shape).astype("float32")
        for transform in (data.Crop(4, padding=1), data.Mirror(), data.Cutout(2)):
            np.testing.assert_array_equal(lazily(transform, x, draw), transform(x, draw))


def test_a_transform_that_does_not_fit_is_refused_alike() -> None:
    with pytest.raises(cd.ShapeError, match="at least 9x9"):
        lazily(data.Crop(9), np.zeros((1, 1, 8, 8)), Draw())
    with pytest.raises(cd.ShapeError, match="2 channels"):
        lazily(data.Normalise((0.0, 0.0), (1.0, 1.0)), np.zeros((1, 3)), Draw())
    with pytest.raises(cd.ShapeError, match="batch of images"):
        lazily(data.Mirror(), np.zeros((1, 3)), Draw())


def test_what_has_no_expression_says_so() -> None:
    class Own(data.Transform):
        def __call__(self, x: Any, draw: Draw) -> Any:
            return x

    x = op.input("x", (1, 1, 4, 4))
    draw = LazyDraw(np.zeros(2, np.int64), np.int64(0))
    assert data.Compose([data.Mirror(), Own()]).lazily(x, draw) is None
    assert data.Compose([lambda x, draw: x]).lazily(x, draw) is None


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
