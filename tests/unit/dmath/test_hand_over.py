"""Blocks to and from Dask and pandas: with stand-ins that have what is used of them, and with the
libraries themselves where they are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from caldera import dmath as dm
from caldera.dmath import shards
from caldera.errors import CalderaError, ConfigError, ShapeError

RNG = np.random.default_rng(0)
LAYOUTS: tuple[Any, ...] = (
    dm.Rows(),
    dm.Blocks(2, 3),
    dm.BlockCyclic(2, grid=(1, 3)),
    dm.Replicated(),
)


@pytest.fixture(autouse=True)
def session() -> Iterator[dm.Session]:
    with dm.connect(threads=3) as made:
        yield made


class Chunked:
    """As much of an array of Dask as is asked for; it notes what was computed."""

    def __init__(self, values: np.ndarray, *chunks: int, seen: list[Any] | None = None) -> None:
        self._values, self.shape, self.dtype = values, values.shape, values.dtype
        self._seen: list[Any] = [] if seen is None else seen
        each = zip(values.shape, chunks, strict=False)
        self.chunks = tuple(
            tuple(min(chunk, n - begin) for begin in range(0, n, chunk)) for n, chunk in each
        )

    def __getitem__(self, box: Any) -> Chunked:
        self._seen.append(box)
        return Chunked(self._values[box], seen=self._seen)

    def compute(self) -> np.ndarray:
        return self._values


@pytest.mark.parametrize("shape", [(7, 5), (10, 3), (0, 3), (4,), (5, 2, 3)])
def test_chunks_are_computed_rank_by_rank(shape: tuple[int, ...]) -> None:
    values, seen = RNG.normal(size=shape), []  # type: ignore[var-annotated]
    made = dm.from_dask(Chunked(values, *[3] * len(shape), seen=seen))
    assert np.array_equal(made.numpy(), values)
    assert len(seen) <= 3
    # Between chunks, as near to equal parts as these allow.
    assert all(box[0].start % 3 == 0 for box in seen)
    if len(shape) == 2:
        again = dm.from_dask(Chunked(values, 3, 3), layout=dm.Blocks(2, 2))
        assert np.array_equal(again.numpy(), values)


def test_what_is_no_array_of_dask_is_refused() -> None:
    for given, message in (([1], "of Dask"), (np.ones(3), "of Dask")):
        with pytest.raises(ConfigError, match=message):
            dm.from_dask(given)
    unknown = Chunked(np.ones(3), 2)
    unknown.shape = (float("nan"),)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="compute_chunk_sizes"):
        dm.from_dask(unknown)


def test_what_dask_raises_is_seen_and_the_session_goes_on() -> None:
    class Broken(Chunked):
        def __getitem__(self, box: Any) -> Chunked:
            raise ZeroDivisionError("in a chunk")

    with pytest.raises(ZeroDivisionError, match="in a chunk"):
        dm.from_dask(Broken(np.ones((4, 2)), 2, 2))
    assert dm.ones((4, 2)).sum().item() == 8


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_are_all_there_is(layout: Any) -> None:
    a = RNG.normal(size=(7, 5))
    whole = np.full(a.shape, np.nan)
    for box, block in dm.array(a, layout=layout).blocks():
        assert np.isnan(whole[box]).all()
        whole[box] = block
    assert np.array_equal(whole, a)
    assert [block.item() for _, block in dm.array(3.5).blocks()] == [3.5]


def test_small_blocks_are_taken_together(monkeypatch: Any) -> None:
    monkeypatch.setattr(shards, "MOST_BLOCKS", 6)
    a = RNG.normal(size=(9, 8))
    found = list(dm.array(a, layout=dm.Blocks(1, 1)).blocks())
    assert 1 < len(found) <= 6
    assert sum(block.size for _, block in found) == a.size


def test_dask_is_given_slices_of_what_stays_on_ranks(monkeypatch: Any) -> None:
    given: dict[str, Any] = {}
    stand_in, package = ModuleType("dask.array"), ModuleType("dask")
    stand_in.from_array = lambda x, **how: given.update(how, x=x)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dask", package)
    monkeypatch.setitem(sys.modules, "dask.array", stand_in)
    a = RNG.normal(size=(7, 5))
    dm.array(a, layout=dm.Blocks([0, 2, 7], 5)).to_dask()
    assert given["chunks"] == ((2, 5), (5,))
    assert np.array_equal(given["x"][2:7, 1:4], a[2:7, 1:4])
    assert (given["x"].shape, given["x"].dtype, given["x"].ndim) == (a.shape, a.dtype, 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_dask_itself(layout: Any) -> None:
    da = pytest.importorskip("dask.array")
    a = RNG.normal(size=(7, 5))
    made = dm.array(a, layout=layout).to_dask()
    assert np.array_equal(made.compute(), a)
    assert np.array_equal((made[::2] * 2).compute(), a[::2] * 2)
    assert np.array_equal(dm.from_dask(da.from_array(a, chunks=(2, 3)) + 1).numpy(), a + 1)


class Kinds(dict[str, Any]):
    def to_dict(self) -> Kinds:
        return self


class Frame:
    """As much of a frame of pandas as is asked for."""

    ndim = 2

    def __init__(self, **columns: Any) -> None:
        self.dtypes = Kinds({name: np.asarray(values).dtype for name, values in columns.items()})
        self._values = np.stack([np.asarray(each, object) for each in columns.values()], 1)
        self.shape = self._values.shape
        self.iloc = self

    def __getitem__(self, box: Any) -> Any:
        values = self._values[box]

        class Taken:
            def to_numpy(self, dtype: Any) -> np.ndarray:
                return values.astype(dtype)

        return Taken()

    def to_numpy(self) -> np.ndarray:
        return self._values


def test_numbers_of_a_frame() -> None:
    frame = Frame(a=[1.5, 2.5, 3.5, 4.5], b=[1, 2, 3, 4], c=[True, False, True, True])
    right = np.array([[1.5, 1, 1], [2.5, 2, 0], [3.5, 3, 1], [4.5, 4, 1]])
    made = dm.from_pandas(frame)
    assert made.dtype == np.float64
    assert np.array_equal(made.numpy(), right)
    narrow = dm.from_pandas(frame, layout=dm.Columns(), dtype="float32")
    assert np.array_equal(narrow.numpy(), right.astype(np.float32))
    with pytest.raises(ConfigError, match=r"others in name, when"):
        dm.from_pandas(Frame(name=["x", "y"], when=np.array([0, 1], "M8[s]"), n=[1, 2]))
    with pytest.raises(ConfigError, match="dtype='float64'"):
        dm.from_pandas(_with_gap())
    with pytest.raises(ConfigError, match="a DataFrame or a Series"):
        dm.from_pandas([1, 2])


def _with_gap() -> Frame:
    frame = Frame(a=[1, 2, 3])
    frame._values[1, 0] = None
    return frame


def test_pandas_itself() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": RNG.normal(size=7), "b": np.arange(7)})
    made = dm.from_pandas(frame)
    assert made.to_pandas(columns=["a", "b"]).equals(frame.astype(float))
    assert dm.from_pandas(frame["a"]).to_pandas().equals(frame["a"].rename(None))


def test_what_pandas_cannot_hold(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pandas", ModuleType("pandas"))
    with pytest.raises(ShapeError, match="reshape"):
        dm.ones((2, 2, 2)).to_pandas()
    with pytest.raises(ShapeError, match="3 names"):
        dm.ones((2, 3)).to_pandas(columns=["a"])
    with pytest.raises(CalderaError, match="no columns"):
        dm.ones(3).to_pandas(columns=["a"])
