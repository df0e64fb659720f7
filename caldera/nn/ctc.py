"""CTC as a loss of models: labels in order, without the frames at which they stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from caldera import op
from caldera.errors import ConfigError, DataError
from caldera.lazy import Expr
from caldera.nn.losses import Loss, losses
from caldera.nn.task import SEQUENCE, Task
from caldera.op.ctc import ctc_frames
from caldera.tensor.dtype import DType, int64
from caldera.tensor.shape import Shape


@losses.register("ctc")
@dataclass(frozen=True)
class CTCLoss(Loss):
    """-log of the likelihood of the labels, by label: for predictions (N, frames, classes).

    Targets are (N, labels), integers padded with -1. Class `blank` says that a frame has no label.
    `labels` is the length that targets are padded to, which `fit` sees by itself. A sample with
    more labels than frames is refused, and costs nothing with `zero_infinity`.

    All frames count. Where sequences are padded, let the network say blank with certainty at frames
    behind the end (`op.where(inside, logits, certain)`): that adds nothing to any labels, so the
    loss is that of the frames before it.

    >>> import caldera as cd
    >>> from caldera import nn, op
    >>> even = cd.tensor([[[0.0, 0.0], [0.0, 0.0]]])
    >>> op.exp(-nn.CTCLoss()(even, cd.tensor([[1, -1]]))).item()
    0.75
    """

    blank: int = 0
    labels: int | None = None
    zero_infinity: bool = False

    def per_sample(self, prediction: Expr, target: Expr) -> Expr:
        each = op.ctc_loss(
            prediction, target, blank=self.blank, reduction="none", zero_infinity=self.zero_infinity
        )
        count = op.sum(op.cast(target >= 0, "int64"), axis=1)
        return each / op.cast(op.maximum(count, 1), each.dtype)

    def target_spec(
        self, prediction_shape: Sequence[int], dtype: Any = "float32"
    ) -> tuple[Shape, DType]:
        if self.labels is None:
            raise ConfigError.build(
                "CTCLoss", expected="to know the length that labels are padded to", got="nothing",
                hint="say loss=nn.CTCLoss(labels=...), or train first: fit sees it by itself",
            )  # fmt: skip
        return (prediction_shape[0], self.labels), int64

    def for_targets(self, targets: Shape, predictions: Shape) -> Self:
        return replace(self, labels=targets[1]) if len(targets) == 2 else self

    def check_targets(self, targets: np.ndarray) -> None:
        is_label = targets >= 0
        holes = ~is_label[:, :-1] & is_label[:, 1:]
        if holes.any() or (targets == self.blank).any():
            sample = int(np.argmax(holes.any(1) | (targets == self.blank).any(1)))
            raise DataError.build(
                "targets for CTCLoss", expected=f"labels that are not the blank, {self.blank}, "
                "and then -1 up to the end of each row",
                got=f"{targets[sample].tolist()} in sample {sample}",
            )  # fmt: skip

    def check_room(self, targets: np.ndarray, predictions: Shape) -> None:
        """Refuse labels that are no classes of such predictions, or that have not the frames."""
        _, frames, classes = predictions
        if targets.size and int(targets.max()) >= classes:
            raise DataError.build(
                "targets for CTCLoss", expected=f"labels below {classes}, the number of classes",
                got=f"{int(targets.max())}",
                hint="give the last layer one more output than there are labels, for the blank",
            )  # fmt: skip
        needed = [ctc_frames(row[row >= 0]) for row in targets]
        if not self.zero_infinity and needed and max(needed) > frames:
            sample = int(np.argmax(needed))
            raise DataError.build(
                "targets for CTCLoss", expected=f"labels that {frames} frames have room for",
                got=f"some of sample {sample} that need {needed[sample]}",
                hint="let the network give more frames, or leave such samples out of training with "
                "nn.CTCLoss(zero_infinity=True)",
            )  # fmt: skip

    def task(self) -> Task:
        return Task(SEQUENCE, logits=True, blank=self.blank)

    def meaning(self, prediction: Expr) -> Expr:
        return op.softmax(prediction, axis=-1)

    def prediction_of(self, meaning: Expr) -> Expr:
        return op.log(op.maximum(meaning, float(np.finfo(np.float32).tiny)))
