"""Cases for CTC, against a sum over all ways to write labels over the frames."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.graph.ops import ctc
from tests.unit.ops.case import Case, numbers

_LABELS = np.array([[1, 1], [2, -1], [-1, -1]])
_COUNTS = np.array([2, 1, 0])
_FRAMES = np.array([4, 3, 2])


def _log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _ways(frames: int, classes: int, labels: list[int]) -> list[tuple[int, ...]]:
    return [
        way
        for way in product(range(classes), repeat=frames)
        if [each for each, _ in groupby(way) if each != 0] == labels
    ]


def _chances(x: np.ndarray, labels: np.ndarray, frames: np.ndarray, counts: np.ndarray) -> list:
    """For each sample, its ways and the probability of each."""
    found = []
    for row, label, length, count in zip(x, labels, frames, counts, strict=True):
        ways = _ways(int(length), x.shape[2], label[:count].tolist())
        found.append((ways, [np.exp(sum(row[t, c] for t, c in enumerate(way))) for way in ways]))
    return found


def _log_likelihood(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    return np.log([sum(chances) for _, chances in _chances(x, *given)])


def _posteriors(x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    result = np.zeros_like(x)
    for i, (ways, chances) in enumerate(_chances(x, *given)):
        for way, chance in zip(ways, chances, strict=True):
            for t, c in enumerate(way):
                result[i, t, c] += chance / sum(chances)
    return result


_GIVEN = (_log_softmax(numbers(3, 4, 3)), _LABELS, _FRAMES, _COUNTS)
CASES = [
    Case(
        "ctc_log_likelihood",
        lambda *x: Expr(ctc.ctc_log_likelihood(*[each.node for each in x], blank=0)),
        _GIVEN,
        _log_likelihood,
        order=2,
    ),
    Case(
        "ctc_posteriors",
        lambda *x: Expr(ctc.ctc_posteriors(*[each.node for each in x], blank=0)),
        _GIVEN,
        _posteriors,
    ),
    Case(
        "ctc_log_likelihood",
        lambda x: op.ctc_loss(x, _LABELS[:2], reduction="sum"),
        (numbers(2, 3, 3),),
        lambda x: (
            -_log_likelihood(_log_softmax(x), _LABELS[:2], np.array([3, 3]), _COUNTS[:2]).sum()
        ),
        name="all frames",
    ),
]
