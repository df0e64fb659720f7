"""Connectionist temporal classification (CTC): a loss for labels without places."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.node import Node, describe
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import ctc
from caldera.core.graph.ops.activation import log_softmax
from caldera.core.graph.ops.base import broadcast_to, cast, sum_
from caldera.core.graph.ops.elementwise import div, equal, greater_equal, maximum, neg, where
from caldera.core.graph.ops.leaf import constant
from caldera.core.tensor import Tensor
from caldera.core.tensor.dtype import int64
from caldera.errors import DataError, ShapeError
from caldera.op.arguments import as_count
from caldera.op.loss import reduced

_NAME = "ctc_loss"


def ctc_loss(
    logits: Any,
    labels: Any,
    input_lengths: Any = None,
    label_lengths: Any = None,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Expr:
    """-log of the likelihood of labels that stand somewhere in a sequence of frames, in this order.

    `logits` are (samples, frames, classes); log-probabilities are logits too. `labels` are
    (samples, most labels), padded with -1, or with anything if `label_lengths` says how many there
    are. `input_lengths` says how many frames of each sample count; by default all do. The class
    `blank` stands for no label, and a label that follows an equal one needs a blank between them.

    The mean is that of PyTorch: over samples, of the loss divided by the number of labels (at least
    1). Labels that need more frames than there are have an infinite loss and no gradient; they are
    refused where labels and lengths are plain arrays, unless `zero_infinity` makes their loss 0.
    Labels that are no class, or the blank, are refused there too, and give NaN otherwise.

    >>> import caldera as cd
    >>> from caldera import op
    >>> even = cd.tensor([[[0.0, 0.0], [0.0, 0.0]]])
    >>> op.exp(-op.ctc_loss(even, [[1]])).item()
    0.75
    >>> op.ctc_loss(even, [[1, 1]])
    Traceback (most recent call last):
    caldera.errors.DataError: op.ctc_loss: expected at least 3 frames for the labels of sample 0 (2,
    and 1 blanks between equal ones), got 2; make frames shorter or leave the sample out;
    zero_infinity=True counts its loss as 0
    """
    scores = as_float(lift(logits))
    given = lift(labels)
    where_ = location(_NAME)
    if len(scores.shape) != 3 or len(given.shape) != 2:
        raise ShapeError.build(
            where_,
            expected="logits (samples, frames, classes) and labels (samples, labels)",
            got=f"{describe(scores)} and {describe(given)}",
            hint="labels of different lengths are padded with -1",
        )
    samples, frames, _ = scores.shape
    number = as_count(blank, "blank", _NAME, least=0)
    _check_values(labels, input_lengths, label_lengths, scores.shape, number, zero_infinity)
    if label_lengths is None:
        is_label = greater_equal(cast(given, int64), constant(0, int64))
        counts = sum_(cast(is_label, int64), (1,))
    else:
        counts = lift(label_lengths)
    lengths = _all(frames, samples) if input_lengths is None else lift(input_lengths)
    logarithms = log_softmax(scores, axis=2)
    losses = neg(ctc.ctc_log_likelihood(logarithms, given, lengths, counts, blank=number))
    if zero_infinity:
        infinite = equal(losses, constant(float("inf"), losses.dtype))
        losses = where(infinite, constant(0, losses.dtype), losses)
    if reduction == "mean":
        some = maximum(cast(counts, int64), constant(1, int64))
        losses = div(losses, cast(some, losses.dtype))
    return reduced(losses, reduction, _NAME)


def _all(frames: int, samples: int) -> Node:
    return broadcast_to(constant(frames, int64), (samples,))


def _plain(given: Any) -> np.ndarray | None:
    return None if given is None or isinstance(given, Expr | Tensor) else np.asarray(given)


def _check_values(
    labels: Any,
    input_lengths: Any,
    label_lengths: Any,
    shape: tuple[int, ...],
    blank: int,
    zero_infinity: bool,
) -> None:
    """Refuse what cannot be right, where labels are written as a plain array."""
    rows, counts, frames = _plain(labels), _plain(label_lengths), _plain(input_lengths)
    most = None if rows is None or rows.ndim != 2 else rows.shape[1]
    _check_lengths("input_lengths", frames, shape[0], shape[1])
    _check_lengths("label_lengths", counts, shape[0], most)
    if rows is None or (label_lengths is not None and counts is None) or rows.ndim != 2:
        return
    counts = (rows >= 0).sum(1) if counts is None else counts
    if input_lengths is None:
        frames = np.full(len(rows), shape[1])
    for sample, row in enumerate(rows):
        used = row[: counts[sample]]
        wrong = used[(used < 0) | (used >= shape[2]) | (used == blank)]
        if wrong.size:
            raise DataError.build(
                location(_NAME),
                expected=f"labels from 0 to {shape[2] - 1} without the blank, "
                f"{blank}, padded with -1 at the end",
                got=f"{wrong[0]} in sample {sample}",
            )
        needed = ctc_frames(used)
        if frames is not None and not zero_infinity and frames[sample] < needed:
            raise DataError.build(
                location(_NAME),
                expected=f"at least {needed} frames for the labels of sample {sample} ({len(used)},"
                f" and {needed - len(used)} blanks between equal ones)",
                got=f"{frames[sample]}",
                hint="make frames shorter or leave the sample out; zero_infinity=True counts its "
                "loss as 0",
            )


def _check_lengths(name: str, given: np.ndarray | None, samples: int, most: int | None) -> None:
    if given is None or given.dtype.kind not in "iu":
        return
    if given.shape != (samples,):
        raise ShapeError.build(
            location(_NAME),
            expected=f"{name} of shape {(samples,)}, one a sample",
            got=f"shape {given.shape}",
        )
    wrong = given < 0 if most is None else (given < 0) | (given > most)
    if wrong.any():
        sample = int(np.argmax(wrong))
        end = "" if most is None else f" to {most}"
        raise DataError.build(
            location(_NAME),
            expected=f"{name} from 0{end}",
            got=f"{given[sample]} in sample {sample}",
        )


def ctc_frames(labels: np.ndarray) -> int:
    """The frames that labels need: one each, and one for a blank between equal ones."""
    return len(labels) + int(np.count_nonzero(labels[1:] == labels[:-1]))
