"""Comparison of each contestant's results with the reference's results.

Workers compute the arrays and accuracies; the results are compared as contestants finish.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from caldera.bench.equality import (
    Equality,
    compare_in_precision,
    compare_results,
    compare_training,
    curve_limit,
    largest_difference,
)
from caldera.bench.frameworks.base import Array, BenchTask, Framework, Restartable
from caldera.bench.frameworks.caldera_tasks import FitTask
from caldera.bench.honesty.literature import weights_by_shape
from caldera.bench.results import ResultEntry
from caldera.bench.workloads import Case, TrainingCase
from caldera.data import Dataset, Loader, cifar10, mnist
from caldera.errors import ConfigError

FLOAT64_STEPS = 5
CURVE_STEPS = 100
QUICK_CURVE_STEPS = 20
LARGE_CHECK_BATCH = 2
"""Samples for the float64 steps of large networks, which would take minutes with all."""
MOST_COMPARED = 1 << 20
"""Numbers of a kernel's result that are compared; the same ones everywhere."""
CARD_EPOCHS, QUICK_CARD_EPOCHS = 12, 2
"""Number of passes over all batches on a GPU."""
TRUTH = "float64"
"""Subfolder of the reference's folder for gradients in float64."""


def checked(
    framework: Framework, case: Case, folder: Path, *, quick: bool, truth: bool = False
) -> dict[str, Any]:
    """Compute a case for comparing: arrays are written to the folder, numbers are given back.

    With `truth` the gradients are computed in float64 as well, to judge those in float32.
    """
    if not isinstance(case, TrainingCase):
        _write(folder, [_sampled(each) for each in framework.task(case).results()])
        return {}
    trainer = framework.trainer(case, "float32")
    loss, gradients = trainer.gradients()
    _write(folder, gradients)
    del gradients, trainer
    if truth:
        _write(folder / TRUTH, framework.trainer(case, "float64").gradients()[1])
    found: dict[str, Any] = {"first loss": loss}
    steps = _curve_steps(case, quick)
    curve = framework.trainer(case, "float32").losses(steps)
    found |= {"steps": steps, "loss": curve[-1]}
    if case.is_small:
        found["curve"] = curve
    if case.is_small or not quick:
        # Last, because a framework may change its precision for the whole process.
        batch = LARGE_CHECK_BATCH if case.is_large else None
        found["float64"] = framework.trainer(case, "float64", batch).losses(FLOAT64_STEPS)
    return found


def checked_on_card(
    framework: Framework,
    task: BenchTask,
    case: TrainingCase,
    folder: Path,
    *,
    quick: bool,
    truth: bool = False,
    float64: bool = False,
) -> dict[str, Any]:
    """Do the same as `checked`, with the task that is timed, so that no code is compiled twice.

    With `float64`, five steps in that precision are made as well.
    """
    steps = case.batches * (CARD_EPOCHS if case.is_small and not quick else QUICK_CARD_EPOCHS)
    if isinstance(task, FitTask):
        means = task.epoch_losses(steps // case.batches)
        return {"epochs": means, "steps": steps, "loss": means[-1], "mean of": case.batches}
    if not isinstance(task, Restartable):
        raise ConfigError.build("bench check", expected="a trainer for a GPU", got=case.name)
    task.restart()
    loss, gradients = task.gradients()
    _write(folder, gradients)
    del gradients
    task.restart()
    curve = task.losses(steps)
    found = {"first loss": loss, "steps": steps, "loss": curve[-1], "curve": curve}
    if truth:
        _write(folder / TRUTH, framework.trainer(case, "float64").gradients()[1])
    if float64:
        found["float64"] = framework.trainer(case, "float64").losses(FLOAT64_STEPS)
    return found


def written(folder: Path) -> list[Array]:
    """Return the arrays that a worker wrote, in their order."""
    paths = sorted(folder.glob("*.npy"))
    return [np.load(path, mmap_mode="r", allow_pickle=False) for path in paths]


def trained_accuracy(framework: Framework, case: TrainingCase, epochs: int) -> float:
    """Train on real data from the case's initial weights; the share of test samples got right."""
    found = _dataset(case)
    trainer = framework.trainer(case, "float32")
    shape = (-1, *case.shape)
    # Whole batches only: a framework that compiles for fixed shapes then compiles once.
    loader = Loader(found.train, case.batch, seed=0, drop_last=True)
    for _ in range(epochs):
        for batch in loader:
            trainer.train(batch.x.reshape(shape), np.asarray(batch.y))
    trainer.wait()
    right = total = 0
    for batch in Loader(found.test, case.batch, shuffle=False, drop_last=True):
        right += int((trainer.predict(batch.x.reshape(shape)).argmax(-1) == batch.y).sum())
        total += len(batch)
    return right / total


def _dataset(case: TrainingCase) -> Dataset:
    makers = {"mnist": mnist, "cifar10": cifar10}
    if case.dataset not in makers:
        raise ConfigError.build(
            "--test-accuracy",
            expected="work with a data set",
            got=case.name,
            hint="mlp, lenet5 and resnet20 have one",
        )
    return makers[case.dataset](download=False)


def _curve_steps(case: TrainingCase, quick: bool) -> int:
    if case.is_small and not quick:
        return CURVE_STEPS
    return FLOAT64_STEPS if case.is_large else QUICK_CURVE_STEPS


def _sampled(array: Array) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat if flat.size <= MOST_COMPARED else flat[:: -(-flat.size // MOST_COMPARED)]


def _write(folder: Path, arrays: list[Array]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, array in enumerate(arrays):
        np.save(folder / f"{number:05}.npy", np.ascontiguousarray(array), allow_pickle=False)


_EAGER = "eager"
_OTHER_FORMAT = "channels_last"
_REFERENCE = "reference"


class Comparison:
    """Comparison of the contestants of a case with the reference.

    The reference must be added first; arrays of other contestants are deleted immediately. The
    tolerance for loss curves is the distance between the reference's curves with its two orders of
    an image's axes.
    """

    def __init__(self, folder: Path, reference: str) -> None:
        self._folder = folder
        self._reference = reference
        self._numbers: dict[str, Any] | None = None

    def folder_of(self, entry: ResultEntry) -> Path:
        """Return the folder to which a contestant's worker writes its arrays."""
        return self._folder / (_REFERENCE if self.is_reference(entry) else "other")

    def is_reference(self, entry: ResultEntry) -> bool:
        """Return True if this contestant is the reference."""
        return entry.label == self._reference

    def add(self, entry: ResultEntry, numbers: dict[str, Any]) -> None:
        """Compare the results that a worker computed for its check."""
        found = written(self.folder_of(entry))
        if "first loss" in numbers:
            entry.weights = weights_by_shape(each.shape for each in found)
        if self.is_reference(entry):
            self._numbers = numbers
        if self._numbers is None:
            return
        expected = written(self._folder / _REFERENCE)
        if entry.precision:
            truth = written(self._folder / _REFERENCE / TRUTH)
            entry.equality = compare_in_precision(
                self._numbers, truth, numbers, found, entry.precision
            )
        elif "first loss" in numbers:
            entry.equality = compare_training(self._numbers, expected, numbers, found)
            truth = written(self._folder / _REFERENCE / TRUTH)
            if truth:
                entry.equality.true_gradients = largest_difference(truth, found)
        else:
            entry.equality = compare_results(expected, found)
        entry.equality.against = self._reference
        if not self.is_reference(entry):
            shutil.rmtree(self.folder_of(entry), ignore_errors=True)

    def judge(self, entries: Sequence[ResultEntry]) -> None:
        """Say who is equal, now that all are there; and forget the arrays."""
        by_label = {each.label: each.equality for each in entries}
        reference = by_label.get(self._reference, Equality())
        other = by_label.get(f"{self._reference} {_OTHER_FORMAT}", Equality())
        for entry in entries:
            entry.equality.reference_true_gradients = reference.true_gradients
            if entry.equality.precision:
                self._allow(entry, entries)
            elif entry.equality.curve is not None:
                entry.equality.curve_allowed = curve_limit(other.curve)
            entry.equality.judge()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _allow(self, entry: ResultEntry, entries: Sequence[ResultEntry]) -> None:
        """Set an entry's limits by the eager steps of the reference in the same precision."""
        framework = self._reference.split()[0]
        alike = [
            each.equality
            for each in entries
            if each.framework == framework
            and each.precision == entry.precision
            and each.setting in (_EAGER, f"{_EAGER} {_OTHER_FORMAT}")
        ]
        entry.equality.allow(
            gradients=max((each.distance or 0.0 for each in alike), default=None),
            curve=max((each.curve or 0.0 for each in alike), default=None),
        )
