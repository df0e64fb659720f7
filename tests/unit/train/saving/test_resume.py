"""A run that was interrupted and resumed ends where an uninterrupted one does, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.errors import CheckpointError, ConfigError, NonFiniteError
from caldera.train.callbacks import Callback, EarlyStopping
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from caldera.train.saving.checkpoint import CheckpointFolder
from caldera.train.saving.checkpointer import Checkpointer
from caldera.train.tracking.history import History
from tests.unit.train.small import classifier, points, same_bits, values


class StopAt(Callback):
    """Ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def batch_ends(self, run: Run) -> None:
        if run.step == self.step:
            run.stop("enough for now")


def fit(model: NeuralNetwork, **settings: Any) -> History:
    given: dict[str, Any] = {"epochs": 3, "verbose": 0}
    return model.fit(points(), **{**given, **settings})


@pytest.mark.parametrize("step", [1, 5, 7, 10, 14])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, step: int) -> None:
    # 50 samples in batches of 8 are 7 steps an epoch: 5 and 10 are in the middle of one, 7 and 14
    # at its end.
    whole = classifier()
    expected = fit(whole, validation=points(20, seed=1))
    first = classifier()
    fit(first, validation=points(20, seed=1), checkpoint=tmp_path, callbacks=[StopAt(step)])
    assert not same_bits(values(first), values(whole))
    second = classifier()
    history = fit(second, validation=points(20, seed=1), checkpoint=tmp_path, resume=True)
    assert same_bits(values(second), values(whole))
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert history[column] == expected[column]
    assert history.stopped == ""


def test_an_interrupted_run_may_be_resumed_more_than_once(tmp_path: Path) -> None:
    whole = classifier()
    fit(whole)
    fit(classifier(), checkpoint=tmp_path, callbacks=[StopAt(4)])
    fit(classifier(), checkpoint=tmp_path, callbacks=[StopAt(11)], resume=True)
    last = classifier()
    fit(last, checkpoint=tmp_path, resume=True)
    assert same_bits(values(last), values(whole))


def test_a_finished_run_can_be_given_more_epochs(tmp_path: Path) -> None:
    whole = classifier()
    fit(whole, epochs=4)
    fit(classifier(), epochs=2, checkpoint=tmp_path)
    longer = classifier()
    history = fit(longer, epochs=4, checkpoint=tmp_path, resume=True)
    assert same_bits(values(longer), values(whole))
    assert history.epochs == [0, 1, 2, 3]


def test_resuming_where_nothing_was_saved_begins_a_new_run(tmp_path: Path) -> None:
    whole, other = classifier(), classifier()
    fit(whole)
    fit(other, checkpoint=tmp_path / "new", resume=True)
    assert same_bits(values(other), values(whole))
    assert CheckpointFolder(tmp_path / "new").steps() == [21, 14]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: optim.SGD(0.1, momentum=0.9, accumulate=3),
        lambda: optim.Adam(optim.ReduceOnPlateau(0.05, patience=0, threshold=10.0)),
        lambda: optim.RMSProp(0.01, clip=optim.ClipNorm(0.1)),
    ],
)
def test_every_kind_of_state_is_kept(tmp_path: Path, optimizer: Any) -> None:
    whole = classifier(optimizer=optimizer())
    fit(whole)
    fit(classifier(optimizer=optimizer()), checkpoint=tmp_path, callbacks=[StopAt(9)])
    second = classifier(optimizer=optimizer())
    fit(second, checkpoint=tmp_path, resume=True)
    assert same_bits(values(second), values(whole))


def test_early_stopping_goes_on_with_what_it_remembered(tmp_path: Path) -> None:
    def stopping() -> EarlyStopping:
        return EarlyStopping("loss", patience=2, min_delta=10.0)

    whole = classifier()
    expected = fit(whole, epochs=6, callbacks=[stopping()])
    assert len(expected.epochs) == 3
    fit(classifier(), epochs=6, checkpoint=tmp_path, callbacks=[stopping(), StopAt(9)])
    second = classifier()
    again = stopping()
    history = fit(second, epochs=6, checkpoint=tmp_path, callbacks=[again], resume=True)
    assert history.epochs == expected.epochs
    assert again.best_epoch == 0
    # The weights of the first epoch, which ended before the run was interrupted.
    assert same_bits(values(second), values(whole))


KILLED = """
import sys, time
from caldera.train.callbacks import Callback
from caldera.train.saving.checkpointer import Checkpointer
from tests.unit.train.small import classifier, points

class Report(Callback):
    def batch_ends(self, run):
        print(run.step, flush=True)
        time.sleep(0.02)

saver = Checkpointer(sys.argv[1], every_steps=2)
classifier().fit(points(), epochs=3, verbose=0, callbacks=[saver, Report()])
"""


def test_a_killed_process_is_resumed_by_another(tmp_path: Path) -> None:
    whole = classifier()
    fit(whole)
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "12\n":
                process.kill()
    found = CheckpointFolder(tmp_path).latest()
    assert found is not None
    assert 4 <= found.step <= 14
    second = classifier()
    fit(second, checkpoint=tmp_path, resume=True)
    assert same_bits(values(second), values(whole))


# --- when and what


def test_it_saves_every_so_many_steps_and_keeps_the_newest(tmp_path: Path) -> None:
    class Steps(Callback):
        def __init__(self, saver: Checkpointer) -> None:
            self.saver = saver
            self.seen: list[list[int]] = []

        def batch_ends(self, run: Run) -> None:
            self.saver.folder.wait()
            self.seen.append(self.saver.folder.steps())

    saver = Checkpointer(tmp_path, every_steps=3, every_epoch=False, keep=2)
    watcher = Steps(saver)
    fit(classifier(), epochs=2, callbacks=[saver, watcher])
    # Not at the end of an epoch, step 7, and at the end of the run, step 14.
    assert watcher.seen[2] == [3]
    assert watcher.seen[8] == [9, 6]
    assert saver.folder.steps() == [14, 12]


def test_a_run_is_resumed_with_intervals_of_its_own(tmp_path: Path) -> None:
    whole = classifier()
    fit(whole)
    for stop in (StopAt(5), None):
        model, saver = classifier(), Checkpointer(tmp_path, every_steps=2, keep=100)
        fit(model, checkpoint=saver, resume=True, callbacks=[stop] if stop else [])
    # At every second step unless the last one is still being written, and where it stops.
    assert set(saver.folder.steps()) >= {2, 5, 6, 21}
    assert same_bits(values(model), values(whole))


def test_a_new_run_does_not_overwrite_another(tmp_path: Path) -> None:
    fit(classifier(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"expected none from another run.*step 7.*resume"):
        fit(classifier(), epochs=1, checkpoint=tmp_path)


def test_resuming_needs_a_folder() -> None:
    with pytest.raises(ConfigError, match="checkpoint"):
        fit(classifier(), resume=True)


def test_another_model_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    fit(classifier(), epochs=1, checkpoint=tmp_path)
    wider = NeuralNetwork([nn.Input((2,)), nn.Dense(7), nn.Dense(2)], batch_size=8)
    before = values(wider)
    with pytest.raises(CheckpointError, match=r"1-Dense/weight of shape \(2, 6\) for \(2, 7\)"):
        fit(wider, checkpoint=tmp_path, resume=True)
    assert same_bits(values(wider), before)


def test_other_layers_with_the_same_parameters_are_refused(tmp_path: Path) -> None:
    def model(activation: str) -> NeuralNetwork:
        return NeuralNetwork([nn.Input((2,)), nn.Dense(4, activation=activation), nn.Dense(2)])

    fit(model("relu"), epochs=1, checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="others with the same parameters"):
        fit(model("tanh"), checkpoint=tmp_path, resume=True)


def test_the_middle_of_an_epoch_needs_the_same_data(tmp_path: Path) -> None:
    fit(classifier(), checkpoint=tmp_path, callbacks=[StopAt(5)])
    with pytest.raises(CheckpointError, match="samples"):
        classifier().fit(points(40), epochs=3, verbose=0, checkpoint=tmp_path, resume=True)


def test_another_batch_size_is_refused_within_an_epoch_only(tmp_path: Path) -> None:
    fit(classifier(), checkpoint=tmp_path, callbacks=[StopAt(5)])
    with pytest.raises(CheckpointError, match="a batch size of 8"):
        fit(classifier(), batch_size=16, checkpoint=tmp_path, resume=True)
    fit(classifier(), epochs=1, checkpoint=tmp_path, resume=True)
    history = fit(classifier(), epochs=2, batch_size=16, checkpoint=tmp_path, resume=True)
    assert history.epochs == [0, 1]


def test_other_kernels_are_told_of(tmp_path: Path) -> None:
    fit(classifier(), epochs=1, checkpoint=tmp_path)
    cd.choices.fix("matmul", "reference")
    try:
        with pytest.warns(RuntimeWarning, match="not bit by bit"):
            fit(classifier(), epochs=2, checkpoint=tmp_path, resume=True)
    finally:
        cd.choices.unfix("matmul")


def test_a_run_that_met_a_nan_is_not_saved(tmp_path: Path) -> None:
    x, y = points(400)
    x[100] = np.nan
    saver = Checkpointer(tmp_path, every_steps=1, every_seconds=None)
    with pytest.raises(NonFiniteError, match="step 12"):
        classifier().fit((x, y), shuffle=False, verbose=0, callbacks=[saver])
    found = saver.folder.latest()
    assert found is not None
    assert found.step <= 12
    assert all(np.isfinite(each).all() for each in found.tensors.values())


# --- signals


class SendAt(Callback):
    """Sends a signal to this process after a step."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self.step = step
        self.number = number

    def batch_ends(self, run: Run) -> None:
        if run.step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_saves_and_ends_the_run(tmp_path: Path, name: str) -> None:
    number = signal.Signals[name]
    before = signal.getsignal(number)
    whole = classifier()
    fit(whole)
    history = fit(classifier(), checkpoint=tmp_path, callbacks=[SendAt(5, number)])
    assert history.stopped == f"signal {name}"
    assert CheckpointFolder(tmp_path).steps()[0] in (5, 6)
    assert signal.getsignal(number) is before
    second = classifier()
    fit(second, checkpoint=tmp_path, resume=True)
    assert same_bits(values(second), values(whole))


def test_ctrl_c_ends_the_run_after_the_step_and_keeps_the_history() -> None:
    history = fit(classifier(), callbacks=[SendAt(9, signal.SIGINT)])
    assert history.stopped == "interrupted"
    assert history.epochs == [0]


def test_a_second_ctrl_c_does_not_wait() -> None:
    class Twice(SendAt):
        def batch_ends(self, run: Run) -> None:
            super().batch_ends(run)
            super().batch_ends(run)
            raise AssertionError("the second signal came too late")

    history = fit(classifier(), callbacks=[Twice(1, signal.SIGINT)])
    assert history.stopped == "interrupted"


def test_no_handler_is_installed_outside_of_the_main_thread() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    class Look(Callback):
        def batch_ends(self, run: Run) -> None:
            seen.append(signal.getsignal(signal.SIGTERM))

    def work() -> None:
        fit(classifier(), epochs=1, callbacks=[Look()])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen
    assert all(handler is before for handler in seen)


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        history = fit(classifier(), callbacks=[SendAt(2, signal.SIGUSR1)])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert history.stopped == ""


def test_tensors_of_a_checkpoint_have_names(tmp_path: Path) -> None:
    fit(classifier(), epochs=1, checkpoint=tmp_path)
    found = CheckpointFolder(tmp_path).latest()
    assert found is not None
    names = set(found.tensors)
    assert {"model/1-Dense/weight", "model/2-BatchNorm/running_mean", "optimizer/step"} <= names
    assert {"optimizer/1-Dense/weight/mean", "run/random state", "run/training/loss"} <= names
    assert found.tensors["optimizer/step"] == 7
    assert np.array_equal(found.tensors["run/random state"], [3, 7])
