"""How long measuring may take: at once, again, and in all."""

from __future__ import annotations

import pytest

from caldera.base.config import settings
from caldera.kernels.tuning import measure as tuning
from caldera.kernels.tuning.measure import TuningBudget


class Clock:
    """Time that passes only when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(tuning, "perf_counter", clock)
    monkeypatch.setattr(tuning, "BACK_A_SECOND", 0.1)
    return clock


def spend(budget: TuningBudget, clock: Clock, seconds: float) -> None:
    with budget.spending():
        clock.now += seconds


def test_what_is_spent_comes_back(clock: Clock) -> None:
    with settings.override(tune_budget_s=5.0):
        budget = TuningBudget()
        assert budget.left == 5.0
        spend(budget, clock, 5.0)
        assert budget.left == pytest.approx(0.0)
        clock.now += 10.0
        assert budget.left == pytest.approx(1.0)
        clock.now += 100.0
        assert budget.left == 5.0


def test_time_that_passed_before_is_not_saved_up(clock: Clock) -> None:
    with settings.override(tune_budget_s=5.0):
        budget = TuningBudget()
        clock.now += 10_000.0
        spend(budget, clock, 5.0)
        assert budget.left == pytest.approx(0.0)


@pytest.mark.parametrize("seconds", [5.0, 60.0, 600.0])
def test_measuring_all_the_time_it_may_takes_a_tenth(clock: Clock, seconds: float) -> None:
    """However much may be spent at once: a large budget must come to its end, too."""
    spent, passed = 0.0, 0.0
    with settings.override(tune_budget_s=seconds):
        budget = TuningBudget()
        while passed < 2000.0:
            now = max(budget.left, 0.0)
            spend(budget, clock, now)
            spent += now
            clock.now += 1.0
            passed += 1.0
    assert spent == pytest.approx(seconds + 0.1 * passed, abs=0.2)


def test_one_that_took_too_long_has_to_be_made_up_for(clock: Clock) -> None:
    with settings.override(tune_budget_s=1.0):
        budget = TuningBudget()
        spend(budget, clock, 3.0)
        clock.now += 10.0
        assert budget.left == pytest.approx(-1.0)
        budget.reset()
        assert budget.left == 1.0


def test_no_budget_stays_none(clock: Clock) -> None:
    with settings.override(tune_budget_s=0.0):
        budget = TuningBudget()
        clock.now += 1e6
        assert budget.left == 0.0
