"""Medians and ratios with intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldera.bench.statistics import mean_ratio_of, median_of, ratio_of, summed
from caldera.errors import ConfigError

TIMES = st.lists(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=6), min_size=1, max_size=6)


@given(TIMES)
def test_an_interval_holds_its_median_and_lies_within_the_times(rounds: list[list[float]]) -> None:
    found = median_of(rounds)
    flat = [each for times in rounds for each in times]
    assert found.value == pytest.approx(np.median(flat))
    assert min(flat) <= found.low <= found.value <= found.high <= max(flat)


@given(TIMES, st.floats(0.1, 10))
def test_a_ratio_is_one_over_the_other_way_round(rounds: list[list[float]], factor: float) -> None:
    others = [[time * factor for time in times] for times in rounds]
    found, back = ratio_of(rounds, others), ratio_of(others, rounds)
    assert found.value == pytest.approx(factor)
    # Rounds are paired: what slows both down does not widen the interval.
    assert found.low == pytest.approx(factor, rel=1e-6)
    assert found.high == pytest.approx(factor, rel=1e-6)
    assert back.value == pytest.approx(1 / factor)


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        rounds = (10 + draw.standard_normal((15, 1))).tolist()
        found = median_of(rounds)
        held += found.low <= 10 <= found.high
    assert 175 <= held <= 200


def test_rounds_that_wander_together_widen_the_interval() -> None:
    draw = np.random.default_rng(2)
    noise = draw.standard_normal((6, 50))
    steady = median_of((10 + 0.1 * noise).tolist())
    wandering = median_of((10 + 0.1 * noise + draw.standard_normal((6, 1))).tolist())
    assert wandering.high - wandering.low > 5 * (steady.high - steady.low)


def test_rounds_that_were_lost_still_give_a_ratio() -> None:
    found = ratio_of([[1.0], [1.0], [1.0]], [[2.0], [2.0]])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_a_geometric_mean() -> None:
    found = mean_ratio_of([([[1.0]], [[2.0]]), ([[2.0]], [[1.0]])])
    assert found.value == pytest.approx(1.0)


def test_parts_are_added_round_by_round() -> None:
    assert summed([[[1.0, 3.0], [4.0]], [[10.0], [20.0], [30.0]]]) == [[12.0], [24.0]]


@pytest.mark.parametrize("rounds", [[], [[1.0], []]])
def test_no_times_are_an_error(rounds: list[list[float]]) -> None:
    with pytest.raises(ConfigError, match="expected rounds with times"):
        median_of(rounds)
