"""Data larger than memory: each rank reads its own samples, and nothing that it does not use."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import caldera as cd
from caldera import data, nn
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CommError, DataError
from caldera.parallel import DataParallel, LocalSGD
from tests.unit.parallel.ranks import FEATURES, network, samples, values

COUNT, BATCH = 23, 10


class Noted(data.Data):
    """Samples on disk, and which of them were read."""

    shape = (FEATURES,)
    dtype = np.dtype("float64")

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = x, y
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self._y)

    def batch(self, indices: NDArray[np.integer]) -> tuple[np.ndarray, ...]:
        self.read += indices.tolist()
        return self._x[indices], self._y[indices]


def _on_disk(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = samples(COUNT)
    np.save(folder / "x.npy", x)
    return np.load(folder / "x.npy", mmap_mode="r"), y


def _read_by(ranks: int, folder: Path) -> tuple[list[list[int]], dict[str, np.ndarray]]:
    """What each of some ranks reads in two epochs, and what the first has learnt."""
    kept = [Noted(*_on_disk(folder)) for _ in range(ranks)]
    models = [network(batch_size=BATCH) for _ in range(ranks)]

    def work(comm: Communicator) -> None:
        strategy = DataParallel(communicator=comm)
        models[comm.rank].fit(kept[comm.rank], epochs=2, parallel=strategy, verbose=0)

    run_virtual_ranks(ranks, work)
    # Every rank looks at the first sample, to see what samples are.
    assert all(each.read[0] == 0 for each in kept)
    return [each.read[1:] for each in kept], values(models[0])


def test_each_sample_is_read_by_one_rank_and_in_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those that ranks compare before they begin are another matter.
    monkeypatch.setattr("caldera.train.training_data.data_digest", lambda data: "")
    (alone,), expected = _read_by(1, tmp_path)
    parts, found = _read_by(3, tmp_path)
    assert sorted(alone) == sorted([*range(COUNT)] * 2)
    # Batch by batch, what the ranks read one after the other is what one process reads.
    joined = []
    for start, count in [
        (e * COUNT + b, min(BATCH, COUNT - b)) for e in (0, 1) for b in (0, 10, 20)
    ]:
        for rank, part in enumerate(parts):
            own = data.Share.of(start, count, BATCH, rank, 3).samples
            joined += part[:own]
            del part[:own]
    assert joined == alone
    assert not any(parts)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=name)
    assert _read_by(1, tmp_path)[0][0] == alone


class _Brief(cd.Callback):
    def batch_ends(self, run: cd.Run) -> None:
        if run.step == 2:
            run.stop("two steps are enough")


def test_fit_takes_an_array_that_no_memory_holds(tmp_path: Path) -> None:
    """A file with holes, of 400 GB: whoever read all of it would not come back."""
    count, features = 100_000, 1_000_000
    open_it = partial(np.memmap, tmp_path / "x", np.float32, shape=(count, features), order="C")
    open_it(mode="w+")
    models: list[Any] = [
        cd.NeuralNetwork(
            [nn.Input((features,)), nn.Dense(1)], loss="mean_squared", batch_size=2, epochs=1
        )
        for _ in range(2)
    ]

    def work(comm: Communicator) -> str:
        x = open_it(mode="r")
        history = models[comm.rank].fit(
            (x, np.zeros((count, 1), np.float32)),
            parallel=DataParallel(communicator=comm),
            callbacks=[_Brief()],
            verbose=0,
        )
        return str(history.stopped)

    assert run_virtual_ranks(2, work) == ["two steps are enough"] * 2


def streamed(count: int) -> data.IterableData:
    x, y = samples(count)
    return data.IterableData(lambda: zip(x, y, strict=True))


def test_streams_that_end_elsewhere_are_told() -> None:
    """Rank 0 has three batches, of which the last is short; rank 1 has four."""
    models = [network(batch_size=BATCH) for _ in range(2)]

    def work(comm: Communicator) -> None:
        strategy = DataParallel(communicator=comm)
        models[comm.rank].fit(streamed(COUNT + 10 * comm.rank), parallel=strategy, verbose=0)

    with pytest.raises(DataError, match="batch 2 of 3, 10 samples"):
        run_virtual_ranks(2, work)


@pytest.mark.parametrize("every", [1, 2])
def test_where_ranks_meet_seldom_it_is_told_then(every: int) -> None:
    models = [network(batch_size=BATCH) for _ in range(2)]

    def work(comm: Communicator) -> None:
        strategy = LocalSGD(every=every, communicator=comm)
        models[comm.rank].fit(streamed(COUNT + 10 * comm.rank), parallel=strategy, verbose=0)

    with pytest.raises(CommError, match="is the end of an epoch on rank 0, got an exchange on"):
        run_virtual_ranks(2, work)


def test_streams_that_are_the_same_equal_one_process() -> None:
    models = [network(batch_size=BATCH) for _ in range(3)]

    def work(comm: Communicator) -> None:
        strategy = DataParallel(communicator=comm)
        models[comm.rank].fit(
            streamed(COUNT), validation=streamed(7), epochs=2, parallel=strategy, verbose=0
        )

    run_virtual_ranks(3, work)
    alone = network(batch_size=BATCH)
    alone.fit(streamed(COUNT), epochs=2, verbose=0)
    for name, value in values(alone).items():
        np.testing.assert_allclose(values(models[0])[name], value, rtol=1e-12, atol=1e-12)
