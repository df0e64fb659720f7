"""Folds of a table's rows, trained in one network with members for each fold.

A network has members for every fold, and its targets carry the fold of each row. The loss leaves
out the members of that fold, whose predictions for the row are then out-of-fold predictions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor import DType, Shape
from caldera.nn import EnsembleLoss
from caldera.nn.losses import CrossEntropy, Loss, MeanSquared
from caldera.train.callbacks import Callback
from caldera.train.tracking.history import History

if TYPE_CHECKING:
    from caldera.train.run import Run

FOLDS = 5
MOST_FOLDED = 20_000
"""Maximum number of rows for cross-validation; larger tables have one validation part."""
_PATIENCE = 0.3
"""Fraction of the planned epochs without a better result after which training ends."""
_VALIDATIONS = 30
"""Number of validations in a run of many epochs."""
_WARM_UP = 0.03
"""Fraction of the run in which the learning rate rises."""
Array = np.ndarray


def fold_numbers(targets: Array, count: int, seed: int = 0) -> Array:
    """Return the fold of each row: folds of equal size, with similar targets.

    >>> folds = fold_numbers(np.array([0, 0, 0, 0, 1, 1, 1, 1]), 2)
    >>> np.bincount(folds[:4]).tolist(), np.bincount(folds[4:]).tolist()
    ([2, 2], [2, 2])
    """
    random = np.random.default_rng(seed)
    flat = np.asarray(targets).reshape(len(targets), -1)[:, 0]
    order = np.lexsort((random.random(len(flat)), flat))
    found = np.empty(len(flat), np.int64)
    blocks = -(-len(flat) // count)
    numbers = np.concatenate([random.permutation(count) for _ in range(blocks)])
    found[order] = numbers[: len(flat)]
    return found


@dataclass(frozen=True)
class FoldLoss(Loss):
    """Mean loss of the members that learn from a row; its last target is the row's fold.

    `folds` has the fold of each member, in the order of predictions (N, members, outputs), and
    `loss` is the loss of a member.

    >>> import caldera as cd
    >>> loss = FoldLoss((0, 1), MeanSquared())
    >>> loss(cd.tensor([[[1.0], [3.0]]]), cd.tensor([[0.0, 1.0]])).item()
    1.0
    """

    folds: tuple[int, ...]
    loss: Loss

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        shape, _ = self.loss.target_spec(prediction.shape[::2])
        values = target[:, :1] if len(shape) > 1 else target[:, 0]
        losses = EnsembleLoss(self.loss).member_losses(prediction, values)
        folds = np.asarray(self.folds)
        learns = op.cast(op.cast(target[:, 1:], "int64") != folds, losses.dtype)
        return op.sum(losses * learns, axis=1) / op.maximum(op.sum(learns, axis=1), 1.0)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        count, _, outputs = prediction_shape
        _, kind = self.loss.target_spec((count, outputs), dtype)
        return (count, 2), kind


@dataclass(frozen=True)
class Rows:
    """Rows of a table as members learn from them: features, targets, folds and weights.

    `targets` are class numbers (N,), or values (N,) of mean 0 and deviation 1 or so. Fold k
    below `count` validates on its own rows and trains on the remaining ones. Rows with larger
    numbers are training rows of every fold.
    """

    x: Array
    targets: Array
    folds: Array
    count: int
    outputs: int
    classes: bool
    weights: Array | None = None

    @property
    def member_loss(self) -> Loss:
        """The loss that each member minimises."""
        return CrossEntropy() if self.classes else MeanSquared()

    @cached_property
    def held_out(self) -> Array:
        """Numbers of the rows that some fold holds out, in order."""
        return np.flatnonzero(self.folds < self.count)

    @cached_property
    def learnt(self) -> Array:
        """Numbers of the rows that some fold learns from."""
        alone = self.count == 1
        return np.flatnonzero(self.folds != 0) if alone else np.arange(len(self.folds))

    def of(self, fold: int) -> Array:
        """Return the numbers of the rows that a fold holds out."""
        return np.flatnonzero(self.folds == fold)

    def meaning(self, outputs: Array) -> Array:
        """Return the mean prediction of members (N, members, outputs): probabilities or values."""
        if self.classes:
            outputs = softmax(outputs)
        return outputs.mean(axis=1)

    def loss(self, rows: Array, meaning: Array) -> float:
        """Return the mean loss of predictions for some rows: log-loss or squared error."""
        return mean_loss(self.targets[rows], meaning, self.classes, self.row_weights(rows))

    def row_weights(self, rows: Array) -> Array | None:
        return None if self.weights is None else self.weights[rows]


def each_loss(targets: Array, meaning: Array, classes: bool) -> Array:
    """Return the log-loss of probabilities or the squared error of values, for each row.

    >>> each_loss(np.array([1]), np.array([[0.5, 0.5]]), True).round(4).tolist()
    [0.6931]
    """
    if classes:
        own = np.take_along_axis(meaning, targets[:, None], axis=1)[:, 0]
        return np.asarray(-np.log(np.maximum(own.astype(np.float64), 1e-9)))
    return np.asarray(np.square(meaning.reshape(len(targets)).astype(np.float64) - targets))


def mean_loss(targets: Array, meaning: Array, classes: bool, weights: Array | None = None) -> float:
    """Return the mean of `each_loss`; nan for no rows."""
    each = each_loss(targets, meaning, classes)
    return float(np.average(each, weights=weights)) if len(each) else math.nan


def softmax(logits: Array) -> Array:
    """Return probabilities along the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


class BestOfFolds(Callback):
    """Keeps the best weights of each branch, by validation in all folds, and sets the rate.

    `branches` has the first and last member of each branch. The learning rate rises, then follows
    a cosine to 0 over `epochs`, or over `seconds` if that is less. Training ends early if no branch
    has improved for almost a third of the epochs. With `from_start`, the initial weights may be the
    best.
    """

    def __init__(
        self,
        rows: Rows,
        branches: Mapping[str, tuple[int, int]],
        rate: float,
        epochs: int,
        seconds: float | None = None,
        from_start: bool = False,
    ) -> None:
        self.rows = rows
        self.branches = dict(branches)
        self.rate, self.epochs, self.seconds = rate, epochs, seconds
        self.from_start = from_start
        self.history = History()
        self.best = dict.fromkeys(branches, math.inf)
        self.predictions = {name: np.zeros((len(rows.targets), rows.outputs)) for name in branches}
        self._kept: dict[str, Array] = {}
        self._improved = 0
        self._epoch_started = self._started = time.perf_counter()

    def run_begins(self, run: Run) -> None:
        self._started = self._epoch_started = time.perf_counter()
        if self.from_start:
            self._evaluated(run)

    def batch_ends(self, run: Run) -> None:
        self._set_rate(run)
        if self.seconds is not None and self._elapsed() >= self.seconds:
            if not self._kept:
                self._record(run, run.epoch, run.loss())
            run.stop(f"the time limit of {self.seconds:.0f} s")

    def epoch_ends(self, run: Run) -> None:
        every = max(round(self.epochs / _VALIDATIONS), 1)
        if run.epoch % every and run.epoch < self.epochs:
            return
        self._record(run, run.epoch - 1, run.history["loss"][-1])
        if self._improved < run.epoch - max(4, _PATIENCE * self.epochs):
            run.stop("no member improves any more")

    def run_ends(self, run: Run) -> None:
        for variable in run.model.parameters():
            if variable.name in self._kept:
                variable.assign(self._kept[variable.name])

    # --- details

    def _record(self, run: Run, epoch: int, loss: float) -> None:
        found, now = self._evaluated(run), time.perf_counter()
        results = {"loss": loss, **found, "seconds": now - self._epoch_started}
        self._epoch_started = now
        self.history.add(epoch, results, run.model.optimizer.known_rate())

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started

    def _progress(self, run: Run) -> float:
        steps = run.epoch + run.batch / max(run.batches or 1, 1)
        found = steps / self.epochs
        return found if self.seconds is None else max(found, self._elapsed() / self.seconds)

    def _set_rate(self, run: Run) -> None:
        done = min(self._progress(run), 1.0)
        factor = min(done / _WARM_UP + 0.01, 1.0) * (0.5 + 0.5 * math.cos(math.pi * done))
        run.model.optimizer.learning_rate.assign(self.rate * max(factor, 1e-3))

    def _evaluated(self, run: Run) -> dict[str, float]:
        """Validate, keep the weights of branches that improve, and return the branches' losses."""
        rows, held_out = self.rows, self.rows.held_out
        outputs = run.model.predict(rows.x[held_out])
        folds, losses = rows.folds[held_out], {}
        for name, (first, last) in self.branches.items():
            each = (last - first) // rows.count
            # The members of a row's fold.
            own = first + folds[:, None] * each + np.arange(each)
            meaning = rows.meaning(np.take_along_axis(outputs, own[:, :, None], axis=1))
            losses[name] = rows.loss(held_out, meaning)
            if losses[name] < self.best[name]:
                self.best[name] = losses[name]
                self._improved = run.epoch
                self.predictions[name][held_out] = meaning
                for variable in run.model.parameters():
                    if f"/{name}/" in f"/{variable.name}":
                        self._kept[variable.name] = variable.numpy().copy()
        return {"val_loss": min(losses.values()), **{f"val_{n}": v for n, v in losses.items()}}
