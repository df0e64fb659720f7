"""Arrays as data: what a batch holds, and in which dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import caldera as cd
from caldera import data
from caldera.errors import ConfigError, DtypeError, IndexingError, ShapeError


def test_a_batch_is_a_gather() -> None:
    x = np.random.default_rng(0).random((20, 3, 4)).astype(np.float32)
    y = np.arange(20)
    samples = data.ArrayData(x, y)
    rows = np.array([3, 3, 19, 0])
    batch_x, batch_y = samples.batch(rows)
    np.testing.assert_array_equal(batch_x, x[rows])
    np.testing.assert_array_equal(batch_y, y[rows])
    assert batch_x.dtype == np.float32
    assert (len(samples), samples.shape, samples.dtype) == (20, (3, 4), np.float32)


def test_a_batch_is_the_callers_own() -> None:
    x = np.zeros((4, 2), np.float32)
    samples = data.ArrayData(x)
    first = samples.batch(np.arange(2))[0]
    first[:] = 1
    samples.batch(np.arange(2))[0][:] = 2
    assert first.max() == 1
    assert x.max() == 0


def test_bytes_become_floats_exactly_as_numpy_divides() -> None:
    x = np.arange(256, dtype=np.uint8)[:, None]
    samples = data.ArrayData(x, x[:, 0])
    batch_x, batch_y = samples.batch(np.arange(256))
    assert samples.dtype == batch_x.dtype == np.float32
    np.testing.assert_array_equal(batch_x, x.astype(np.float32) / np.float32(255))
    assert batch_y.dtype == np.uint8, "targets are never scaled"


def test_scale_can_be_changed_and_left_out() -> None:
    x = np.array([[0, 8, 16]], np.uint8)
    assert data.ArrayData(x, scale=16).x.tolist() == [[0, 0.5, 1]]
    tokens = data.ArrayData(x, scale=None)
    assert tokens.dtype == tokens.x.dtype == np.uint8
    assert data.ArrayData(x.astype(np.int64)).x.dtype == np.int64
    with pytest.raises(ConfigError, match="scale above 0"):
        data.ArrayData(x, scale=0)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(24.0).reshape(6, 4).T,
        np.arange(24.0).reshape(4, 6)[:, ::2],
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.arange(24, dtype=">f8").reshape(4, 6),
        np.arange(24.0).reshape(4, 6).tolist(),
        cd.tensor(np.arange(24.0).reshape(4, 6)),
    ],
    ids=["transposed", "strided", "column-major", "big-endian", "list", "tensor"],
)
def test_any_array_gives_dense_batches(x) -> None:
    rows = np.array([2, 0, 3])
    batch = data.ArrayData(x).batch(rows)[0]
    np.testing.assert_array_equal(batch, np.asarray(x)[rows])
    assert batch.flags.c_contiguous
    assert batch.dtype.isnative


def test_memory_mapped_arrays_are_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.arange(30, dtype=np.float32).reshape(10, 3))
    samples = data.ArrayData(np.load(path, mmap_mode="r"))
    assert isinstance(samples._arrays[0].base, np.memmap)
    batch = samples.batch(np.array([9, 1]))[0]
    assert type(batch) is np.ndarray
    assert batch.tolist() == [[27, 28, 29], [3, 4, 5]]


def test_x_alone_and_several_inputs() -> None:
    alone = data.ArrayData(np.arange(4))
    assert alone.y is None
    assert len(alone.batch(np.arange(2))) == 1
    pair = data.ArrayData(np.arange(4), np.arange(4) * 2.0, np.arange(4) * 3)
    batch = next(iter(data.Loader(pair, 2, shuffle=False)))
    assert batch.x.tolist() == [0, 1]
    assert batch.between[0].tolist() == [0.0, 2.0]
    assert batch.y is not None
    assert batch.y.tolist() == [0, 3]


def test_mistakes_are_named() -> None:
    with pytest.raises(ShapeError, match=r"equal numbers of inputs and targets.*\(3, 2\), \(4,\)"):
        data.ArrayData(np.zeros((3, 2)), np.zeros(4))
    with pytest.raises(ShapeError):
        data.ArrayData(3.0)
    with pytest.raises(ConfigError):
        data.ArrayData()
    with pytest.raises(DtypeError):
        data.ArrayData(np.array(["a", "b"]))
    with pytest.raises(IndexingError, match="0 to 2, got 1 to 3"):
        data.ArrayData(np.zeros(3)).batch(np.array([1, 3]))


@given(st.lists(st.integers(0, 9), max_size=20), st.lists(st.integers(0, 100), max_size=5))
def test_subsets_of_subsets(numbers: list[int], inner: list[int]) -> None:
    x = np.arange(10) * 7
    first = data.ArrayData(x, x).subset(numbers)
    assert first.x.tolist() == x[numbers].tolist()
    rows = [each % len(numbers) for each in inner] if numbers else []
    second = first.subset(rows)
    assert len(second) == len(rows)
    assert second.x.tolist() == x[numbers][rows].tolist()
    assert second.y is not None
    assert second.y.tolist() == second.x.tolist()


def test_subsets_refuse_what_is_no_sample() -> None:
    samples = data.ArrayData(np.arange(5))
    assert samples.subset([-1]).x.tolist() == [4]
    for wrong in ([5], [-6]):
        with pytest.raises(IndexingError):
            samples.subset(wrong)
    with pytest.raises(ConfigError):
        samples.subset(np.array([0.5]))


def test_data_of_anything() -> None:
    samples = data.ArrayData(np.arange(3))
    assert data.as_data(samples) is samples
    assert data.as_data(np.arange(3)).x.tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert data.as_data([[1, 2], [3, 4]]).shape == (2,)
    assert len(data.as_data((np.zeros((3, 2)), [1, 2, 3]))) == 3  # type: ignore[arg-type]
    assert data.as_data(cd.tensor([[1.0, 2.0]])).shape == (2,)
    for stream in (iter([1, 2]), lambda: iter([1, 2]), (number for number in range(2))):
        assert isinstance(data.as_data(stream), data.IterableData)
    with pytest.raises(ConfigError, match=r"pass its \.train"):
        data.as_data(data.arrays(np.zeros((4, 1)), [0, 1, 0, 1]))
    with pytest.raises(DtypeError):
        data.as_data(object())
