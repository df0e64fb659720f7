"""Estimates of the share of luck in the best of many trials.

Two kinds of luck are distinguished:

- **of drawing**: another search with the same number of random trials would find another best. The
  expected maximum of n draws (Dodge et al., "Show Your Work", EMNLP 2019) is estimated from the
  observed values. The plain estimate is too low by about half a standard deviation of the maximum;
  the jackknife removes most of this bias.
- **of measuring**: a value is measured on finitely many samples with one seed. The best of many is
  the value with a favourable error (the winner's curse). With a known standard deviation of that
  error, the search is simulated: true values with the spread of the measured ones less their
  errors, plus new errors. The result is the mean error of the winners.

The tests compare both with simulations in which the truth is known. The first estimate is off by
less than a fifth of the maximum's own spread. The second is off by less than a fifth if the true
values are normally distributed, and up to a third too small if they crowd at the top.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from caldera.base.arguments import require

_REPEATS = 1000
_LIKELY = (0.05, 0.95)


@dataclass(frozen=True)
class Luck:
    """Estimated share of luck in the best of `trials` values.

    - `best`: the best value; `expected`: the expected best of the same number of random trials;
      `low`, `high`: the interval that contains nine of ten such bests.
    - `noise`: the standard deviation of the measurement error, if it is known; `optimism`: the
      expected measurement error of the best value, None if `noise` is unknown.

    >>> from caldera import search
    >>> search.luck([0.90, 0.95, 0.93, 0.94], noise=0.01).trials
    4
    """

    trials: int
    best: float
    expected: float
    low: float
    high: float
    noise: float | None = None
    optimism: float | None = None
    larger_is_better: bool = True

    @property
    def drawn(self) -> float:
        """Advantage of the best over the expected best of random trials; may be negative."""
        gain = self.best - self.expected
        return gain if self.larger_is_better else -gain

    @property
    def honest(self) -> float:
        """Expected score of the best trial on data not used for selection."""
        if self.optimism is None:
            return self.best
        return self.best - self.optimism if self.larger_is_better else self.best + self.optimism

    def __str__(self) -> str:
        text = (
            f"best of {self.trials} trials {self.best:.4g}; the same number of random trials is "
            f"expected to reach {self.expected:.4g} (9 in 10 times {self.low:.4g} to "
            f"{self.high:.4g})"
        )
        if self.optimism is None:
            return text
        return (
            f"{text}; about {self.optimism:.2g} is likely measurement luck (one standard "
            f"deviation is {self.noise:.2g}): expect {self.honest:.4g} on new data"
        )


def luck(
    values: Sequence[float], *, larger_is_better: bool = True, noise: float | None = None
) -> Luck:
    """Estimate the share of luck in the best of these values, ignoring non-finite ones.

    `noise` is the standard deviation of a measured value, for instance over seeds. For an accuracy
    a on n samples it is sqrt(a * (1 - a) / n), see `accuracy_noise`.

    >>> print(luck([0.90, 0.95, 0.93, 0.94]))
    best of 4 trials 0.95; the same number of random trials is expected to reach 0.9503 ...
    >>> luck([0.90, 0.95, 0.93, 0.94], noise=0.01).honest < 0.95
    True
    """
    found = np.asarray([value for value in values if math.isfinite(value)], float)
    require(len(found), "luck", "at least one value", "none that is finite")
    require(
        noise is None or (math.isfinite(noise) and noise >= 0), "luck", "noise >= 0", repr(noise)
    )
    sign = 1.0 if larger_is_better else -1.0
    upward = np.sort(sign * found)
    expected = expected_maximum(upward)
    if larger_is_better and upward[0] >= 0 and upward[-1] <= 1:
        # An accuracy ends at 1, and so do its expectations.
        expected = min(expected, 1.0)
    # The distribution of the maximum of n draws is the n-th power of a single draw's.
    likely = np.arange(1, len(upward) + 1) / len(upward)
    low, high = (
        float(upward[np.searchsorted(likely ** len(upward), part - 1e-12)]) for part in _LIKELY
    )
    ends = (low, high) if larger_is_better else (-high, -low)
    return Luck(
        len(upward),
        sign * float(upward[-1]),
        sign * expected,
        *ends,
        noise,
        None if noise is None else optimism(upward, noise),
        larger_is_better,
    )


def expected_maximum(values: Sequence[float] | np.ndarray, draws: int | None = None) -> float:
    """Estimate the expected maximum of `draws` values drawn from the same distribution.

    `draws` defaults to the number of values. The weights follow Dodge et al.; the jackknife
    corrects them.

    >>> round(expected_maximum([1.0, 2.0, 3.0]), 3)
    3.0
    """
    ordered = np.sort(np.asarray(values, float))
    count = len(ordered)
    draws = count if draws is None else draws
    plain = float(ordered @ _weights(count, draws))
    if count == 1:
        return plain
    # The same estimate without each of the values in turn: those before it keep their weights,
    # those after it move one place down.
    weights = _weights(count - 1, draws)
    before = np.concatenate([[0.0], np.cumsum(ordered[:-1] * weights)])
    after = np.concatenate([np.cumsum((ordered[1:] * weights)[::-1])[::-1], [0.0]])
    without = float(np.mean(before + after))
    return count * plain - (count - 1) * without


def _weights(count: int, draws: int) -> np.ndarray:
    """Return the probability that each of `count` sorted values is the largest of `draws`."""
    steps = (np.arange(count + 1) / count) ** draws
    return np.diff(steps)


def optimism(values: np.ndarray, noise: float, *, repeats: int = _REPEATS) -> float:
    """Return the mean error of the best among values (larger is better) with this noise."""
    if not noise:
        return 0.0
    middle = np.median(values)
    # Bad trials can be arbitrarily bad: only those above the middle say how the good ones spread.
    upper = values[values >= middle]
    spread = float(np.mean((upper - middle) ** 2))
    kept = math.sqrt(max(0.0, 1.0 - noise**2 / spread)) if spread else 0.0
    truth = middle + kept * (values - middle)
    errors = np.random.default_rng(0).normal(scale=noise, size=(repeats, len(values)))
    winners = np.argmax(truth + errors, axis=1)
    return float(errors[np.arange(repeats), winners].mean())


def accuracy_noise(accuracy: float, samples: int) -> float:
    """Return the standard deviation of an accuracy measured on `samples` samples.

    >>> round(accuracy_noise(0.9, 100), 3)
    0.03
    """
    return math.sqrt(max(accuracy * (1.0 - accuracy), 0.0) / samples)
