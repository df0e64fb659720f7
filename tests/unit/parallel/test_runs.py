"""One run on several ranks: one history, one decision to stop, one voice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.comm import Communicator, run_virtual_ranks
from caldera.errors import CommError, NonFiniteError
from caldera.nn.layer import Layer
from caldera.parallel import DataParallel, Sharded
from caldera.train.saving.checkpoint import CheckpointFolder
from caldera.train.strategy import Strategy
from tests.unit.parallel.ranks import CLASSES, FEATURES, network, samples


def small(**more: Any) -> cd.NeuralNetwork:
    return network(layers=[nn.Input((FEATURES,)), nn.Dense(CLASSES)], **more)


def data_parallel(comm: Communicator) -> Strategy:
    return DataParallel(communicator=comm)


def test_metrics_are_those_of_all_samples() -> None:
    model = small(metrics=["accuracy", "confusion_matrix"])
    data = samples(17)
    expected = model.evaluate(data)

    def work(comm: Communicator) -> dict[str, Any]:
        return model.evaluate(data, parallel=DataParallel(communicator=comm), batch_size=5)

    for found in run_virtual_ranks(3, work):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-12)
        assert found["accuracy"] == expected["accuracy"]
        np.testing.assert_array_equal(found["confusion_matrix"], expected["confusion_matrix"])


def test_a_wish_of_one_rank_stops_all_of_them() -> None:
    class Tired(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1 and run.step == 2:
                run.stop("rank 1 is tired")

    models = [small() for _ in range(3)]

    def work(comm: Communicator) -> tuple[str, int]:
        model = models[comm.rank]
        history = model.fit(
            samples(100), parallel=data_parallel(comm), verbose=0, callbacks=[Tired()]
        )
        return history.stopped, model.steps_done

    assert run_virtual_ranks(3, work) == [("rank 1 is tired", 3)] * 3


def test_a_wish_at_the_end_of_an_epoch_stops_all_of_them() -> None:
    class Late(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 2:
                run.stop("enough")

    models = [small() for _ in range(3)]

    def work(comm: Communicator) -> tuple[str, list[int]]:
        history = models[comm.rank].fit(
            samples(20), parallel=data_parallel(comm), verbose=0, callbacks=[Late()], epochs=5
        )
        return history.stopped, history.epochs

    assert run_virtual_ranks(3, work) == [("enough", [0])] * 3


def test_a_rank_does_not_just_end() -> None:
    """Others would wait for it, and `sys.exit` is no error that anybody is told of."""

    class Ends(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            if run.communicator.rank == 1:
                raise SystemExit(3)

    models = [small() for _ in range(2)]

    def work(comm: Communicator) -> None:
        how = {"parallel": data_parallel(comm), "verbose": 0, "callbacks": [Ends()]}
        models[comm.rank].fit(samples(20), **how)

    with pytest.raises(CommError, match=r"rank 1 of 2 .* got its end, by SystemExit\(3\)"):
        run_virtual_ranks(2, work)


@pytest.mark.parametrize("strategy", [data_parallel, lambda comm: Sharded(3, communicator=comm)])
def test_callbacks_that_look_at_the_model_between_epochs_work(strategy: Any) -> None:
    """The best epoch is kept, and put back at the end."""
    models = [small(learning_rate=5.0) for _ in range(2)]
    data = samples(20)

    def work(comm: Communicator) -> tuple[float, float]:
        model = models[comm.rank]
        history = model.fit(
            data,
            validation=data,
            parallel=strategy(comm),
            verbose=0,
            epochs=4,
            callbacks=[cd.EarlyStopping("val_loss", patience=4)],
        )
        return min(history["val_loss"]), model.evaluate(data)["loss"]

    for best, after in run_virtual_ranks(2, work):
        assert after == pytest.approx(best, rel=1e-9)


def test_only_rank_0_prints(capsys: pytest.CaptureFixture[str]) -> None:
    models = [small() for _ in range(3)]

    def work(comm: Communicator) -> None:
        models[comm.rank].fit(samples(20), parallel=data_parallel(comm), verbose=2)

    run_virtual_ranks(3, work)
    assert capsys.readouterr().out.count("epoch 1/1") == 1


def test_checkpoints_are_due_by_the_clock_of_rank_0(tmp_path: Path) -> None:
    models = [small() for _ in range(2)]

    def work(comm: Communicator) -> None:
        # Other clocks do not count: all ranks save together or none does.
        every = 1e-9 if comm.rank == 0 else 1e9
        saver = cd.Checkpointer(tmp_path, every_seconds=every, every_epoch=False, keep=100)
        models[comm.rank].fit(
            samples(60),
            parallel=Sharded(1, communicator=comm),
            verbose=0,
            checkpoint=None,
            callbacks=[saver],
        )

    run_virtual_ranks(2, work)
    found = CheckpointFolder(tmp_path).steps()
    assert found[0] == 6
    assert len(found) > 1


class Logarithm(Layer):
    """Something that a bad sample makes infinite."""

    def forward(self, x: cd.Expr) -> cd.Expr:
        return op.log(x)


@pytest.mark.parametrize("strategy", [data_parallel, lambda comm: Sharded(2, communicator=comm)])
def test_all_ranks_name_the_one_whose_sample_was_bad(strategy: Any) -> None:
    x, y = np.abs(samples(40)[0]) + 0.1, samples(40)[1]
    x[33] = 0.0
    models = [
        network(layers=[nn.Input((FEATURES,)), Logarithm(), nn.Dense(CLASSES)]) for _ in range(2)
    ]

    def work(comm: Communicator) -> str:
        with pytest.raises(NonFiniteError) as caught:
            models[comm.rank].fit(
                (x, y), parallel=strategy(comm), verbose=0, shuffle=False, batch_size=4
            )
        return str(caught.value)

    # Sample 33 is the second of its batch, in the first rank's half.
    first, second = run_virtual_ranks(2, work)
    assert first == second
    assert "rank 0: fit, step 8" in first
    assert "op.log" in first
