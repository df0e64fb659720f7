"""Ranks that go their own ways are saved one by one, and go on to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera.comm import Communicator
from caldera.compress import TopK
from caldera.errors import CheckpointError
from caldera.parallel import DataParallel, ElasticAveraging, Ensemble, Gossip, LocalSGD
from caldera.train.saving.checkpoint import CheckpointFolder
from tests.unit.parallel.ranks import Trained, assert_same, network, samples, trained, values

DATA = samples(24)
STRATEGIES: dict[str, Any] = {
    "local": lambda comm: LocalSGD(4, communicator=comm),
    "blocks": lambda comm: LocalSGD(3, momentum=0.5, communicator=comm),
    "kept": lambda comm: LocalSGD(4, state="keep", communicator=comm),
    "elastic": lambda comm: ElasticAveraging(0.7, 4, communicator=comm),
    "ring": lambda comm: Gossip(every=2, communicator=comm),
    "pairs": lambda comm: Gossip("random pairs", communicator=comm),
    "ensemble": lambda comm: Ensemble([4, 9, 2][: comm.size], communicator=comm),
    "data": lambda comm: DataParallel(communicator=comm),
    "compressed": lambda comm: DataParallel(communicator=comm, compression=TopK(0.5)),
}
EXACT = [name for name in STRATEGIES if name not in ("data", "compressed")]


def made() -> cd.NeuralNetwork:
    return network(batch_size=6)


class Halt(cd.Callback):
    """Stops all ranks in the middle of an epoch, whatever they have heard."""

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_ends(self, run: cd.Run) -> None:
        if run.step == self.step:
            run.stopped = "halt"


def run(ranks: int, name: str, folder: Path | None, **how: Any) -> Trained:
    how = {"epochs": 3, "validation": DATA} | how
    return trained(ranks, made, STRATEGIES[name], DATA, watch=False, checkpoint=folder, **how)


@pytest.mark.parametrize("name", EXACT)
def test_as_many_ranks_go_on_to_the_bit(name: str, tmp_path: Path) -> None:
    """From the middle of the second epoch, and from the end of the first."""
    ranks = 3 if name in ("ring", "pairs") else 2
    whole = run(ranks, name, None)
    models = [made() for _ in range(ranks)]
    middle, end = tmp_path / "middle", tmp_path / "end"

    def work(comm: Communicator) -> cd.History:
        return models[comm.rank].fit(
            DATA,
            parallel=STRATEGIES[name](comm),
            verbose=0,
            checkpoint=middle,
            epochs=3,
            validation=DATA,
            callbacks=[Halt(6)],
        )

    cd.comm.run_virtual_ranks(ranks, work)
    assert CheckpointFolder(middle).steps() == [6, 4]
    shutil.copytree(middle, end)
    shutil.rmtree(end / "step-6")
    for place in (middle, end):
        again = run(ranks, name, place, resume=True)
        for one, other in zip(whole.models, again.models, strict=True):
            assert_same(values(one), values(other))
        # Sums of an epoch that was interrupted are added up in another order.
        for column in ("loss", "val_loss", "accuracy"):
            np.testing.assert_allclose(
                again.histories[0][column], whole.histories[0][column], rtol=1e-14
            )


@pytest.mark.filterwarnings("ignore:.*this run uses different kernels")
@pytest.mark.parametrize(
    ("first", "before", "second", "after"),
    [
        ("local", 3, "local", 2),
        ("elastic", 3, "elastic", 4),
        ("pairs", 2, "pairs", 3),
        ("ring", 3, "data", 3),
        ("data", 2, "local", 3),
        ("local", 2, "elastic", 2),
        ("elastic", 2, "compressed", 2),
        ("compressed", 2, "ring", 2),
    ],
)
def test_others_go_on_from_what_all_amount_to(
    first: str, before: int, second: str, after: int, tmp_path: Path
) -> None:
    """No batch is left to train on: the model is the one that was saved, with its history."""
    saved = run(before, first, tmp_path, epochs=1)
    found = run(after, second, tmp_path, epochs=1, resume=True)
    for model in found.models:
        for mine, theirs in zip(
            [*model.parameters(), *model.states()],
            [*saved.models[0].parameters(), *saved.models[0].states()],
            strict=True,
        ):
            assert mine.numpy().tobytes() == theirs.numpy().tobytes(), mine.name
    assert found.histories[0]["loss"] == saved.histories[0]["loss"]
    # And it can go on from there.
    longer = run(after, second, tmp_path, epochs=2, resume=True)
    assert longer.same_on_all_ranks()
    assert longer.histories[0].epochs == [0, 1]


def test_sums_of_half_an_epoch_count_once(tmp_path: Path) -> None:
    """Whoever goes on: every sample is in the history once."""
    models = [network(batch_size=6, metrics=["confusion_matrix"]) for _ in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(
            DATA,
            parallel=LocalSGD(4, communicator=comm),
            verbose=0,
            checkpoint=tmp_path,
            callbacks=[Halt(3)],
        )

    cd.comm.run_virtual_ranks(2, work)
    found = trained(
        3,
        lambda: network(batch_size=6, metrics=["confusion_matrix"]),
        STRATEGIES["ring"],
        DATA,
        watch=False,
        checkpoint=tmp_path,
        resume=True,
    )
    assert np.sum(found.histories[0]["confusion_matrix"][0]) == 24


def test_an_ensemble_goes_on_with_fewer_members_but_not_with_more(tmp_path: Path) -> None:
    run(2, "ensemble", tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match="a checkpoint of 3 members or more, got one of 2"):
        run(3, "ensemble", tmp_path, resume=True)
    fewer = run(1, "ensemble", tmp_path, epochs=2, resume=True)
    expected = run(2, "ensemble", None, epochs=2)
    assert_same(values(fewer.models[0]), values(expected.models[0]))
