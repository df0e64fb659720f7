"""Medians and ratios with 95% confidence intervals, from times measured in rounds.

The times of a round come from one stretch of one process, so a disturbance affects every time in
it. The bootstrap therefore draws whole rounds. Rounds of two contestants measured in turns are
paired: a ratio draws the same rounds for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import numpy as np
from numpy.typing import NDArray

from caldera.errors import ConfigError

Rounds = Sequence[Sequence[float]]
Values = NDArray[np.float64]

DRAWS = 1000
_TAIL = 2.5
"""Per cent outside the interval on each side."""
_DEVIATIONS = 2.33
"""Of a normal distribution, within which 98 of 100 cases lie: who looks after every round, and
stops when it is clear, has more than one chance to be wrong."""
FAST = 10.0
"""Percentile of a round's times used as its fast time: other programs only make times longer."""


@dataclass(frozen=True)
class Estimate:
    """A number with the interval that holds it in 95 of 100 cases."""

    value: float
    low: float
    high: float


def median_of(rounds: Rounds) -> Estimate:
    """Return the median of all times, and its interval.

    >>> median_of([[1.0, 1.1], [0.9, 1.0], [1.0, 1.2]]).value
    1.0
    """
    return _estimate(_median(rounds), _drawn_medians(rounds, _draws(_count(rounds))))


def ratio_of(ours: Rounds, theirs: Rounds) -> Estimate:
    """Return the ratio of their time to ours, with its interval.

    >>> ratio_of([[1.0], [1.0]], [[2.0], [2.0]])
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    return mean_ratio_of([(ours, theirs)])


def mean_ratio_of(pairs: Sequence[tuple[Rounds, Rounds]]) -> Estimate:
    """Return the geometric mean of ratios, with its interval.

    >>> mean_ratio_of([([[1.0]], [[2.0]]), ([[1.0]], [[8.0]])]).value
    4.0
    """
    if not pairs:
        raise ConfigError.build("bench statistics", expected="times", got="none")
    logarithms = []
    drawn = []
    for ours, theirs in pairs:
        logarithms.append(math.log(_median(theirs) / _median(ours)))
        ours_drawn, theirs_drawn = _drawn_for_both(ours, theirs)
        drawn.append(np.log(theirs_drawn / ours_drawn))
    return _estimate(
        math.exp(math.fsum(logarithms) / len(pairs)), np.exp(np.mean(np.stack(drawn), axis=0))
    )


def paired_ratio(before: Rounds, after: Rounds) -> Estimate:
    """Return the ratio of `after` to `before` from interleaved rounds, with its interval.

    Hodges and Lehmann's estimate from the fast times of rounds, with Wilcoxon's interval: a few
    disturbed rounds shift neither, however long they took. Fewer than seven rounds allow no
    statement with 98% confidence.

    >>> paired_ratio([[1.0]] * 9 + [[50.0]], [[1.1]] * 10).value
    1.1
    """
    count = min(len(before), len(after))
    differences = fast_times(after[:count]) - fast_times(before[:count])
    first, second = np.triu_indices(count)
    means = np.sort((differences[first] + differences[second]) / 2)
    if not len(means):
        raise ConfigError.build("bench statistics", expected="rounds of both", got="none")
    spread = math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
    cut = math.floor(count * (count + 1) / 4 - _DEVIATIONS * spread)
    middle = math.exp(float(np.median(means)))
    if cut < 0:
        return Estimate(middle, 0.0, math.inf)
    return Estimate(middle, math.exp(means[cut]), math.exp(means[len(means) - 1 - cut]))


def fast_times(rounds: Rounds) -> Values:
    """Return the logarithm of each round's fast time.

    >>> fast_times([[1.0, 5.0]] * 2).shape
    (2,)
    """
    return np.log([_fast(each) for each in rounds if each])


def _fast(times: Sequence[float]) -> float:
    """Return the percentile as np.percentile, which takes 100 times longer for short lists."""
    ordered = sorted(times)
    place = FAST / 100 * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def summed(parts: Sequence[Rounds]) -> list[list[float]]:
    """Return rounds of a whole: the sums of the parts' medians, round by round.

    >>> summed([[[1.0], [2.0]], [[10.0], [10.0, 30.0]]])
    [[11.0], [22.0]]
    """
    count = min(len(part) for part in parts)
    return [[math.fsum(float(np.median(part[i])) for part in parts)] for i in range(count)]


def _drawn_for_both(ours: Rounds, theirs: Rounds) -> tuple[Values, Values]:
    if len(ours) == len(theirs):
        draws = _draws(_count(ours))
        return _drawn_medians(ours, draws), _drawn_medians(theirs, draws)
    # A contestant lost rounds: they are no longer paired, and are drawn independently.
    return (
        _drawn_medians(ours, _draws(_count(ours))),
        _drawn_medians(theirs, _draws(_count(theirs), seed=1)),
    )


def _count(rounds: Rounds) -> int:
    if not rounds or not all(rounds):
        raise ConfigError.build(
            "bench statistics", expected="rounds with times in each", got=f"{len(rounds)} rounds"
        )
    return len(rounds)


def _draws(count: int, seed: int = 0) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, count, (DRAWS, count))


def _median(rounds: Rounds) -> float:
    _count(rounds)
    return float(np.median(np.concatenate([np.asarray(each, np.float64) for each in rounds])))


def _drawn_medians(rounds: Rounds, draws: NDArray[np.int64]) -> Values:
    """The median of each draw: all times are sorted once, and count as often as their round."""
    times = np.concatenate([np.asarray(each, np.float64) for each in rounds])
    round_of = np.repeat(np.arange(len(rounds)), [len(each) for each in rounds])
    order = np.argsort(times, kind="stable")
    times, round_of = times[order], round_of[order]
    counts = (draws[:, :, None] == np.arange(len(rounds))).sum(1, dtype=np.int32)
    before = np.cumsum(counts[:, round_of], axis=1, dtype=np.int32)
    total = before[:, -1:]
    lower = np.argmax(2 * before >= total, axis=1)
    return (times[lower] + times[np.argmax(2 * before > total, axis=1)]) / 2


def _estimate(value: float, drawn: Values) -> Estimate:
    low, high = np.percentile(drawn, [_TAIL, 100 - _TAIL])
    return Estimate(value, min(float(low), value), max(float(high), value))


_STEPS = 20_000
"""Number of steps of the integral over the tails of a distribution."""


def welch_chance(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the two-sided p-value of Welch's t-test that two samples have equal means.

    >>> welch_chance([1.0, 1.0], [1.0, 1.0]), welch_chance([1.0], [2.0])
    (1.0, 1.0)
    """
    if len(old) < 2 or len(new) < 2:
        # A single round has no spread, so no difference can be shown.
        return 1.0
    shift = fmean(new) - fmean(old)
    parts = [variance(each) / len(each) for each in (old, new)]
    error = math.sqrt(sum(parts))
    if error == 0.0:
        return 0.0 if shift else 1.0
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(each) - 1) for part, each in zip(parts, (old, new), strict=True)
    )
    return _both_tails(abs(shift) / error, degrees)


def _both_tails(t: float, degrees: float) -> float:
    """Return the chance of a t as large.

    >>> round(_both_tails(2.228, 10), 3)
    0.05
    """
    # With t = sqrt(n) tan(a) the density is a power of the cosine, over a finite range.
    start = math.atan(t / math.sqrt(degrees))
    angles = np.linspace(0.0, math.pi / 2, _STEPS)
    density = np.cos(angles) ** (degrees - 1.0) if degrees > 1.0 else np.ones_like(angles)
    density = np.where(np.isfinite(density), density, 0.0)
    total = np.trapezoid(density, angles)
    return float(min(1.0, np.trapezoid(np.where(angles >= start, density, 0.0), angles) / total))
