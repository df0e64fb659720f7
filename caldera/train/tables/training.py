"""`train_table`: a linear model, a network and an ensemble in one, blended by validation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caldera.base.arguments import checked, require, shown
from caldera.data import Dataset, Pipeline
from caldera.errors import DataError
from caldera.nn import Blend, Dense, Input, Rescale, Sequential
from caldera.nn.layer import Layer
from caldera.train.arguments import plain_number, whole_number
from caldera.train.neural_network import NeuralNetwork
from caldera.train.sample_weights import SampleWeights
from caldera.train.tables.blending import TargetCurve, best_temperature, blend_weights
from caldera.train.tables.folds import (
    FOLDS,
    MOST_FOLDED,
    Array,
    Rows,
    fold_numbers,
    mean_loss,
    softmax,
)
from caldera.train.tables.linear import LinearMembers, linear_members
from caldera.train.tables.members import BRANCHES, Members, fit_members
from caldera.train.tracking.history import History

_LEAST_WEIGHT = 0.02
"""Weight under which a member is left out."""
_LEAST_GAIN, _LEAST_SKEW = 0.97, 1.0
"""Relative error out of fold, and skewness, at which the logarithm of a target is learnt."""
_LINEAR = "linear"
_LINEAR_PRIOR = 0.7
"""Weight of the linear model in a blend, as far as rows out of fold do not determine it."""
Part = tuple[Sequential, Array]
"""A member: its layers, and its predictions out of fold."""


@dataclass(frozen=True)
class TableRun:
    """A trained model of a table, and its predictions out of fold.

    - `model`: the blended network.
    - `rows`: numbers of the validated training rows, in order.
    - `predictions`: the blend's out-of-fold predictions for these rows: probabilities
      (rows, classes), or values in the unit of the target.
    - `targets`: the class numbers or values of these rows.
    - `members`: the same of each member, by name.
    - `weights`: the weight of each member in the blend.
    - `folds`: the fold of each training row.
    - `history`: losses of each epoch, by rows held out too.
    - `notes`: decisions, such as a logarithmic target.

    >>> import caldera as cd
    >>> rows = [{"width": w / 10, "area": (w / 10) ** 2} for w in range(200)]
    >>> run = cd.train_table(cd.data.table(rows, "area", test=0), seconds=2)
    >>> len(run.rows), run.results["r2"] > 0.9, "linear" in run.members
    (200, True, True)
    """

    model: NeuralNetwork
    rows: Array
    predictions: Array
    targets: Array
    members: Mapping[str, Array]
    weights: Mapping[str, float]
    folds: Array
    history: History
    temperature: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def results(self) -> dict[str, float]:
        """Log-loss and accuracy, or error and R2, of the predictions out of fold."""
        classes = self.predictions.shape[1] > 1
        loss = mean_loss(self.targets, self.predictions, classes)
        if classes:
            right = self.predictions.argmax(axis=1) == self.targets
            return {"loss": loss, "accuracy": float(right.mean())}
        spread = float(self.targets.var())
        return {"rmse": loss**0.5, "r2": 1 - loss / spread if spread else math.nan}


@checked
def train_table(
    found: Dataset,
    *,
    seconds: float | None = None,
    seed: int = 0,
    folds: Array | None = None,
    sample_weights: Any = None,
    class_weights: Any = None,
    device: Any = None,
    verbose: int | None = 0,
) -> TableRun:
    """Train a blend of models on a table, in the usual time or in `seconds`.

    Up to 20,000 rows it cross-validates in five folds; larger tables have one validation part.
    Members are a linear model, a network and an ensemble of networks that share weights, all folds
    trained in one plan, each with its best weights. Predictions out of fold determine the members'
    weights, the temperature, and whether the logarithm of a skewed target is learnt.

    `folds` has the fold of each row, from 0, or -1 for rows that no fold holds out. Without it,
    rows of a group are in one fold, and tables with times have the latest rows as validation part;
    see `data.table`. Weights are as in `Model.fit`.

    >>> import caldera as cd
    >>> rows = [{"width": n / 30, "area": 2 + n / 15} for n in range(60)]
    >>> run = cd.train_table(cd.data.table(rows, "area"), seconds=2)
    >>> run.model.predict([{"width": 1.0}]).round(1).tolist()
    [[4.0]]
    """
    started = time.perf_counter()
    x, y = _arrays(found)
    given = SampleWeights.of(Pipeline.of(found.train), sample_weights, class_weights)
    weights = None if given is None else given.of_samples(np.arange(len(y)), y)
    if seconds is not None:
        seconds = plain_number(seconds, "seconds", 0.0, "train_table")
    seed = whole_number(seed, "seed", 0, "train_table")
    keys = found.train.keys
    if folds is not None:
        numbers = _given_folds(folds, len(y))
    else:
        numbers = fold_numbers(y, FOLDS, seed) if keys is None else keys.folds(FOLDS, seed)
    # Large tables have a single validation part.
    count = int(numbers.max()) + 1 if len(y) <= MOST_FOLDED or folds is not None else 1
    numbers = np.where(numbers < 0, count, numbers)
    rows = Rows(x, y, numbers, count, found.outputs, bool(found.classes), weights)
    curve, linear = _curve_and_linear(rows, _scale(found, y))
    learnt = rows if rows.classes else replace(rows, targets=curve.applied(y))
    members = Members.of(found.schema, learnt)
    left = None if seconds is None else seconds - (time.perf_counter() - started)
    parts, history = _rounds(members, left, seed, device, verbose)
    parts[_LINEAR] = _linear_part(rows, linear)
    return _blended(found, rows, curve, parts, history, seed, device)


def _rounds(
    members: Members, seconds: float | None, seed: int, device: Any, verbose: int | None
) -> tuple[dict[str, Part], History]:
    """Train networks of all folds, several times if `seconds` are left; return them by name."""
    rows, parts = members.rows, dict[str, Part]()
    histories: list[History] = []
    left, enough = seconds, False
    while not enough:
        started = time.perf_counter()
        number = len(histories)
        made = (members.network(number), members.ensemble(number))
        layers, keeper = fit_members(rows, made, seed + number, left, device, verbose)
        histories.append(keeper.history)
        parts |= {name: (layer, keeper.predictions[name]) for name, layer in layers.items()}
        took = time.perf_counter() - started
        left = None if left is None else left - took
        enough = left is None or left < 0.5 * took or bool(keeper.history.stopped)
    return parts, histories[0]


def _arrays(found: Dataset) -> tuple[Array, Array]:
    """Return features and targets of the training rows: class numbers, or values (N,)."""
    x, y = found.train.batch(np.arange(len(found.train)))[:2]
    expected = "a table: rows of numbers, with a class or a value each"
    require(
        x.ndim == 2 and x.dtype.kind == "f" and y.reshape(len(y), -1).shape[1] == 1,
        "train_table",
        expected,
        f"inputs of shape {x.shape} and targets of shape {y.shape}",
        "read it with data.table, or train a network with model.fit",
        error=DataError,
    )
    are_finite = np.isfinite(x).all() and np.isfinite(y).all()
    require(are_finite, "train_table", "finite numbers", "nan or inf", error=DataError)
    least = 2 * FOLDS
    require(len(x) >= least, "train_table", f"at least {least} rows", len(x), error=DataError)
    return x, y.reshape(-1) if found.classes else y.reshape(-1).astype(np.float64)


def _given_folds(folds: Any, count: int) -> Array:
    given = np.asarray(folds)
    is_whole = given.shape == (count,) and given.dtype.kind in "iu"
    require(
        is_whole and -1 <= given.min() < given.max() < count,
        "train_table",
        f"folds= the number of a fold for each of {count} rows: at least 2 numbers, from 0, or -1",
        shown(folds),
    )
    return given.astype(np.int64)


def _scale(found: Dataset, y: Array) -> TargetCurve:
    """Return the scale of the targets in the schema, or else the scale of these targets."""
    known = found.schema.target_scale if found.schema is not None else None
    if found.classes or known is None:
        return TargetCurve.of(np.zeros(1) if found.classes else y)
    return TargetCurve(float(np.ravel(known.mean)[0]), float(np.ravel(known.scale)[0]))


def _curve_and_linear(rows: Rows, plain: TargetCurve) -> tuple[TargetCurve, LinearMembers]:
    """Return the scale of the target with the smaller error of linear models, and these models."""
    y = rows.targets
    if rows.classes:
        return plain, linear_members(rows)
    found = linear_members(replace(rows, targets=plain.applied(y)))
    skew = float((TargetCurve.of(y).applied(y) ** 3).mean())
    if y.min() < 0 or not (y > 0).any() or skew < _LEAST_SKEW:
        return plain, found
    curve = TargetCurve.of(y, is_log=True)
    other = linear_members(replace(rows, targets=curve.applied(y)))
    errors = [
        rows.loss(rows.held_out, scale.undone(each.predictions[rows.held_out]))
        for scale, each in ((plain, found), (curve, other))
    ]
    return (curve, other) if errors[1] < _LEAST_GAIN * errors[0] else (plain, found)


def _linear_part(rows: Rows, fitted: LinearMembers) -> Part:
    """Return the linear model as a layer, and its predictions out of fold."""
    part = Sequential([Dense(rows.outputs)], name=_LINEAR)
    network = NeuralNetwork([Input(rows.x.shape[1:]), Sequential([part], name=BRANCHES)])
    for parameter, values in zip(network.parameters(), fitted[:2], strict=True):
        parameter.assign(values)
    return part, fitted.predictions


def _blended(
    found: Dataset,
    rows: Rows,
    curve: TargetCurve,
    parts: Mapping[str, Part],
    history: History,
    seed: int,
    device: Any,
) -> TableRun:
    """Weigh the members by validation, and build the network that blends them."""
    known = {name: each for name, (_, each) in parts.items()}
    if not rows.classes:
        known = {name: curve.undone(each) for name, each in known.items()}
    others = (1 - _LINEAR_PRIOR) / (len(known) - 1)
    prior = [_LINEAR_PRIOR if name == _LINEAR else others for name in known]
    chosen = blend_weights(rows, list(known.values()), prior)
    weights = {n: w for n, w in zip(known, chosen.tolist(), strict=True) if w >= _LEAST_WEIGHT}
    weights = {name: weight / sum(weights.values()) for name, weight in weights.items()}
    meaning = sum(weight * known[name] for name, weight in weights.items())
    temperature = 1.0
    if rows.classes:
        temperature = best_temperature(rows, meaning)
        meaning = softmax(np.log(np.maximum(meaning, 1e-9)) / temperature)
    scale = _scale(found, rows.targets)
    blend = Blend(
        [parts[name][0] for name in weights],
        list(weights.values()),
        classes=rows.classes,
        temperature=temperature,
        curve=curve.within(scale, rows.targets) if curve.is_log else None,
        name=BRANCHES,
    )
    held_out, log = rows.held_out, ("the logarithm of the target is learnt",)
    return TableRun(
        model=_network(found, blend, scale, seed, device),
        rows=held_out,
        predictions=meaning[held_out],
        targets=rows.targets[held_out],
        members={name: each[held_out] for name, each in known.items()},
        weights=weights,
        folds=rows.folds,
        history=history,
        temperature=temperature,
        notes=log if curve.is_log else (),
    )


def _network(
    found: Dataset, blend: Blend, scale: TargetCurve, seed: int, device: Any
) -> NeuralNetwork:
    """Return the blend as a network with the schema of its table."""
    layers: list[Layer] = [Input(found.shape), blend]
    if not blend.classes and (found.schema is None or found.schema.target_scale is None):
        layers.append(Rescale(scale.scale, scale.mean))
    loss = "cross_entropy" if blend.classes else "mean_squared"
    model = NeuralNetwork(layers, loss=loss, batch_size=256, seed=seed, device=device)
    model.schema = found.train.schema
    return model
