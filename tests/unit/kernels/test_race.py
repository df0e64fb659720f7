"""How long kernels are raced, and who may say that a result is right."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from caldera.kernels.table import Call, Kernel
from caldera.kernels.tuning import correctness, measure
from caldera.kernels.tuning.measure import ROUNDS, Clock, TuningResult, expected_loss, race
from caldera.kernels.tuning.threads import on_fewer_threads
from tests.unit.kernels.fake_kernels import compute, nothing, product_node, wrongly


class Clocks:
    """Kernels that take the seconds they are told, the last ones for ever."""

    def __init__(self, **seconds: tuple[float, ...]) -> None:
        self.calls = dict.fromkeys(seconds, 0)
        self._left = {name: self._times(each) for name, each in seconds.items()}

    def _times(self, seconds: tuple[float, ...]) -> Iterator[float]:
        yield from seconds
        while True:
            yield seconds[-1]

    def run(self, *, thorough: bool = False, deadline: float = math.inf) -> TuningResult:
        outcome = TuningResult()
        race({name: self._clock(name) for name in self.calls}, outcome, deadline, thorough=thorough)
        return outcome

    def _clock(self, name: str) -> Clock:
        def clock(count: int) -> float:
            self.calls[name] += 1
            return next(self._left[name])

        return clock


@pytest.mark.parametrize("other", [2.0, 1.3, 1.0, 1.001])
def test_a_race_is_over_when_nothing_is_to_be_gained(other: float) -> None:
    clocks = Clocks(fast=(1.0,), slow=(other,))
    assert clocks.run().times == {"fast": 1.0, "slow": other}
    assert clocks.calls == {"fast": 2, "slow": 2}


def test_noise_makes_a_race_longer() -> None:
    clocks = Clocks(fast=(1.4, 1.2, 1.0), slow=(1.1, 1.2, 1.1, 1.1))
    assert clocks.run().times == {"fast": 1.0, "slow": 1.1}
    assert 3 < clocks.calls["fast"] < ROUNDS


def test_a_bad_start_is_forgiven() -> None:
    clocks = Clocks(fast=(60.0, 1.0), slow=(1.5,))
    assert clocks.run().times["fast"] == 1.0


def test_a_thorough_race_leaves_out_only_what_has_no_hope() -> None:
    clocks = Clocks(fast=(1.0,), equal=(1.0,), slow=(2.0,), hopeless=(4.0,))
    clocks.run(thorough=True)
    assert clocks.calls == {"fast": ROUNDS, "equal": ROUNDS, "slow": ROUNDS, "hopeless": 2}


def test_after_the_deadline_all_have_run_twice() -> None:
    clocks = Clocks(fast=(1.4, 1.2, 1.0), slow=(1.1, 1.2, 1.1, 1.1))
    clocks.run(deadline=0.0)
    assert clocks.calls == {"fast": 2, "slow": 2}


def test_what_a_choice_may_be_expected_to_lose() -> None:
    assert expected_loss(0.0, math.inf) == math.inf
    assert expected_loss(0.0, 0.2) == pytest.approx(0.2 / math.sqrt(2 * math.pi))
    assert expected_loss(0.5, 0.1) < 1e-6
    assert expected_loss(-0.5, 0.1) == pytest.approx(0.5, abs=1e-6)


# --- who is right


def _kernels(*works: Callable[[Call], object], module: str = "module {}") -> list[Kernel]:
    def kernel(index: int, work: Callable[[Call], object]) -> Kernel:
        def bind(call: Call) -> Callable[[], object]:
            return lambda: work(call)

        bind.__module__ = module.format(index)
        return Kernel("matmul", "cpu", f"{index}", bind)

    return [kernel(index, work) for index, work in enumerate(works)]


@pytest.mark.parametrize(
    ("works", "wrong", "asked"),
    [
        ((compute, compute, compute), set(), 0),
        ((compute, compute, wrongly), {"2"}, 0),
        ((wrongly, compute, compute), {"0"}, 1),
        ((compute, wrongly), {"1"}, 1),
        ((nothing, nothing), {"0", "1"}, 1),
        ((compute,), set(), 1),
        ((wrongly,), {"0"}, 1),
    ],
)
def test_two_that_agree_are_right_and_else_the_oracle_is_asked(
    monkeypatch: pytest.MonkeyPatch, works: tuple, wrong: set[str], asked: int
) -> None:
    oracle = correctness.evaluate
    questions = []
    monkeypatch.setattr(
        correctness, "evaluate", lambda *given: questions.append(given) or oracle(*given)
    )
    outcome = measure.measure(product_node(), _kernels(*works), 1.0)
    assert set(outcome.failures) == wrong
    assert set(outcome.times) == {str(index) for index in range(len(works))} - wrong
    assert len(questions) == asked
    measure.measure(product_node(), _kernels(*works), 1.0, thorough=True)
    assert len(questions) == asked + 1


def test_kernels_of_one_module_do_not_vouch_for_each_other() -> None:
    both = _kernels(wrongly, wrongly, module="the same")
    assert set(measure.measure(product_node(), both, 1.0).failures) == {"0", "1"}
    right = _kernels(compute, compute, module="the same")
    assert set(measure.measure(product_node(), right, 1.0).times) == {"0", "1"}


def test_kernels_of_one_source_do_not_confirm_each_other_wherever_they_are_written() -> None:
    copies = [replace(kernel, source="one") for kernel in _kernels(wrongly, wrongly)]
    assert set(measure.measure(product_node(), copies, 1.0).failures) == {"0", "1"}
    fewer = on_fewer_threads(_kernels(compute)[0])
    assert {kernel.origin for kernel in fewer} <= {"module 0"}


@pytest.mark.parametrize("seconds", [(3e-4, 1e-4), (1e-4, 3e-4)])
def test_the_best_time_of_the_yardstick_counts_as_that_of_kernels_does(
    seconds: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is disturbed for a moment is not disturbed for all of a race."""
    left = iter(seconds)
    monkeypatch.setattr(measure, "reference_seconds", lambda: next(left))
    kernel = Kernel("matmul", "cpu", "one", lambda call: lambda: compute(call))
    assert measure.measure(product_node(), [kernel], 1.0).pace == 1e-4
