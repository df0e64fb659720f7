"""Callbacks: objects that observe a training run and may stop it.

A custom callback overrides the methods of the moments it needs:

    class Printer(cd.Callback):
        def epoch_ends(self, run):
            print(run.epoch, run.history["loss"][-1])
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import guarded, require
from caldera.base.registry import nearest
from caldera.compress import LowPrecisionWeights
from caldera.errors import ConfigError
from caldera.train.arguments import plain_number, whole_number
from caldera.train.saving.snapshot import Snapshot

if TYPE_CHECKING:
    from caldera.train.run import Run

INTERRUPT = (signal.SIGINT,)
"""Ctrl-C."""
WARNINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Signals that a batch system sends before it ends a job."""

_LOWER_IS_BETTER = ("loss", "error", "mae", "mse", "rmse", "seconds")


class Callback:
    """Base class of callbacks, with an empty method for each moment of a run.

    >>> import caldera as cd
    >>> class Patient(cd.Callback):
    ...     def epoch_ends(self, run):
    ...         if run.seconds > 60:
    ...             run.stop("a minute is over")

    A callback with state returns it from `state` (JSON-serialisable values) and `arrays`, and
    restores it in `take_back`, so that a resumed run continues exactly as it would have.

    On a device, steps are only launched, and the host is many steps ahead. Reading a value from the
    device (`run.loss()`, a parameter) waits for it, and the device is then idle until the next step
    is launched. In `batch_ends` this can double the time of a small step. So read about every
    hundredth step, or use `run.steps.training_totals.begin_read()`, which copies the values in the
    order of the steps and does not wait: its `results()` are available once `done()` is True, some
    steps later. At the end of an epoch all steps have finished anyway.

    On several ranks, every rank has separate callbacks, and each is called at every moment.
    `run.communicator.rank` is the number of the rank; only rank 0 should print and write files. The
    history and the totals cover all ranks, so decisions that follow from them are the same on each.
    A decision that may differ (by a clock, say) is safe too: `run.stop` on one rank ends the run on
    all ranks, one batch later. Values that a strategy splits while steps run, such as the
    parameters of `parallel.Sharded(3)`, are whole in `epoch_begins` and `epoch_ends` only. A custom
    collective must be called on all ranks.
    """

    decides_by: str = ""
    """The column of the history by which it chooses an epoch or ends the run, if it does so."""

    def run_begins(self, run: Run) -> None:
        """Run before the first epoch."""

    def epoch_begins(self, run: Run) -> None:
        """Run before the first batch of an epoch, or the next batch of a resumed run."""

    def batch_ends(self, run: Run) -> None:
        """Run after each training step, which a device may not have finished: see above."""

    def epoch_ends(self, run: Run) -> None:
        """Called after validation; `run.history` has the epoch's results, `run.epoch` is the next
        epoch.
        """

    def run_ends(self, run: Run) -> None:
        """Run after the last epoch, also if the run ends early or by an error."""

    def state(self) -> dict[str, Any]:
        """Return the state to checkpoint, as plain data."""
        return {}

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state to checkpoint, as arrays."""
        return {}

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Take back what `state` and `arrays` gave out."""


@guarded
class KeepBest(Callback):
    """Keeps the parameters of the best epoch, and puts them back when the run ends.

    Args:
        monitor: Column of the history that decides.
        mode: "min" or "max"; by default it follows from the name: losses and errors are small.
        min_delta: Change that counts as an improvement.

    >>> import caldera as cd
    >>> cd.KeepBest("val_accuracy").mode
    'max'
    """

    def __init__(
        self, monitor: str = "val_loss", *, mode: str | None = None, min_delta: float = 0.0
    ) -> None:
        self.monitor = self.decides_by = monitor
        self.mode = _mode(type(self).__name__, monitor, mode)
        self.min_delta = plain_number(min_delta, "min_delta", 0.0, type(self).__name__)
        self._model = ""
        self.forget()

    def forget(self) -> None:
        """Reset the state, as for another model."""
        self.best: float | None = None
        self.best_epoch: int | None = None
        self._snapshot: Snapshot | None = None

    def run_begins(self, run: Run) -> None:
        if self._model not in ("", run.model.token):
            self.forget()
        self._model = run.model.token

    def epoch_ends(self, run: Run) -> None:
        self.keep_if_better(run)

    def keep_if_better(self, run: Run) -> bool:
        """Copy the model if the last epoch was the best so far; whether it was."""
        value = latest(run, self.monitor, type(self).__name__)
        if not _improves(value, self.best, self.mode, self.min_delta):
            return False
        self.best = value
        self.best_epoch = run.epoch - 1
        self._snapshot = Snapshot.of(run.model)
        return True

    def run_ends(self, run: Run) -> None:
        if self._snapshot is not None:
            self._snapshot.put_back(run.model)

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch}

    def arrays(self) -> dict[str, np.ndarray]:
        return {} if self._snapshot is None else dict(self._snapshot.values)

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.best = state["best"]
        self.best_epoch = state["best_epoch"]
        self._snapshot = Snapshot(arrays) if arrays else None
        self._model = ""


@guarded
class EarlyStopping(KeepBest):
    """Ends the run once `monitor` has not improved for `patience` epochs.

    Args:
        monitor: Column of the history, such as "val_loss" or "val_accuracy".
        patience: Number of epochs without improvement after which the run ends.
        min_delta: Change that counts as an improvement.
        restore_best: True to end with the parameters of the best epoch.
        mode: "min" or "max"; by default it follows from the name of the column.

    >>> import caldera as cd
    >>> cd.EarlyStopping("val_loss", patience=3).patience
    3
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 5,
        *,
        min_delta: float = 0.0,
        restore_best: bool = True,
        mode: str | None = None,
    ) -> None:
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.patience = whole_number(patience, "patience", 1, "EarlyStopping")
        self.restore_best = restore_best

    def forget(self) -> None:
        super().forget()
        self.waited = 0

    def epoch_ends(self, run: Run) -> None:
        if self.keep_if_better(run):
            self.waited = 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            epochs = "epoch" if self.patience == 1 else "epochs"
            run.stop(f"{self.monitor} has not improved for {self.patience} {epochs}")

    def run_ends(self, run: Run) -> None:
        if self.restore_best:
            super().run_ends(run)

    def state(self) -> dict[str, Any]:
        return super().state() | {"waited": self.waited}

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        super().take_back(state, arrays)
        self.waited = state["waited"]


@guarded
class TimeLimit(Callback):
    """Ends the run after this many seconds, between two steps.

    >>> import caldera as cd
    >>> cd.TimeLimit(60).seconds
    60
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = plain_number(seconds, "seconds", 0.0, "TimeLimit")

    def batch_ends(self, run: Run) -> None:
        if run.seconds >= self.seconds:
            run.stop(f"the time limit of {self.seconds:g} s")


@guarded
class Target(Callback):
    """Ends the run once a metric has reached a value.

    >>> import caldera as cd
    >>> cd.Target("val_accuracy", 0.97).mode
    'max'
    """

    def __init__(self, metric: str, value: float, *, mode: str | None = None) -> None:
        self.metric = self.decides_by = metric
        self.value = plain_number(value, "value", -math.inf, "Target")
        self.mode = _mode("Target", metric, mode)

    def epoch_ends(self, run: Run) -> None:
        value = latest(run, self.metric, "Target")
        reached = value <= self.value if self.mode == "min" else value >= self.value
        if reached:
            run.stop(f"{self.metric} has reached {self.value:g}")


class StopOnSignal(Callback):
    """Ends the run after the step during which a signal came; a second Ctrl-C does not wait.

    Handlers are installed during the run and restored afterwards, in the main thread only (Python
    allows none elsewhere). A signal that was ignored stays ignored. `received` is the last signal
    that came, or None.

    >>> from caldera.train.callbacks import INTERRUPT, StopOnSignal
    >>> StopOnSignal(INTERRUPT).received is None
    True
    """

    def __init__(self, signals: Sequence[signal.Signals] = (*INTERRUPT, *WARNINGS)) -> None:
        self.signals = tuple(signals)
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def run_begins(self, run: Run) -> None:
        self.received = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.signals:
            # None is a handler that Python did not install, and could not put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._receive)

    def batch_ends(self, run: Run) -> None:
        if self.received is not None:
            name = self.received.name
            run.stop("interrupted" if name == "SIGINT" else f"signal {name}")

    def epoch_ends(self, run: Run) -> None:
        self.batch_ends(run)

    def run_ends(self, run: Run) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = signal.Signals(number)
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt


@guarded
class RoundWeights(Callback):
    """Rounds all weights stochastically to the precision of `dtype`, after every step.

    Storing or sending them in that format then loses no bit (`low.store`, `low.broadcast`; see
    `caldera.compress.LowPrecisionWeights`). While a plan runs, weights have the model's dtype. All
    ranks of data-parallel training round alike.

    >>> import numpy as np
    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse", batch_size=4)
    >>> x = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
    >>> _ = model.fit((x, x[:, :1]), callbacks=[cd.RoundWeights("bfloat16")], verbose=0)
    >>> weight = model.parameters()[0].numpy()
    >>> bool((weight.view(np.uint32) & 0xFFFF == 0).all())
    True
    """

    def __init__(self, dtype: str = "bfloat16", seed: int = 0) -> None:
        self.low = LowPrecisionWeights(dtype, seed)

    def batch_ends(self, run: Run) -> None:
        for parameter in run.model.trainable():
            weights = np.array(parameter.numpy(), np.float32)
            self.low.round(parameter.name, weights)
            parameter.assign(weights.astype(parameter.dtype))

    def arrays(self) -> dict[str, np.ndarray]:
        return self.low.state()

    def take_back(self, state: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        self.low.restore(arrays)


# --- columns of the history


def latest(run: Run, column: str, where: str) -> float:
    """Return the last value of a column of the history; an unknown column is an error."""
    if column not in run.history:
        hint = nearest(column, run.history)
        if column.startswith("val_"):
            hint = f"hold out a part of the data with fit(..., validation=0.2), or {hint}"
        raise ConfigError.build(
            where, expected="a column of the history", got=repr(column), hint=hint
        )
    value = run.history[column][-1]
    if not isinstance(value, int | float):
        raise ConfigError.build(
            where, expected="a column of single numbers", got=f"{column!r}, which holds tables"
        )
    return float(value)


def _improves(value: float, best: float | None, mode: str, by: float) -> bool:
    if math.isnan(value) or best is None:
        return not math.isnan(value)
    return value < best - by if mode == "min" else value > best + by


def _mode(where: str, monitor: str, mode: str | None) -> str:
    if mode is None:
        return "min" if monitor.endswith(_LOWER_IS_BETTER) else "max"
    require(mode in ("min", "max"), where, 'mode "min" or "max"', repr(mode))
    return mode
