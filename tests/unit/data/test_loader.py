"""Loaders: every sample once an epoch, the same order for the same seed, on any number of ranks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldera import data
from caldera.data.random_draws import permutation
from caldera.errors import CheckpointError, ConfigError, DataError


def numbers(count: int) -> data.ArrayData:
    return data.ArrayData(np.arange(count), np.arange(count) * 2)


def epoch(loader: data.Loader) -> list[list[int]]:
    return [batch.x.tolist() for batch in loader]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 1000])
def test_a_permutation_has_every_number_once(count: int) -> None:
    order = permutation(count, seed=5, epoch=3)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))


def test_a_permutation_depends_on_seed_and_epoch() -> None:
    orders = {
        tuple(permutation(50, seed, number).tolist())
        for seed in (0, 1, 2**32, 2**63, -1)
        for number in range(4)
    }
    assert len(orders) == 20


def test_every_place_is_equally_likely() -> None:
    counts = np.zeros((6, 6))
    for number in range(2000):
        counts[np.arange(6), permutation(6, 0, number)] += 1
    # 333 expected in each of 36 places, with a standard deviation of 17.
    assert np.abs(counts - 2000 / 6).max() < 75


@given(
    count=st.integers(0, 40),
    size=st.integers(1, 12),
    ranks=st.integers(1, 5),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
@settings(deadline=None)
def test_ranks_share_each_batch(
    count: int, size: int, ranks: int, shuffle: bool, drop_last: bool
) -> None:
    if drop_last and 0 < count < size:
        return
    options = {"shuffle": shuffle, "seed": 3, "drop_last": drop_last}
    alone = list(data.Loader(numbers(count), size, **options))  # type: ignore[arg-type]
    together = [
        list(data.Loader(numbers(count), size, rank=rank, ranks=ranks, **options))  # type: ignore[arg-type]
        for rank in range(ranks)
    ]
    assert len(alone) == len(data.Loader(numbers(count), size, **options))  # type: ignore[arg-type]
    for step, batch in enumerate(alone):
        parts = [rank_batches[step] for rank_batches in together]
        assert np.concatenate([part.x for part in parts]).tolist() == batch.x.tolist()
        assert np.concatenate([part.indices for part in parts]).tolist() == batch.indices.tolist()
        for part in parts:
            assert part.count == batch.count == len(batch)
            assert part.x.tolist() == batch.x[part.first : part.first + len(part)].tolist()
            assert part.y is not None
            assert (part.y == part.x * 2).all()
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    seen = [number for batch in alone for number in batch.x.tolist()]
    assert len(seen) == (count - count % size if drop_last else count)
    assert len(set(seen)) == len(seen)
    if not shuffle:
        assert seen == list(range(len(seen)))


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    loader = data.Loader(numbers(30), 7, seed=4)
    first, second = epoch(loader), epoch(loader)
    assert first != second
    again = data.Loader(numbers(30), 7, seed=4)
    assert [epoch(again), epoch(again)] == [first, second]
    assert epoch(data.Loader(numbers(30), 7, seed=5)) != first


@given(stop=st.integers(0, 11), size=st.integers(1, 9), drop_last=st.booleans())
@settings(deadline=None)
def test_an_epoch_continues_in_its_middle(stop: int, size: int, drop_last: bool) -> None:
    whole = data.Loader(numbers(25), size, seed=9, drop_last=drop_last)
    wanted = [epoch(whole), epoch(whole), epoch(whole)]
    interrupted = data.Loader(numbers(25), size, seed=9, drop_last=drop_last)
    done = [epoch(interrupted), []]
    for step, batch in enumerate(interrupted):
        if step == stop:
            break
        done[1].append(batch.x.tolist())
        state = json.loads(json.dumps(interrupted.state()))
        resumed = data.Loader(numbers(25), size, seed=0, drop_last=drop_last)
        resumed.restore(state)
        assert done[1] + epoch(resumed) == wanted[1]
        assert epoch(resumed) == wanted[2]


def test_a_loop_that_is_left_goes_on() -> None:
    loader = data.Loader(numbers(6), 2, shuffle=False)
    for batch in loader:
        assert batch.x.tolist() == [0, 1]
        break
    assert (loader.epoch, loader.position) == (0, 2)
    assert epoch(loader) == [[2, 3], [4, 5]]
    assert (loader.epoch, loader.position) == (1, 0)


def test_the_batch_size_can_grow() -> None:
    loader = data.Loader(numbers(8), 2, shuffle=False)
    assert len(epoch(loader)) == 4
    loader.batch_size = 4
    assert epoch(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    state = loader.state()
    assert state["epoch"] == 2
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ConfigError, match="batch size"):
            loader.batch_size = wrong  # type: ignore[assignment]


def test_transforms_are_the_same_on_any_number_of_ranks_and_after_resuming() -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 1, 6, 6)).astype(np.uint8)
    samples = data.Pipeline(images, [data.Crop(5, 1), data.Mirror(), data.Cutout(2)])
    alone = list(data.Loader(samples, 8, seed=2))
    halves = [list(data.Loader(samples, 8, seed=2, rank=rank, ranks=2)) for rank in (0, 1)]
    for step, batch in enumerate(alone):
        joined = np.concatenate([halves[0][step].x, halves[1][step].x])
        np.testing.assert_array_equal(joined, batch.x)
    smaller = np.concatenate([batch.x for batch in data.Loader(samples, 5, seed=2)])
    np.testing.assert_array_equal(smaller, np.concatenate([batch.x for batch in alone]))
    resumed = data.Loader(samples, 8)
    resumed.restore({"epoch": 0, "position": 16, "seed": 2, "samples": 30})
    np.testing.assert_array_equal(next(iter(resumed)).x, alone[2].x)
    other_epoch = data.Loader(samples, 8)
    other_epoch.restore({"epoch": 1, "position": 0, "seed": 2, "samples": 30})
    assert (next(iter(other_epoch)).x != alone[0].x).any()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0, "position": 2, "seed": 0},
        {"epoch": 0, "position": 2, "seed": 0, "samples": 5, "more": 1},
        {"epoch": 0, "position": 2, "seed": 0, "samples": 6},
        {"epoch": -1, "position": 0, "seed": 0, "samples": 5},
        {"epoch": 0, "position": -2, "seed": 0, "samples": 5},
        {"epoch": 0, "position": 6, "seed": 0, "samples": 5},
        {"epoch": "0", "position": 2, "seed": 0, "samples": 5},
        {"epoch": 0.5, "position": 2, "seed": 0, "samples": 5},
    ],
)
def test_states_of_something_else_are_refused(state: dict[str, object]) -> None:
    loader = data.Loader(numbers(5), 2, seed=7)
    with pytest.raises(CheckpointError, match=r"data\.Loader\.restore"):
        loader.restore(state)
    assert loader.state() == {"epoch": 0, "position": 0, "seed": 7, "samples": 5}


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="rank from 0 to 1, got 2"):
        data.Loader(numbers(4), 2, rank=2, ranks=2)
    with pytest.raises(ConfigError, match="a seed"):
        data.Loader(numbers(4), 2, seed="1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="as_data"):
        data.Loader(np.arange(4), 2)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at most 4"):
        list(data.Loader(numbers(4), 8, drop_last=True))
    with pytest.raises(DataError):
        len(data.Loader(data.IterableData([1, 2]), 2))
