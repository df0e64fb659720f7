"""What a loss is about, so that those who judge predictions do it in the same way."""

from __future__ import annotations

from dataclasses import dataclass

MULTICLASS, MULTILABEL, REGRESSION = "multi-class", "multi-label", "regression"
SEQUENCE = "sequence"


@dataclass(frozen=True)
class PredictionKind:
    """The kind of targets that a loss compares predictions with.

    - `multi-class`: one class of several, whose numbers lie along `axis` of a prediction.
    - `multi-label`: yes or no for each number by itself; with one number a sample, two classes.
    - `regression`: the numbers themselves.
    - `sequence`: labels in order, fewer than the frames that they are read from; the class `blank`
      says that a frame has none. With `lengths`, targets begin with how many frames count.

    With `logits`, sigmoid or softmax make probabilities of predictions.

    >>> from caldera.nn.losses import BinaryCrossEntropy
    >>> BinaryCrossEntropy().task()
    PredictionKind(kind='multi-label', axis=-1, logits=True, blank=None, lengths=False)
    """

    kind: str
    axis: int = -1
    logits: bool = False
    blank: int | None = None
    lengths: bool = False
