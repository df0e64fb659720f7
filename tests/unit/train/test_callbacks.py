"""Callbacks: when they are told what, and how they end a run."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.errors import ConfigError
from caldera.train.callbacks import Callback, EarlyStopping, KeepBest, Target, TimeLimit
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run
from caldera.train.tracking.history import History
from tests.unit.train.small import classifier, points, same_bits, values


class Recorder(Callback):
    """Writes down every moment, with the numbers of the run at that time."""

    def __init__(self) -> None:
        self.moments: list[tuple[str, int, int, int]] = []

    def _note(self, moment: str, run: Run) -> None:
        self.moments.append((moment, run.epoch, run.batch, run.step))

    def run_begins(self, run: Run) -> None:
        self._note("run begins", run)

    def epoch_begins(self, run: Run) -> None:
        self._note("epoch begins", run)

    def batch_ends(self, run: Run) -> None:
        self._note("batch", run)

    def epoch_ends(self, run: Run) -> None:
        self._note("epoch ends", run)

    def run_ends(self, run: Run) -> None:
        self._note("run ends", run)


def test_a_callback_is_told_of_every_moment_in_order() -> None:
    recorder = Recorder()
    classifier(batch_size=30).fit(points(), epochs=2, verbose=0, callbacks=[recorder])
    assert recorder.moments == [
        ("run begins", 0, 0, 0),
        ("epoch begins", 0, 0, 0),
        ("batch", 0, 1, 1),
        ("batch", 0, 2, 2),
        ("epoch ends", 1, 0, 2),
        ("epoch begins", 1, 0, 2),
        ("batch", 1, 1, 3),
        ("batch", 1, 2, 4),
        ("epoch ends", 2, 0, 4),
        ("run ends", 2, 0, 4),
    ]


def test_the_end_of_the_run_is_told_also_after_an_error() -> None:
    class Trip(Callback):
        def batch_ends(self, run: Run) -> None:
            raise RuntimeError("tripped")

    recorder = Recorder()
    with pytest.raises(RuntimeError, match="tripped"):
        classifier().fit(points(), verbose=0, callbacks=[recorder, Trip()])
    assert recorder.moments[-1][0] == "run ends"


class Scripted:
    """A run whose validation losses are given, with a model whose bias counts the epochs."""

    def __init__(self, monitored: dict[str, list[float]], callback: Callback) -> None:
        self.model = classifier()
        self.history = History()
        self.epoch = 0
        self.stopped = ""
        self.seconds = 0.0
        run: Any = self
        callback.run_begins(run)
        for row in range(len(next(iter(monitored.values())))):
            self.model.parameters()[1].assign(np.full(6, row, np.float32))
            self.history.add(row, {name: column[row] for name, column in monitored.items()})
            self.epoch = row + 1
            callback.epoch_ends(run)
            if self.stopped:
                break
        callback.run_ends(run)

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    @property
    def bias(self) -> float:
        return float(self.model.parameters()[1].numpy()[0])


def test_early_stopping_waits_and_restores_the_best() -> None:
    losses = [5.0, 3.0, 2.0, 2.5, 2.4, 2.3, 1.0]
    callback = EarlyStopping("val_loss", patience=3)
    run = Scripted({"val_loss": losses}, callback)
    assert run.epoch == 6
    assert run.stopped == "val_loss has not improved for 3 epochs"
    assert (callback.best, callback.best_epoch) == (2.0, 2)
    assert run.bias == 2


def test_early_stopping_may_leave_the_last_parameters() -> None:
    run = Scripted({"val_loss": [1.0, 2.0, 3.0]}, EarlyStopping(patience=2, restore_best=False))
    assert run.bias == 2


def test_small_improvements_do_not_count() -> None:
    losses = [1.0, 0.95, 0.9, 0.85]
    assert Scripted({"val_loss": losses}, EarlyStopping(patience=2, min_delta=0.2)).epoch == 3
    assert Scripted({"val_loss": losses}, EarlyStopping(patience=2)).stopped == ""


def test_the_best_is_restored_also_if_the_run_was_not_stopped() -> None:
    assert Scripted({"val_loss": [3.0, 1.0, 2.0]}, EarlyStopping(patience=5)).bias == 1


def test_accuracies_should_grow_and_losses_shrink() -> None:
    columns = {"val_accuracy": [0.5, 0.9, 0.7], "val_loss": [1.0, 3.0, 2.0], "val_r2": [0, 1, 2]}
    assert Scripted(columns, KeepBest("val_accuracy")).bias == 1
    assert Scripted(columns, KeepBest("val_loss")).bias == 0
    assert Scripted(columns, KeepBest("val_r2")).bias == 2
    assert Scripted(columns, KeepBest("val_r2", mode="min")).bias == 0


def test_nan_is_never_the_best() -> None:
    callback = KeepBest("loss")
    assert Scripted({"loss": [math.nan, 2.0, math.nan, 3.0]}, callback).bias == 1
    assert callback.best == 2.0
    assert Scripted({"loss": [math.nan, math.nan]}, KeepBest("loss")).bias == 1


def test_statistics_are_restored_with_the_parameters() -> None:
    class Keep(Callback):
        def epoch_ends(self, run: Run) -> None:
            if run.epoch == 1:
                self.first = values(run.model)

    # No later epoch is better by so much: the first stays the best.
    model, keep = classifier(), Keep()
    callbacks = [keep, KeepBest("loss", min_delta=100.0)]
    model.fit(points(), epochs=3, verbose=0, callbacks=callbacks)
    assert any("BatchNorm/running" in name for name in keep.first)
    assert same_bits(values(model), keep.first)


def test_a_target_ends_the_run_once_it_is_reached() -> None:
    run = Scripted({"val_accuracy": [0.5, 0.97, 0.99]}, Target("val_accuracy", 0.97))
    assert (run.epoch, run.stopped) == (2, "val_accuracy has reached 0.97")
    run = Scripted({"loss": [3.0, 2.0, 0.5]}, Target("loss", 1.0))
    assert run.epoch == 3


def test_the_time_limit_ends_the_run_between_two_steps() -> None:
    recorder = Recorder()
    history = classifier().fit(points(), epochs=5, verbose=0, callbacks=[recorder, TimeLimit(0.0)])
    assert history.stopped == "the time limit of 0 s"
    assert [moment for moment, *_ in recorder.moments].count("batch") == 1
    limit = TimeLimit(10.0)
    run: Any = SimpleNamespace(seconds=9.9, stop=pytest.fail)
    limit.batch_ends(run)


def test_an_unknown_column_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="validation="):
        classifier().fit(points(), verbose=0, callbacks=[EarlyStopping("val_loss")])
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        classifier().fit(points(), verbose=0, callbacks=[Target("acuracy", 1.0)])


@pytest.mark.parametrize(
    "make",
    [
        lambda: EarlyStopping(patience=0),
        lambda: EarlyStopping(min_delta=-1.0),
        lambda: KeepBest(mode="best"),
        lambda: Target("loss", 1.0, mode="low"),
        lambda: TimeLimit(-1.0),
        lambda: TimeLimit(math.nan),
    ],
)
def test_settings_without_sense_are_refused(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_a_stopped_run_says_why() -> None:
    class Stop(Callback):
        def epoch_ends(self, run: Run) -> None:
            run.stop("first reason")
            run.stop("second reason")

    model: NeuralNetwork = classifier()
    history = model.fit(points(), epochs=5, verbose=0, callbacks=[Stop()])
    assert history.stopped == "first reason"
    assert history.epochs == [0]
