"""Ranks that were not given the same are told so at once: none of them waits, or trains alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import compress, nn, optim, parallel
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CommError
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.database import TuningRecord
from caldera.parallel import consistency
from caldera.train.strategy import Strategy
from caldera.train.training_data import data_digest
from tests.unit.parallel.families import FAMILIES
from tests.unit.parallel.ranks import CLASSES, FEATURES, network, samples


def small(drop: float = 0.1, **more: Any) -> cd.NeuralNetwork:
    layers = [nn.Input((FEATURES,)), nn.Dense(8), nn.Dropout(drop), nn.Dense(8), nn.Dense(CLASSES)]
    return network(layers=layers, **more)


def test_ranks_of_one_process_do_not_choose_again_what_rank_0_predicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Choices()
    monkeypatch.setattr(consistency, "choices", own)
    key = {"op": "matmul"}

    def work(comm: Communicator) -> list[bool]:
        def make() -> cd.Plan:
            if comm.rank == 0:
                own._note("a digest", TuningRecord(key, "blas", {"blas": 1.0}, is_predicted=True))
            seen.extend(record.is_predicted for record in own._known.values() if comm.rank)
            return cd.compile(cd.tensor([1.0]) * 2.0)

        seen: list[bool] = []
        consistency.compile_alike(comm, make)
        return seen

    assert run_virtual_ranks(3, work) == [[], [False], [False]]


class Broken(cd.Callback):
    """Of one rank, after a few steps."""

    def batch_ends(self, run: cd.Run) -> None:
        if run.communicator.rank == 1 and run.step == 3:
            raise ValueError("rank 1 has a problem")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_rank_that_raises_ends_all(name: str) -> None:
    models = [small() for _ in range(3)]

    def work(comm: Communicator) -> None:
        how = {"parallel": FAMILIES[name](comm), "verbose": 0, "callbacks": [Broken()]}
        models[comm.rank].fit(samples(60), **how)

    with pytest.raises(ValueError, match="rank 1 has a problem"):
        run_virtual_ranks(3, work)


@pytest.mark.parametrize("name", FAMILIES)
def test_held_out_samples_are_as_many_on_all_ranks(name: str) -> None:
    models = [small() for _ in range(2)]

    def work(comm: Communicator) -> None:
        held_out = samples(7 + 13 * comm.rank)
        models[comm.rank].fit(
            samples(20), validation=held_out, parallel=FAMILIES[name](comm), verbose=0
        )

    with pytest.raises(CommError, match="validation=7 on rank 0, got validation=20 on rank 1"):
        run_virtual_ranks(2, work)


def held_out(rank: int, at: int) -> dict[str, Any]:
    x, y = samples(20)
    return {"validation": (x, np.where(np.arange(20) == at * rank, (y + rank) % CLASSES, y))}


@pytest.mark.parametrize(
    ("give", "said"),
    [
        (lambda rank: (samples(20)[0] + rank, samples(20)[1], {}), "data="),
        (lambda rank: (*(each[:: 1 - 2 * rank] for each in samples(20)), {}), "data="),
        (lambda rank: (samples(20)[0], (samples(20)[1] + rank) % CLASSES, {}), "data="),
        (lambda rank: (*samples(20), held_out(rank, 17)), "validation data="),
        (lambda rank: (*samples(20), {"class_weights": {0: 1.0 + rank}}), "weights of samples="),
        (
            lambda rank: (*samples(20), {"sample_weights": np.arange(20.0) + rank}),
            "weights of samples=",
        ),
    ],
    ids=["inputs", "order", "targets", "validation", "classes", "weights"],
)
def test_data_are_the_same_on_all_ranks(give: Callable[[int], Any], said: str) -> None:
    """As many samples, and others: each rank would train on its part of another whole."""
    models = [small() for _ in range(2)]

    def work(comm: Communicator) -> None:
        x, y, more = give(comm.rank)
        models[comm.rank].fit((x, y), parallel=FAMILIES["data"](comm), verbose=0, **more)

    with pytest.raises(CommError, match=f"ranks: expected the same .* {said}"):
        run_virtual_ranks(2, work)


def test_data_to_evaluate_on_are_the_same_on_all_ranks() -> None:
    models = [small() for _ in range(2)]

    def work(comm: Communicator) -> None:
        x, y = samples(20)
        models[comm.rank].evaluate((x + comm.rank, y), parallel=FAMILIES["data"](comm))

    with pytest.raises(CommError, match=r"expected the same on all ranks: .* data="):
        run_virtual_ranks(2, work)


class Drawn(cd.data.Data):
    """Samples that are others each time they are asked for, as some data are."""

    shape, dtype = (FEATURES,), np.dtype("float64")

    def __len__(self) -> int:
        return 20

    def batch(self, indices: np.ndarray) -> tuple[np.ndarray, ...]:
        chance, count = np.random.default_rng(), len(indices)
        return chance.normal(size=(count, FEATURES)), chance.integers(0, CLASSES, count)


def test_data_made_by_chance_have_no_name() -> None:
    assert data_digest(cd.data.Pipeline(Drawn())) == "random"
    assert data_digest(None) == data_digest(cd.data.Pipeline(iter([([1.0], 0)]))) == ""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda rank: small(optimizer=optim.SGD(0.1 + rank)), r"optimizer=.*0\.1.* got .*1\.1"),
        (lambda rank: small(optimizer=["sgd", "adam"][rank]), "optimizer=.*sgd.* got .*adam"),
        (lambda rank: small(drop=0.1 + 0.2 * rank), r"layer 2-Dropout=.*0\.1.*got .*0\.3"),
        (
            lambda rank: small(loss=["cross_entropy", "mse"][rank]),
            "loss output=.*cross_entropy.*got",
        ),
        (
            lambda rank: small(batch_size=optim.GrowingBatch(5, factor=2 + rank)),
            "batch sizes=.*2.* got .*3",
        ),
    ],
    ids=["rates", "optimizers", "layers", "losses", "batches"],
)
def test_models_learn_alike(make: Callable[[int], cd.NeuralNetwork], said: str) -> None:
    """Their parameters have the same shapes: nothing else would tell them apart."""
    models = [make(rank) for rank in range(2)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(20), parallel=FAMILIES["data"](comm), verbose=0)

    with pytest.raises(CommError, match=said):
        run_virtual_ranks(2, work)


@pytest.mark.parametrize(
    "make",
    [
        lambda c: parallel.DataParallel(algorithm=["ring", "torus"][c.rank], communicator=c),
        lambda c: parallel.DataParallel(
            compression=compress.TopK(0.1 + 0.1 * c.rank), communicator=c
        ),
        lambda c: parallel.ParameterServer(1 + c.rank, communicator=c),
        lambda c: parallel.ParameterServer(
            mode=["synchronous", "asynchronous"][c.rank], communicator=c
        ),
        lambda c: [parallel.DataParallel, parallel.PipelineParallel][c.rank](communicator=c),
        lambda c: parallel.PipelineParallel(data=1 + c.rank, communicator=c),
        lambda c: parallel.Hybrid({"data": 1 + c.rank, "model": 2 - c.rank}, communicator=c),
    ],
    ids=["algorithms", "compressors", "servers", "modes", "strategies", "pipelines", "meshes"],
)
def test_strategies_are_made_alike(make: Callable[[Communicator], Strategy]) -> None:
    with pytest.raises(CommError, match=r"parallel\.\w+: expected the same on all ranks"):
        run_virtual_ranks(2, make)
