"""Sequences of different lengths: padded, masked, and in batches of like lengths."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from caldera import data
from caldera.data.sources.ragged_data import bucket_lengths
from caldera.errors import CalderaError, ConfigError, DataError, ShapeError


def sequences(lengths: np.ndarray) -> list[np.ndarray]:
    return [np.full((length, 2), length, "float32") for length in lengths]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("batch_size", [16, 64])
def test_padding_stays_under_a_tenth(seed: int, batch_size: int) -> None:
    lengths = np.clip(np.random.default_rng(seed).gamma(4, 60, 3000).astype(int), 10, 400)
    ragged = data.RaggedData(sequences(lengths))
    assert ragged.padding(batch_size) < 0.1
    assert len(ragged.buckets) <= 16
    assert data.RaggedData(sequences(lengths), buckets=1).padding(batch_size) > 0.3


@pytest.mark.parametrize("seed", range(4))
def test_an_epoch_has_every_sample_once(seed: int) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 30, generator.integers(1, 200))
    ragged = data.RaggedData(sequences(lengths), np.arange(len(lengths)))
    loader = data.Loader(ragged, int(generator.integers(1, 20)), seed=seed)
    orders = []
    for _ in range(2):
        seen = []
        for batch in loader:
            x, mask, y = batch.arrays
            assert x.shape[1] in ragged.buckets
            assert mask.sum(axis=1).tolist() == lengths[y].tolist()
            assert (x[mask] == np.repeat(lengths[y], lengths[y])[:, None]).all()
            assert not x[~mask].any()
            seen += y.tolist()
        assert sorted(seen) == list(range(len(lengths)))
        orders.append(seen)
    assert len(lengths) < 10 or orders[0] != orders[1]


def test_ranks_pad_their_parts_of_a_batch_alike() -> None:
    ragged = data.RaggedData(sequences(np.array([1, 9, 2, 8, 3])), buckets=[3, 9])
    shapes = [
        [batch.x.shape[1] for batch in data.Loader(ragged, 3, seed=4, rank=rank, ranks=4)]
        for rank in range(4)
    ]
    assert all(each == shapes[0] for each in shapes)


def test_targets_may_be_sequences() -> None:
    x = sequences(np.array([2, 5]))
    along = data.RaggedData(x, [[1, 2], [1, 2, 3, 4, 5]], buckets=[3, 5])
    assert along.batch(np.array([0]))[-1].tolist() == [[1, 2, 0]]
    others = data.RaggedData(x, [[1], [1, 2, 3]], buckets=[3, 5])
    assert others.batch(np.array([0]))[-1].tolist() == [[1, 0, 0]]


def test_words_need_no_mask() -> None:
    words = data.RaggedData([[3, 1], [2]], [0, 1])
    assert [each.tolist() for each in words.batch(np.array([1, 0]))] == [[[2, 0], [3, 1]], [1, 0]]
    with pytest.raises(DataError, match="words numbered from 1, since 0 is padding"):
        data.RaggedData([[0, 1], [2]])
    assert len(data.RaggedData([[0, 1], [2]], mask=True).batch(np.array([0]))) == 2


def test_subsets_keep_their_samples_and_the_buckets() -> None:
    lengths = np.arange(1, 21)
    part = data.RaggedData(sequences(lengths), lengths, buckets=4).subset([19, 3])
    assert part.y is not None
    assert part.y.tolist() == [20, 4]
    assert part.batch(np.array([1]))[0][0, :, 0].tolist() == [4.0, 4.0, 4.0, 4.0, 0.0]


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_buckets_are_the_best_of_their_number(count: int) -> None:
    lengths = np.random.default_rng(0).integers(1, 12, 40)
    found = bucket_lengths(lengths, count)

    def padded(buckets: tuple[int, ...]) -> int:
        return sum(min(each for each in buckets if each >= length) for length in lengths)

    values = np.unique(lengths).tolist()
    best = min(
        padded((*inner, values[-1]))
        for inner in combinations(values[:-1], min(count, len(values)) - 1)
    )
    assert padded(found) == best


def test_mistakes_are_named() -> None:
    for bad in ([], [np.zeros((0, 2))], [np.zeros((2, 2)), np.zeros((2, 3))], [1.0, 2.0], ["a"]):
        with pytest.raises(CalderaError):
            data.RaggedData(bad)
    with pytest.raises(ShapeError, match="2 targets"):
        data.RaggedData([[1.0], [1.0, 2.0]], [1])
    for buckets in (0, True, [], [0], [1.5], [1]):
        with pytest.raises(ConfigError, match="bucket"):
            data.RaggedData([[1.0], [1.0, 2.0]], buckets=buckets)  # type: ignore[arg-type]
