"""Whether targets are what a loss takes: told before the first step, in words about the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from caldera.data import Data, IterableData, Pipeline
from caldera.errors import DataError, DtypeError, ShapeError
from caldera.nn.losses import CrossEntropy

if TYPE_CHECKING:
    from caldera.train.model import Model


def check_targets(
    model: Model, data: Data | IterableData, sample: Sequence[np.ndarray], *, weighted: bool
) -> None:
    """Refuse targets that do not fit the loss of a model with one; `sample` is a small batch.

    Where samples are `weighted`, one of weight 0 may have any class.
    """
    inputs = len(model.signature.inputs)
    if len(sample) != inputs + 1:
        return
    name, loss = next(iter(model.objective.losses.items()))
    if name not in model.signature.outputs:
        return
    target = sample[inputs]
    prediction = (len(target), *model.signature.outputs[name])
    shape, dtype = loss.target_spec(prediction, model.dtype)
    what = type(loss).__name__
    if dtype.kind == "i" and target.dtype.kind not in "iub":
        raise DtypeError.build(
            f"targets for {what}", expected="the number of a class for each sample, as int64",
            got=f"targets of {target.dtype}",
            hint="rows of probabilities, as of data.OneHot, are what "
            "loss=nn.losses.CrossEntropy(probabilities=True) takes"
            if target.shape == prediction
            else "predict values with loss='mean_squared', or convert classes with "
            "y.astype('int64')",
        )  # fmt: skip
    if target.shape[1:] != shape[1:]:
        raise ShapeError.build(
            f"targets for {what}", expected=f"targets of shape {shape[1:]} for each sample",
            got=f"{target.shape[1:]}", hint=_reshaped(target.shape[1:], shape[1:]),
        )  # fmt: skip
    if isinstance(loss, CrossEntropy) and not loss.probabilities and not weighted:
        classes = prediction[loss.axis]
        _check_range(_labels(data, target), classes, what)


def _labels(data: Data | IterableData, sample: np.ndarray) -> np.ndarray:
    """All labels, where they lie in an array as they are; else those of the sample."""
    pipeline = Pipeline.of(data)
    stored = None if pipeline.changes_targets else pipeline.stored()
    if stored is None:
        return sample
    labels = stored.arrays[-1]
    return labels if stored.rows is None else labels[stored.rows]


def _reshaped(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    if (*given, 1) == wanted:
        return "one value for each sample is a column: y[:, None]"
    if given == (*wanted, 1):
        return "one class for each sample is a row of numbers: y[:, 0]"
    if not given:
        return "the last layer gives several numbers for each sample; should it give one?"
    return "the last layer and the targets must agree"


def _check_range(labels: np.ndarray, classes: int, what: str) -> None:
    if not labels.size:
        return
    low, high = int(labels.min()), int(labels.max())
    if low >= 0 and high < classes:
        return
    hint = "number the classes from 0, as cd.data.arrays(x, y) does"
    if low >= 0:
        hint = f"give the last layer {high + 1} outputs, or {hint}"
    raise DataError.build(
        f"targets for {what}", expected=f"classes from 0 to {classes - 1}, one for each output",
        got=f"{low} to {high}", hint=hint,
    )  # fmt: skip
