"""A run on several ranks is saved as one process would save it, and goes on on any number."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import dmath as dm
from caldera import optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.parallel import (
    DataParallel,
    Hybrid,
    Layouts,
    PipelineParallel,
    Sharded,
    TensorParallel,
)
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.parallel.ranks import (
    Trained,
    alone,
    assert_close,
    network,
    samples,
    trained,
    values,
)

DATA = samples(24)


def made() -> cd.NeuralNetwork:
    return network(lambda: optim.Adam(0.01), batch_size=6)


@cache
def one_process() -> Trained:
    """Two epochs in one process, that of every other run."""
    return alone(made, DATA, epochs=2)


STRATEGIES = {
    "data": lambda comm: DataParallel(communicator=comm),
    "stage 1": lambda comm: Sharded(1, communicator=comm),
    "stage 3": lambda comm: Sharded(3, communicator=comm, bucket_bytes=1),
    # Batch normalisation is over a part: with one it is over the batch.
    "pipeline": lambda comm: PipelineParallel(communicator=comm, micro_batches=1),
    "stages of two": lambda comm: PipelineParallel(
        model=2, least=1, communicator=comm, micro_batches=1
    ),
    "layers": lambda comm: TensorParallel(least=1, communicator=comm),
    "layouts": lambda comm: Layouts(
        {1: "columns", 2: "rows", -1: dm.Blocks(rows=1)}, communicator=comm
    ),
    "hybrid": lambda comm: Hybrid(
        {"data": 2, "model": -1}, least=1, samples="all", communicator=comm
    ),
}


class StopAt(cd.Callback):
    """Ends a run on one rank's vote alone."""

    def __init__(self, step: int, rank: int, comm: Communicator | None = None) -> None:
        self.step = step
        self.rank = rank

    def batch_ends(self, run: cd.Run) -> None:
        if run.step == self.step and run.communicator.rank == self.rank:
            run.stop("it is late")


def _run(ranks: int, strategy: str, folder: Path, **how: Any) -> Trained:
    return trained(ranks, made, STRATEGIES[strategy], DATA, watch=False, checkpoint=folder, **how)


@pytest.mark.parametrize(
    ("first", "before", "second", "after"),
    # What is saved does not say by whom: each saves once and goes on once.
    [
        ("data", 3, "pipeline", 2),
        ("pipeline", 3, "layers", 2),
        ("layers", 3, "stage 1", 2),
        ("stage 1", 2, "hybrid", 4),
        ("hybrid", 4, "layouts", 2),
        ("layouts", 3, "stages of two", 4),
        ("stages of two", 4, "stage 3", 3),
        ("stage 3", 2, "data", 3),
    ],
)
def test_a_run_goes_on_on_another_number_of_ranks(
    first: str, before: int, second: str, after: int, tmp_path: Path
) -> None:
    models = [made() for _ in range(before)]

    def work(comm: Communicator) -> str:
        # In the middle of the first epoch, because one rank was asked to stop.
        return (
            models[comm.rank]
            .fit(
                DATA,
                parallel=STRATEGIES[first](comm),
                verbose=0,
                checkpoint=tmp_path,
                epochs=2,
                callbacks=[StopAt(2, rank=before - 1)],
            )
            .stopped
        )

    assert run_virtual_ranks(before, work) == ["it is late"] * before
    # A vote takes one more batch to be counted.
    assert CheckpointFolder(tmp_path).steps() == [3]
    found = _run(after, second, tmp_path, resume=True, epochs=2)
    assert found.same_on_all_ranks()
    assert_close(found, one_process(), 1e-12)


def test_one_process_goes_on_where_several_ranks_stopped(tmp_path: Path) -> None:
    _run(3, "stage 3", tmp_path, epochs=1)
    model = made()
    history = model.fit(DATA, verbose=0, checkpoint=tmp_path, resume=True, epochs=2)
    assert_close(Trained([model], [history]), one_process(), 1e-12)


def test_only_rank_0_writes_and_reads(tmp_path: Path) -> None:
    """Each rank has a disk of its own here."""

    def folder(comm: Communicator) -> Path:
        return tmp_path / str(comm.rank)

    for resume, epochs in ((False, 1), (True, 2)):
        models = [made() for _ in range(2)]

        def work(
            comm: Communicator, models: Any = models, resume: bool = resume, epochs: int = epochs
        ) -> cd.History:
            return models[comm.rank].fit(
                DATA,
                parallel=DataParallel(communicator=comm),
                verbose=0,
                resume=resume,
                checkpoint=folder(comm),
                epochs=epochs,
            )

        histories = run_virtual_ranks(2, work)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert histories[0] == histories[1]
    found = Trained(list(models), histories)
    assert found.same_on_all_ranks()
    assert_close(found, one_process(), 1e-12)


def test_a_resumed_run_of_as_many_ranks_is_the_same_to_the_bit(tmp_path: Path) -> None:
    whole = _run(2, "stage 1", tmp_path / "whole", epochs=2)
    _run(2, "stage 1", tmp_path / "parts", epochs=1)
    parts = _run(2, "stage 1", tmp_path / "parts", epochs=2, resume=True)
    for name, value in values(whole.models[0]).items():
        assert value.tobytes() == values(parts.models[0])[name].tobytes(), name


class Kept:
    """A compressor that sends half of everything and keeps the rest for the next time."""

    mean = False

    def __init__(self) -> None:
        self.residuals: dict[str, np.ndarray] = {}

    def exchange_all(self, gradients: Mapping[str, np.ndarray], comm: Communicator) -> None:
        for name, gradient in gradients.items():
            whole = gradient + self.residuals.get(name, 0.0)
            sent = np.ascontiguousarray(0.5 * whole)
            self.residuals[name] = whole - sent
            comm.Allreduce(sent, gradient)

    def state(self) -> dict[str, np.ndarray]:
        return {f"residual/{name}": array for name, array in self.residuals.items()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.residuals = {name.removeprefix("residual/"): a for name, a in state.items()}


@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_was_not_sent_yet_is_kept(after: int, tmp_path: Path) -> None:
    """With no batch left to train on, the sum over ranks is what it was."""

    def total(ranks: int, resume: bool) -> dict[str, np.ndarray]:
        models = [made() for _ in range(ranks)]
        kept = [Kept() for _ in range(ranks)]

        def work(comm: Communicator) -> None:
            strategy = DataParallel(communicator=comm, compression=kept[comm.rank])
            models[comm.rank].fit(
                DATA, parallel=strategy, verbose=0, checkpoint=tmp_path, resume=resume, epochs=1
            )

        run_virtual_ranks(ranks, work)
        return {name: sum(each.residuals[name] for each in kept) for name in kept[0].residuals}

    before = total(3, resume=False)
    again = total(after, resume=True)
    assert before.keys() == again.keys()
    assert before
    for name, value in before.items():
        np.testing.assert_allclose(again[name], value, rtol=1e-12, atol=1e-15)
