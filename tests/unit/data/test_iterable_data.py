"""Streams: samples or batches in their own order, in batches of the wanted size."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera import data
from caldera.errors import ConfigError, DataError


@given(
    sizes=st.lists(st.integers(0, 7), max_size=6),
    batch_size=st.integers(1, 9),
    skip=st.integers(0, 30),
    as_batches=st.booleans(),
)
@settings(deadline=None)
def test_all_samples_come_in_order(
    sizes: list[int], batch_size: int, skip: int, as_batches: bool
) -> None:
    total = sum(sizes)
    everything = np.arange(total)
    ends = np.cumsum(sizes, dtype=int)
    pieces = np.split(everything, ends[:-1]) if sizes else []
    batches = [(piece, piece * 2.0) for piece in pieces]
    samples = [(number, number * 2.0) for number in range(total)]
    stream = data.IterableData(batches if as_batches else samples, batches=as_batches)
    found = list(stream.read(batch_size, skip=skip))
    wanted = everything[skip:]
    assert [n for x, _ in found for n in x.tolist()] == wanted.tolist()
    assert all((y == x * 2).all() for x, y in found)
    assert all(len(x) == batch_size for x, _ in found[:-1])


def test_loaders_read_streams_on_ranks_and_resume() -> None:
    stream = data.IterableData([([float(n)], n) for n in range(11)])
    alone = list(data.Loader(stream, 4))
    assert [batch.x[:, 0].tolist() for batch in alone] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    parts = [list(data.Loader(stream, 4, rank=rank, ranks=3)) for rank in range(3)]
    for step, batch in enumerate(alone):
        joined = np.concatenate([part[step].x for part in parts])
        np.testing.assert_array_equal(joined, batch.x)
        assert all(part[step].count == batch.count for part in parts)
    loader = data.Loader(stream, 4)
    next(iter(loader))
    resumed = data.Loader(stream, 4)
    resumed.restore(loader.state())
    assert [batch.indices.tolist() for batch in resumed] == [[4, 5, 6, 7], [8, 9, 10]]
    assert resumed.epoch == 1
    assert len(list(data.Loader(stream, 4, drop_last=True))) == 2


def test_a_generator_is_read_once_and_a_function_again() -> None:
    def numbers() -> Iterator[int]:
        yield from range(4)

    once = data.Loader(data.IterableData(numbers()), 2)
    assert len(list(once)) == 2
    with pytest.raises(DataError, match="pass the function that makes it"):
        list(once)
    again = data.Loader(data.IterableData(numbers), 2)
    assert [len(list(again)) for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize("batches", [False, True])
def test_looking_at_the_shape_loses_nothing(batches: bool) -> None:
    items = [np.full((3, 2), n, np.uint8) for n in (0, 51, 255)]
    stream = data.IterableData(iter(items), batches=batches)
    assert stream.shape == ((2,) if batches else (3, 2))
    assert stream.dtype == np.float32
    found = [batch.x for batch in data.Loader(stream, 2)]
    np.testing.assert_array_equal(
        np.concatenate(found).reshape(9, 2)[::3, 0], np.float32([0, 0.2, 1])
    )


def test_transforms_and_scale() -> None:
    images = [np.full((1, 4, 4), 255, np.uint8)] * 3
    stream = data.Pipeline(data.IterableData(images, scale=None), data.Crop(2))
    assert stream.shape == (1, 2, 2)
    assert next(iter(data.Loader(stream, 3))).x.dtype == np.uint8


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(1.0, 2), (1.0,)], "sample 1: expected samples of float64"),
        ([[1, 2], [1, 2, 3]], r"sample 1: .*\(2,\), got samples of int64 \(3,\)"),
        ([1, 2.5], "sample 1: .*int64 .*, got samples of float64"),
        (["text"], "sample 0: expected arrays of numbers"),
        ([[[1], [2, 3]]], "sample 0: expected arrays of numbers"),
    ],
)
def test_samples_that_differ_are_named(items: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(data.IterableData(items).read(10))


def test_batches_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match="batch 1: expected equal numbers of inputs and targets"):
        list(data.IterableData([([1], [1]), ([1, 2], [1])], batches=True).read(10))
    with pytest.raises(ConfigError, match="an iterable or a function"):
        data.IterableData(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected samples, got none"):
        _ = data.IterableData([]).shape
