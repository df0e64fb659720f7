"""CTC as a loss of models: labels in order, without the frames at which they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import DType, int64, refuse_masked
from caldera.core.tensor.shape import Shape
from caldera.errors import ConfigError, DataError
from caldera.nn.losses import SEQUENCE, ClassLoss, PredictionKind, losses
from caldera.op.loss import ctc_frames


@losses.register("ctc")
@dataclass(frozen=True)
class CTCLoss(ClassLoss):
    """Negative log-likelihood of the labels, per label, for predictions (N, frames, classes).

    Targets are (N, labels), integers padded with -1. Class `blank` marks frames without a label.
    `labels` is the padded length of the targets, which `fit` determines. A sample with more labels
    than frames is rejected; with `zero_infinity` its loss is 0.

    Where sequences are padded, not all frames count. With `lengths` each row of the targets begins
    with the number of valid output frames, as written by `nn.ctc_targets`. Predictions after these
    frames have no influence on the loss, its gradient and the error rates.

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> even = cd.tensor([[[0.0, 0.0], [0.0, 0.0]]])
    >>> op.exp(-nn.CTCLoss()(even, cd.tensor([[1, -1]]))).item()
    0.75
    >>> first = nn.CTCLoss(lengths=True)(even, cd.tensor(nn.ctc_targets([[1]], [1])))
    >>> op.exp(-first).item()
    0.5
    """

    axis: ClassVar[int] = -1  # type: ignore[misc]

    blank: int = 0
    labels: int | None = None
    zero_infinity: bool = False
    lengths: bool = False

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        labels, frames = (target[:, 1:], target[:, 0]) if self.lengths else (target, None)
        each = op.ctc_loss(
            prediction,
            labels,
            frames,
            blank=self.blank,
            reduction="none",
            zero_infinity=self.zero_infinity,
        )
        count = op.sum(op.cast(labels >= 0, "int64"), axis=1)
        return each / op.cast(op.maximum(count, 1), each.dtype)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        if self.labels is None:
            raise ConfigError.build(
                "CTCLoss",
                expected="a known length of the padded labels",
                got="nothing",
                hint="pass loss=nn.CTCLoss(labels=...), or train first: fit infers it",
            )
        return (prediction_shape[0], self.labels + self.lengths), int64

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        known = len(targets) == 2 and targets[1] >= self.lengths
        return replace(self, labels=targets[1] - self.lengths) if known else self

    def check_targets(self, targets: np.ndarray) -> None:
        targets = targets[:, self.lengths :]
        is_label = targets >= 0
        holes = ~is_label[:, :-1] & is_label[:, 1:]
        if holes.any() or (targets == self.blank).any():
            sample = int(np.argmax(holes.any(1) | (targets == self.blank).any(1)))
            raise DataError.build(
                "targets for CTCLoss",
                expected=f"labels that are not the blank, {self.blank}, "
                "and then -1 up to the end of each row",
                got=f"{targets[sample].tolist()} in sample {sample}",
            )

    def check_room(self, targets: np.ndarray, predictions: Shape) -> None:
        """Refuse labels that are no classes of such predictions, or that have not the frames."""
        _, most, classes = predictions
        frames = targets[:, 0] if self.lengths else np.full(len(targets), most)
        targets = targets[:, self.lengths :]
        if targets.size and int(targets.max()) >= classes:
            raise DataError.build(
                "targets for CTCLoss",
                expected=f"labels below {classes}, the number of classes",
                got=f"{int(targets.max())}",
                hint="give the last layer one more output than there are labels, for the blank",
            )
        if frames.size and not 0 <= frames.min() <= frames.max() <= most:
            sample = int(np.argmax((frames < 0) | (frames > most)))
            raise DataError.build(
                "targets for CTCLoss",
                expected=f"lengths from 0 to {most}, the number of frames that the network outputs",
                got=f"{frames[sample]} in sample {sample}",
                hint="pass the lengths of the outputs: a network with strides outputs fewer frames",
            )
        needed = np.array([ctc_frames(row[row >= 0]) for row in targets], np.int64)
        if not self.zero_infinity and (needed > frames).any():
            sample = int(np.argmax(needed - frames))
            raise DataError.build(
                "targets for CTCLoss",
                expected=f"labels that fit into {frames[sample]} frames",
                got=f"labels of sample {sample} that need {needed[sample]}",
                hint="let the network output more frames, or leave such samples out of training "
                "with nn.CTCLoss(zero_infinity=True)",
            )

    def task(self) -> PredictionKind:
        return PredictionKind(SEQUENCE, logits=True, blank=self.blank, lengths=self.lengths)


def ctc_targets(
    labels: Sequence[Any] | np.ndarray, input_lengths: Any, label_lengths: Any = None
) -> np.ndarray:
    """Return targets for `nn.CTCLoss(lengths=True)`: for each sample its frame count, and labels.

    `labels` are lists of different lengths, or an array (N, most labels) of which the first
    `label_lengths` of each row count; without `label_lengths`, values below 0 are padding.
    `input_lengths` are counted in output frames of the network, after all strides.

    >>> from caldera import nn
    >>> nn.ctc_targets([[3, 1, 2], [4]], input_lengths=[20, 11]).tolist()
    [[20, 3, 1, 2], [11, 4, -1, -1]]
    >>> nn.ctc_targets([[3, 1], [4, 0]], [20, 11], label_lengths=[2, 1]).tolist()
    [[20, 3, 1], [11, 4, -1]]
    """
    try:
        samples = list(labels)
    except TypeError:
        raise DataError.build(
            "nn.ctc_targets",
            expected="labels, a list or an array with a row a sample",
            got=type(labels).__name__,
            hint="put the labels of a single sample into a list",
        ) from None
    rows = [_whole_numbers(row, f"labels of sample {i}") for i, row in enumerate(samples)]
    frames = _whole_numbers(input_lengths, "input_lengths")
    counts = None if label_lengths is None else _whole_numbers(label_lengths, "label_lengths")
    for name, given in (("input_lengths", frames), ("label_lengths", counts)):
        if given is not None and (len(given) != len(rows) or given.min(initial=0) < 0):
            raise DataError.build(
                "nn.ctc_targets",
                expected=f"{name}, {len(rows)} numbers from 0 on, one a sample",
                got=f"{len(given)}" if len(given) != len(rows) else f"{given.min()}",
            )
    if counts is not None:
        for sample, (row, count) in enumerate(zip(rows, counts, strict=True)):
            require(
                count <= len(row),
                "nn.ctc_targets",
                f"a length of at most {len(row)}, the labels of sample {sample}",
                count,
                error=DataError,
            )
        rows = [row[:count] for row, count in zip(rows, counts, strict=True)]
    found = np.full((len(rows), 1 + max(map(len, rows), default=0)), -1, np.int64)
    for target, length, row in zip(found, frames, rows, strict=True):
        target[0] = length
        target[1 : 1 + len(row)] = row
    return found


def _whole_numbers(given: Any, what: str) -> np.ndarray:
    """A row of whole numbers; an empty one may be of any kind."""
    refuse_masked(given, f"nn.ctc_targets {what}")
    try:
        array = np.asarray(given)
    except ValueError:
        # Rows of different lengths, say.
        array = np.empty((1, 1), object)
    require(
        array.ndim == 1 and (not array.size or array.dtype.kind in "iu"),
        "nn.ctc_targets",
        f"{what}, a row of integers",
        f"{array.dtype} of shape {array.shape}",
        error=DataError,
    )
    return array.astype(np.int64)
