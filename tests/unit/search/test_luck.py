"""What the best owes to luck, compared with simulations in which the truth is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from caldera import search
from caldera.errors import ConfigError
from caldera.search.luck import expected_maximum, optimism

Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
SHAPES: dict[str, Draw] = {
    "uniform": lambda random, size: random.uniform(size=size),
    "normal": lambda random, size: random.normal(size=size),
    "accuracies": lambda random, size: random.beta(5, 1.5, size=size),
    "heavy tail": lambda random, size: random.exponential(size=size),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [8, 60])
def test_the_expected_maximum_is_right_on_average(shape: str, count: int) -> None:
    values = SHAPES[shape](np.random.default_rng(0), (800, count))
    best = values.max(axis=1)
    found = np.array([expected_maximum(row) for row in values])
    # A fifth of the spread of the maximum; the plain estimate is off by half of it.
    assert abs(found.mean() - best.mean()) < 0.2 * best.std()


@pytest.mark.parametrize("noise", [0.3, 1.0])
@pytest.mark.parametrize("count", [10, 100])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_kind_error_of_a_winner_is_found(noise: float, count: int, spread: float) -> None:
    random = np.random.default_rng(1)
    truth = spread * random.normal(size=(4000, count))
    errors = noise * random.normal(size=truth.shape)
    measured = truth + errors
    winners = measured.argmax(axis=1)
    owed = errors[np.arange(len(truth)), winners].mean()
    found = np.mean([optimism(row, noise, repeats=200) for row in measured[:150]])
    assert found == pytest.approx(owed, rel=0.2, abs=0.05 * noise)


def test_where_trials_crowd_at_the_top_the_error_is_found_too_small_but_found() -> None:
    random = np.random.default_rng(2)
    truth = -random.exponential(size=(2000, 100))
    errors = 0.2 * random.normal(size=truth.shape)
    owed = errors[np.arange(len(truth)), (truth + errors).argmax(axis=1)].mean()
    found = np.mean([optimism(row, 0.2, repeats=200) for row in (truth + errors)[:100]])
    assert 0.67 * owed < found < 1.1 * owed


def test_a_best_that_stands_alone_is_luckier_than_one_among_others() -> None:
    among = search.luck([0.90, 0.91, 0.92, 0.93, 0.94, 0.95])
    alone = search.luck([0.50, 0.51, 0.52, 0.53, 0.54, 0.95])
    assert alone.drawn > among.drawn
    assert alone.low < 0.6
    assert alone.high == 0.95


def test_where_small_is_good_all_is_turned() -> None:
    values = [0.9, 0.7, 0.8, 0.4]
    up, down = (
        search.luck([-v for v in values], noise=0.1),
        search.luck(values, larger_is_better=False, noise=0.1),
    )
    assert (down.best, down.expected) == (-up.best, -up.expected)
    assert (down.low, down.high) == (-up.high, -up.low)
    assert down.drawn == pytest.approx(up.drawn)
    assert down.honest > down.best


def test_accuracies_are_not_expected_above_1() -> None:
    assert search.luck([0.2, 0.9, 1.0]).expected <= 1.0


@pytest.mark.parametrize(
    ("values", "noise", "said"),
    [
        ([], None, "at least one value"),
        ([float("nan")], None, "none that is finite"),
        ([1.0], -1.0, "noise >= 0"),
        ([1.0], float("nan"), "noise >= 0"),
    ],
)
def test_what_says_nothing_is_refused(values: list[float], noise: float | None, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        search.luck(values, noise=noise)
