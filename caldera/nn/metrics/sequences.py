"""Error rates of label sequences: character and word error rates.

As metrics they read predictions frame by frame, take the most likely class of each frame, and drop
repeated and blank classes (greedy decoding). The edits to the targets are counted in the graph, on
any device. For texts from any source, use `error_rate`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, DataError, ShapeError
from caldera.nn.losses import SEQUENCE, PredictionKind
from caldera.nn.metrics.base import Metric, metrics, ratio, sample_factors

NONE = -1
"""A place of a sequence at which no label stands."""


def edit_distance(found: str | Sequence[Any], wanted: str | Sequence[Any]) -> int:
    """Return the edit distance: the fewest insertions, deletions and substitutions.

    >>> from caldera.nn.metrics import edit_distance
    >>> edit_distance("kitten", "sitting"), edit_distance(["a", "b"], ["b"])
    (3, 1)
    """
    for name, given in (("found", found), ("wanted", wanted)):
        # Rows of numbers are not equal or unequal as a whole, nor are records.
        whole = all(getattr(each, "ndim", 0) == 0 for each in given)
        if getattr(given, "ndim", 1) != 1 or not whole or np.asarray(given).dtype.kind == "V":
            raise ConfigError.build(
                "edit_distance",
                expected=f"{name}, a text or a sequence of words or numbers",
                got=f"one of shape {np.shape(given)}",
                hint="give one sequence at a time",
            )
    row = list(range(len(wanted) + 1))
    for i, here in enumerate(found, 1):
        before, row[0] = row[0], i
        for j, there in enumerate(wanted, 1):
            best = min(before + (here != there), row[j] + 1, row[j - 1] + 1)
            before, row[j] = row[j], best
    return row[-1]


def error_rate(found: Sequence[str], wanted: Sequence[str], unit: str = "word") -> float:
    """Return the edits per word (WER) or character (CER) of all wanted texts.

    >>> from caldera.nn.metrics import error_rate
    >>> error_rate(["the cat sat"], ["the cat sat down"]), error_rate(["cab"], ["cat"], "character")
    (0.25, 0.3333333333333333)
    """
    require(unit in ("word", "character"), "error_rate", "unit='word' or 'character'", repr(unit))
    require(
        len(found) == len(wanted) and not isinstance(found, str) and not isinstance(wanted, str),
        "error_rate",
        "equally long lists of predicted and target texts",
        f"{len(found)} and {len(wanted)}",
        error=DataError,
    )
    pairs = [
        (a.split(), b.split()) if unit == "word" else (list(a), list(b))
        for a, b in zip(found, wanted, strict=True)
    ]
    total = sum(len(b) for _, b in pairs)
    require(total, "error_rate", f"target texts with at least one {unit}", error=DataError)
    return sum(edit_distance(a, b) for a, b in pairs) / total


def _edits(found: Expr, wanted: Expr) -> Expr:
    """Return the edit distance of each sample, of sequences (N, length) in which -1 is no label.

    One row of the usual table at a time. The best way along a row is a running minimum, since
    each step along it costs the same: 1 for a label, 0 for none.
    """
    steps = op.cumsum(op.cast(wanted >= 0, "float32"), axis=1)
    steps = op.pad(steps, ((0, 0), (1, 0)))
    far = float(wanted.shape[1] + found.shape[1] + 1)

    def step(row: Expr, label: Expr) -> tuple[Expr, None]:
        same = wanted == op.reshape(label, (-1, 1))
        change = row[:, :-1] + op.where(same, 0.0, 1.0)
        change = op.pad(op.where(wanted >= 0, change, far), ((0, 0), (1, 0)), value=far)
        best = op.minimum(row + 1.0, change)
        new = op.cummin(best - steps, axis=1)[0] + steps
        return op.where(op.reshape(label >= 0, (-1, 1)), new, row), None

    last, _ = op.scan(step, steps, op.transpose(found))
    return last[:, -1]


def _greedy(prediction: Expr, blank: int, frames: Expr | None) -> Expr:
    """Return the most likely class of each frame, (N, T).

    Frames that are blank, repeat the previous class or come after the valid frames have no class.
    """
    best = op.argmax(prediction, axis=-1)
    before = op.pad(best[:, :-1], ((0, 0), (1, 0)), value=blank)
    said = op.logical_and(best != blank, best != before)
    if frames is not None:
        said = op.logical_and(said, op.less(np.arange(best.shape[1]), op.reshape(frames, (-1, 1))))
    return op.where(said, best, NONE)


def _words(labels: Expr, separator: int) -> Expr:
    """Return a number for each word at the position of its end.

    The result has one position after the last label. The number is a hash of 31 bits of the word
    labels: two words of a sample collide about once in a billion pairs.
    """
    modulus = (1 << 31) - 1
    closed = op.pad(labels, ((0, 0), (0, 1)), value=separator)

    def step(word: Expr, label: Expr) -> tuple[Expr, Expr]:
        ends = label == separator
        longer = (word * 1_000_003 + label + 1) % modulus
        new = op.where(ends, 0, op.where(label >= 0, longer, word))
        return new, op.where(op.logical_and(ends, word > 0), word, NONE)

    start = op.cast(op.zeros((labels.shape[0],)), "int64")
    _, found = op.scan(step, start, op.transpose(op.cast(closed, "int64")))
    return op.transpose(found)


class _ErrorRate(Metric):
    """Edits divided by the length of the wanted sequences, both summed over samples."""

    blank: int | None
    _blank: ClassVar[int] = 0
    _lengths: ClassVar[bool] = False

    def for_task(self, task: PredictionKind | None) -> Self:
        if task is None or task.kind != SEQUENCE:
            kind = "another one" if task is None else f"a {task.kind} loss"
            raise ConfigError.build(
                self.name,
                expected="a loss of sequences, such as loss='ctc'",
                got=kind,
                hint="use metrics=['accuracy'] for classes",
            )
        made = copy.copy(self)
        object.__setattr__(made, "_blank", task.blank or 0)
        object.__setattr__(made, "_lengths", task.lengths)
        return made

    def _labels(self, prediction: Expr, target: Expr) -> tuple[Expr, Expr]:
        """Return the decoded and the wanted labels, with -1 for no label."""
        blank = self._blank if self.blank is None else self.blank
        target = op.cast(target, "int64")
        labels, frames = (target[:, 1:], target[:, 0]) if self._lengths else (target, None)
        return _greedy(prediction, blank, frames), labels

    def sums(self, prediction: Any, target: Any, weights: Any = None) -> dict[str, Expr]:
        require(
            len(prediction.shape) == 3 and len(target.shape) == 2,
            self.name,
            "predictions (N, frames, classes) and targets (N, labels)",
            f"{tuple(prediction.shape)} and {tuple(target.shape)}",
            error=ShapeError,
        )
        found, wanted = self._labels(prediction, target)
        factors = sample_factors(weights, prediction)
        edits = op.cast(_edits(found, wanted), "float64")
        count = op.sum(op.cast(wanted >= 0, "float64"), axis=1)
        return {"edits": op.sum(edits * factors), "count": op.sum(count * factors)}

    def result(self, sums: Mapping[str, np.ndarray]) -> float:
        return float(ratio(sums["edits"], sums["count"], empty=np.nan))


@metrics.register("cer")
@dataclass(frozen=True)
class CharacterErrorRate(_ErrorRate):
    """Wrong, missing and superfluous labels of greedy decoding, per label of the targets.

    By default `blank` is read from the loss.

    >>> import caldera as cd
    >>> import numpy as np
    >>> from caldera.nn.metrics import CharacterErrorRate
    >>> frames = cd.tensor(np.eye(4, dtype="float32")[[[1, 1, 0, 2, 3]]])
    >>> sums = CharacterErrorRate().sums(frames, cd.tensor([[1, 2, 2, 3]]))
    >>> CharacterErrorRate().result({name: value.numpy() for name, value in sums.items()})
    0.25
    """

    blank: int | None = None


@metrics.register("wer")
@dataclass(frozen=True)
class WordErrorRate(_ErrorRate):
    """Wrong, missing and superfluous words of greedy decoding, per word of the targets.

    Words are separated by the label `separator`, the number of the space.

    >>> import caldera as cd
    >>> import numpy as np
    >>> from caldera.nn.metrics import WordErrorRate
    >>> frames = cd.tensor(np.eye(4, dtype="float32")[[[2, 1, 3, 1, 2]]])
    >>> sums = WordErrorRate(separator=1).sums(frames, cd.tensor([[2, 1, 3, 1, 3]]))
    >>> round(WordErrorRate(separator=1).result({k: v.numpy() for k, v in sums.items()}), 3)
    0.333
    """

    separator: int = 1
    blank: int | None = None

    def _labels(self, prediction: Expr, target: Expr) -> tuple[Expr, Expr]:
        found, wanted = super()._labels(prediction, target)
        return _words(found, self.separator), _words(wanted, self.separator)
