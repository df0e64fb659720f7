"""Pipelines: the same batches however they are made, and what goes wrong is named."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from caldera import data
from caldera.data.loading.batch import device_splits
from caldera.data.loading.tuner import LoaderSetting
from caldera.errors import ConfigError, DataError, ShapeError

STAGES = [
    data.Rotate(20),
    data.Colour(0.2, 0.2, 0.2),
    data.Crop(8, padding=2),
    data.Mirror(),
    data.OneHot(5, smoothing=0.1),
    data.Mixup(0.4),
    data.Normalise((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    data.Cutout(3),
]
SETTINGS: list[dict[str, int | None]] = [
    {"workers": 0},
    {"workers": 1},
    {"workers": 4, "prefetch": 2},
    {"workers": 3, "prefetch": 16},
    {"workers": None, "prefetch": None},
]


def images(count: int = 53) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).integers(0, 256, (count, 3, 8, 8)).astype(np.uint8)
    return x, np.arange(count) % 5


def same(one: Iterator[data.Batch] | data.Loader, other: list[data.Batch]) -> None:
    found = list(one)
    assert len(found) == len(other)
    for mine, theirs in zip(found, other, strict=True):
        assert mine.indices.tolist() == theirs.indices.tolist()
        assert (mine.first, mine.count) == (theirs.first, theirs.count)
        assert mine.x.tobytes() == theirs.x.tobytes()
        assert mine.y is not None
        assert theirs.y is not None
        assert mine.y.tobytes() == theirs.y.tobytes()


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "caldera-data"]


class Sleepy(data.Transform):
    """Takes a while, and not always equally long."""

    def __call__(self, x: np.ndarray, draw: data.Draw) -> np.ndarray:
        time.sleep(0.002 * float(draw.uniform(1)[0, 0]))
        return x


# --- the same batches


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_batches_depend_on_their_place_alone(setting: dict[str, Any]) -> None:
    wanted = data.Loader(data.Pipeline(images(), STAGES, workers=0), 8, seed=3)
    tuned = data.Loader(data.Pipeline(images(), [*STAGES, Sleepy()], **setting), 8, seed=3)
    for _ in range(2):
        same(tuned, list(wanted))
    assert tuned.epoch == 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_and_sizes_of_batches_change_nothing(ranks: int) -> None:
    alone = list(data.Loader(data.Pipeline(images(), STAGES), 10, seed=3))
    pipeline = data.Pipeline(images(), STAGES, workers=2)
    parts = [
        list(data.Loader(pipeline, 10, seed=3, rank=rank, ranks=ranks)) for rank in range(ranks)
    ]
    for step, batch in enumerate(alone):
        joined = np.concatenate([part[step].x for part in parts])
        assert joined.tobytes() == batch.x.tobytes()
    smaller = data.Loader(data.Pipeline(images(), STAGES), 7, seed=3)
    everything = np.concatenate([batch.x for batch in smaller])
    assert everything.tobytes() == np.concatenate([batch.x for batch in alone]).tobytes()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_an_epoch_goes_on_in_its_middle(setting: dict[str, Any], stop: int) -> None:
    def loader(seed: int = 9) -> data.Loader:
        return data.Loader(data.Pipeline(images(), [*STAGES, Sleepy()], **setting), 8, seed=seed)

    whole = loader()
    list(whole)
    second, third = list(whole), list(whole)
    interrupted = loader()
    list(interrupted)
    done = []
    for batch in interrupted:
        done.append(batch)
        if len(done) == stop:
            break
    # What was made ahead does not count as handed out.
    state = interrupted.state()
    assert state["position"] == 8 * stop
    resumed = loader(seed=0)
    resumed.restore(state)
    same(iter(done + list(resumed)), second)
    same(resumed, third)
    same(iter(done + list(interrupted)), second)


@pytest.mark.parametrize("workers", [0, 3])
def test_streams_pass_through_stages_too(workers: int) -> None:
    x, y = images()

    def samples() -> Iterator[tuple[np.ndarray, int]]:
        yield from zip(x, y, strict=True)

    numbered = data.Loader(data.Pipeline((x, y), STAGES, workers=0), 8, seed=3, shuffle=False)
    streamed = data.Pipeline(data.IterableData(samples), STAGES, workers=workers)
    loader = data.Loader(streamed, 8, seed=3)
    wanted = list(numbered)
    same(loader, wanted)
    middle = data.Loader(streamed, 8)
    middle.restore({"epoch": 0, "position": 16, "seed": 3, "samples": 0})
    same(middle, wanted[2:])
    parts = [list(data.Loader(streamed, 8, seed=3, rank=rank, ranks=2)) for rank in (0, 1)]
    for step, batch in enumerate(wanted):
        assert b"".join(part[step].x.tobytes() for part in parts) == batch.x.tobytes()
    with pytest.raises(DataError, match="a stream"):
        len(streamed)
    with pytest.raises(DataError, match="a stream"):
        streamed.batch([0])


# --- shapes, dtypes, parts


def test_bytes_stay_bytes_until_a_stage_needs_more() -> None:
    seen: list[str] = []

    def look(x: np.ndarray, draw: data.Draw) -> np.ndarray:
        seen.append(x.dtype.name)
        return x

    early = [data.Crop(6), data.Mirror(), data.Rotate(9), data.Colour(0.1), data.Cutout(2)]
    pipeline = data.Pipeline(images(), [*early, look, data.Normalise(0.5, 0.5), look])
    seen.clear()
    x, _ = pipeline.batch(np.arange(3))
    assert seen == ["uint8", "float32"]
    assert (x.dtype, pipeline.dtype, pipeline.shape) == (np.float32, np.float32, (3, 6, 6))
    plain = data.Pipeline(images(), data.Mirror())
    assert (plain.dtype, plain.batch([0])[0].max() <= 1) == (np.float32, True)
    bytes_only = data.Pipeline(data.ArrayData(*images(), scale=None), data.Mirror())
    assert bytes_only.dtype == np.uint8


def test_pipelines_of_pipelines_and_of_subsets() -> None:
    inner = data.Pipeline(images(), data.Crop(6))
    outer = data.Pipeline(inner, data.Normalise(0.5, 0.5))
    flat = data.Pipeline(images(), [data.Crop(6), data.Normalise(0.5, 0.5)])
    assert outer.x.tobytes() == flat.x.tobytes()
    part = flat.subset([4, 2])
    assert part.x.shape == (2, 3, 6, 6)
    assert part.y is not None
    assert part.y.tolist() == [4, 2]
    train, test = data.split(flat, test=0.2)
    assert (len(train), len(test), train.shape) == (42, 11, (3, 6, 6))
    assert data.Pipeline.of(flat) is flat


def test_targets_are_those_that_leave_the_stages() -> None:
    pipeline = data.Pipeline(images(4), [data.OneHot(5), data.Mirror()])
    assert pipeline.y is not None
    assert pipeline.y.tolist() == np.eye(5)[:4].tolist()


def test_empty_data_and_empty_parts() -> None:
    empty = data.Pipeline((np.zeros((0, 3, 8, 8), np.uint8), np.zeros(0, int)), data.Crop(6))
    assert (len(empty), empty.shape, list(data.Loader(empty, 4))) == (0, (3, 6, 6), [])
    few = data.Pipeline(images(1), STAGES)
    batch = next(iter(data.Loader(few, 4, rank=0, ranks=2)))
    assert (batch.x.shape, batch.x.dtype) == ((0, 3, 8, 8), np.float32)
    assert batch.y is not None
    assert batch.y.shape == (0, 5)


# --- what goes wrong


class Bad(data.Transform):
    """Refuses samples that are marked."""

    def __call__(self, x: np.ndarray, draw: data.Draw) -> np.ndarray:
        if (x == 99).any():
            raise RuntimeError("cannot bear 99")
        return x


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sample_that_a_stage_could_not_take_is_named(workers: int) -> None:
    x = np.zeros((40, 2), np.float32)
    x[17] = 99

    class Named(data.ArrayData):
        def name_of(self, index: int) -> str:
            return f"row-{index}.txt"

    pipeline = data.Pipeline(Named(x), [data.Normalise(0.0, 1.0), Bad()], workers=workers)
    loader = data.Loader(pipeline, 8, shuffle=False)
    batches = iter(loader)
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(DataError, match=r"Bad of row-17\.txt: got RuntimeError: cannot bear 99"):
        next(batches)
    assert loader.position == 16
    assert not threads()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_sample_that_could_not_be_read_is_named(workers: int) -> None:
    class Torn(data.ArrayData):
        def raw_batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
            if 11 in indices:
                raise OSError("input/output error")
            return super().raw_batch(indices)

    loader = data.Loader(data.Pipeline(Torn(np.arange(20.0)), workers=workers), 4, shuffle=False)
    with pytest.raises(DataError, match="reading sample 11: got OSError: input/output error"):
        list(loader)
    assert not threads()


def test_an_error_keeps_its_kind() -> None:
    x, y = images()
    with pytest.raises(ShapeError, match=r"Crop of sample 0: data\.Crop: expected images of at"):
        data.Pipeline((x, y), data.Crop(9))
    pipeline = data.Pipeline((x, y), data.OneHot(4), workers=1)
    with pytest.raises(DataError, match=r"OneHot of sample 4: .*classes from 0 to 3, got 4"):
        list(data.Loader(pipeline, 8, shuffle=False))
    stream = data.Pipeline(data.IterableData(list(zip(x, y, strict=True))), data.OneHot(4))
    with pytest.raises(DataError, match="OneHot of sample 4"):
        list(data.Loader(stream, 8))


def test_mistakes_are_named() -> None:
    for wrong in ({"workers": -1}, {"prefetch": 0}, {"workers": 1.5}):
        with pytest.raises(ConfigError, match=r"data\.Pipeline: expected (workers|prefetch)"):
            data.Pipeline(images(), **wrong)  # type: ignore[arg-type]


# --- threads


@pytest.mark.parametrize("workers", [1, 4, None])
def test_no_thread_outlives_the_loop(workers: int | None) -> None:
    pipeline = data.Pipeline(images(), [Sleepy()], workers=workers)
    loader = data.Loader(pipeline, 4)
    for _ in loader:
        pass
    assert not threads()
    for _ in loader:
        break
    gc.collect()
    assert not threads()

    def fail() -> None:
        for batch in loader:
            raise ZeroDivisionError(len(batch))

    with pytest.raises(ZeroDivisionError):
        fail()
    gc.collect()
    assert not threads()
    unfinished = iter(loader)
    next(unfinished)
    del unfinished
    gc.collect()
    assert not threads()


def test_slow_stages_get_workers_and_keep_them() -> None:
    class Slow(data.Transform):
        def __call__(self, x: np.ndarray, draw: data.Draw) -> np.ndarray:
            time.sleep(0.004)
            return x

    pipeline = data.Pipeline(images(), Slow())
    loader = data.Loader(pipeline, 4)
    assert loader.setting == LoaderSetting(0, 0)
    list(loader)
    assert loader.setting.workers > 0
    list(loader)
    text = pipeline.report()
    assert "Slow" in text
    assert f"{pipeline.usage.setting.workers} worker" in text
    assert pipeline.usage.batches == 28


# --- where stages run


def test_stages_that_have_expressions_may_run_on_a_device() -> None:
    own = [lambda x, draw: x]
    late = [data.Mirror(), data.Crop(6)]
    assert device_splits(data.Pipeline(images(), [*own, *late])) == (1, 3, None)
    assert device_splits(data.Pipeline(images(), [*late, data.Normalise(0.5, 1.0)])) == (0, 2, None)
    assert device_splits(data.Pipeline(images(), [*late, *own])) == (3, None)
    assert device_splits(data.Pipeline(images())) == (0, None)
    floats = np.zeros((4, 3), np.float32)
    assert device_splits(data.Pipeline(floats)) == (None,)
    assert device_splits(data.Pipeline(floats, own)) == (None,)


def test_a_batch_that_is_not_finished_says_what_is_left() -> None:
    pipeline = data.Pipeline(images(), [data.Mirror(), data.OneHot(5), data.Mixup()])
    batch = next(data.Loader(pipeline, 8, seed=2).batches([1]))
    assert batch.rest is not None
    assert (batch.rest.first, batch.rest.draw) == (1, data.Draw(seed=2))
    assert (len(batch), len(batch.x), batch.x.dtype) == (8, 9, np.uint8)
    finished = next(data.Loader(pipeline, 8, seed=2).batches())
    made = pipeline.stages.apply(batch.arrays, batch.rest.draw, first=1)
    assert made[0].tobytes() == finished.x.tobytes()
    assert finished.rest is None
