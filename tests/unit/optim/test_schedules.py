"""Schedules against their formulas; rules that act between epochs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim


def _rates(schedule: optim.Schedule, steps: range) -> list[float]:
    step = op.input("step", (), dtype="float64")
    rate = schedule.rate(step)
    return [rate.eval(step=float(now)).item() for now in steps]


def test_step_decay() -> None:
    steps = range(0, 100, 3)
    seen = _rates(optim.StepDecay(0.8, factor=0.5, every=20), steps)
    np.testing.assert_allclose(seen, [0.8 * 0.5 ** (now // 20) for now in steps], rtol=1e-14)
    seen = _rates(optim.StepDecay(0.8, factor=0.5, at=[30, 60, 61]), steps)
    expected = [0.8 * 0.5 ** ((now >= 30) + (now >= 60) + (now >= 61)) for now in steps]
    np.testing.assert_allclose(seen, expected, rtol=1e-14)


def test_exponential() -> None:
    steps = range(0, 40, 7)
    seen = _rates(optim.Exponential(0.8, factor=0.9, steps=10), steps)
    np.testing.assert_allclose(seen, [0.8 * 0.9 ** (now / 10) for now in steps], rtol=1e-14)


def test_cosine_rises_then_falls() -> None:
    def expected(now: int) -> float:
        if now < 10:
            return 0.8 * (now + 1) / 11
        return 0.1 + 0.35 * (1 + math.cos(math.pi * min((now - 10) / 40, 1.0)))

    steps = range(0, 60, 3)
    seen = _rates(optim.Cosine(0.8, steps=50, warm_up=10, final=0.1), steps)
    np.testing.assert_allclose(seen, [expected(now) for now in steps], rtol=1e-12)


def test_linear_warm_up_leads_to_what_follows() -> None:
    steps = range(60)
    by_parts = _rates(optim.LinearWarmUp(10, then=optim.Cosine(0.8, steps=40, final=0.1)), steps)
    whole = _rates(optim.Cosine(0.8, steps=50, warm_up=10, final=0.1), steps)
    np.testing.assert_allclose(by_parts, whole, rtol=1e-12)
    seen = _rates(optim.LinearWarmUp(3, then=0.9, start=0.1), range(6))
    # The first step has the rate of the start, as with LinearLR.
    np.testing.assert_allclose(seen, [0.1, 1.1 / 3, 1.9 / 3, 0.9, 0.9, 0.9], rtol=1e-14)


def test_no_step_of_a_rise_without_a_start_has_the_rate_0() -> None:
    seen = _rates(optim.LinearWarmUp(3, then=1.0), range(5))
    np.testing.assert_allclose(seen, [0.25, 0.5, 0.75, 1.0, 1.0], rtol=1e-14)


def test_a_rise_towards_a_schedule_begins_at_its_start() -> None:
    then = optim.Exponential(0.8, factor=0.5)
    seen = _rates(optim.LinearWarmUp(2, then=then, start=0.2), range(4))
    np.testing.assert_allclose(seen, [0.2, 0.5, 0.8, 0.4], rtol=1e-14)


def test_one_cycle() -> None:
    def between(first: float, last: float, part: float) -> float:
        return last + (first - last) / 2 * (1 + math.cos(math.pi * part))

    top = 0.25 * 40 - 1
    expected = [
        between(0.05, 0.5, now / top) if now < top else between(0.5, 5e-4, (now - top) / (39 - top))
        for now in range(40)
    ]
    schedule = optim.OneCycle(0.5, steps=40, rising=0.25, start_divisor=10, final_divisor=100)
    np.testing.assert_allclose(_rates(schedule, range(40)), expected, rtol=1e-12)
    assert _rates(schedule, range(60, 61)) == pytest.approx([5e-4])


def test_a_schedule_is_followed_inside_one_plan() -> None:
    w = op.var("w", (), fill=cd.constant(0.0), dtype="float64")
    optimizer = optim.GradientDescent(optim.Cosine(1.0, steps=10))
    plan = cd.compile(optimizer.train(w * 1.0, [w]))
    rates, told = [], []
    for _ in range(4):
        before = w.numpy().item()
        told.append(optimizer.current_rate())
        plan.run()
        rates.append(before - w.numpy().item())
    expected = [0.5 * (1 + np.cos(np.pi * step / 10)) for step in range(4)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)
    np.testing.assert_allclose(told, expected, rtol=1e-12)


def test_a_schedule_counts_far_beyond_what_float32_can() -> None:
    w = op.var("w", (), fill=0.0)
    optimizer = optim.SGD(optim.StepDecay(1.0, factor=0.5, at=[2**24 + 1]))
    plan = cd.compile(optimizer.train(w * 1.0, [w]))
    optimizer.step.assign(np.array(2**24))
    plan.run()
    assert w.numpy().item() == -1.0
    plan.run()
    assert w.numpy().item() == -1.5


# --- between epochs


def test_reduce_on_plateau_waits_reduces_and_cools_down() -> None:
    rule = optim.ReduceOnPlateau(0.8, factor=0.5, patience=1, cooldown=2, minimum=0.3)
    losses = [5.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 3.0]
    seen = [rule.after_epoch({"loss": loss}) for loss in losses]
    # The third bad epoch reduces; the next two are not counted, two more are needed.
    assert seen == [0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.4, 0.3, 0.3]


def test_reduce_on_plateau_has_a_floor() -> None:
    rule = optim.ReduceOnPlateau(1e-6, factor=0.1, patience=0)
    seen = [rule.after_epoch({"loss": 1.0}) for _ in range(6)]
    # From 1e-8 to 1e-9 is less than the least change; a larger minimum raises nothing.
    np.testing.assert_allclose(seen, [1e-6, 1e-7, 1e-8, 1e-8, 1e-8, 1e-8])
    rule = optim.ReduceOnPlateau(0.5, factor=0.1, patience=0, minimum=0.75)
    assert [rule.after_epoch({"loss": 1.0}) for _ in range(3)] == [0.5, 0.5, 0.5]
    rule = optim.ReduceOnPlateau(0.5, factor=0.5, patience=0, least_change=0.2)
    assert [rule.after_epoch({"loss": 1.0}) for _ in range(4)] == [0.5, 0.25, 0.25, 0.25]


def test_reduce_on_plateau_follows_the_metric_it_is_told_to() -> None:
    rule = optim.ReduceOnPlateau(
        1.0, factor=0.5, patience=0, monitor="accuracy", larger_is_better=True, threshold=0.1
    )
    seen = [rule.after_epoch({"loss": 1.0, "accuracy": value}) for value in (0.5, 0.56, 0.57)]
    assert seen == [1.0, 1.0, 0.5]
    usual = optim.ReduceOnPlateau(1.0, factor=0.5, patience=0)
    assert [usual.after_epoch({"loss": 5.0, "val_loss": v}) for v in (2.0, 1.0)] == [1.0, 1.0]
    with pytest.raises(
        cd.ConfigError, match=r"'acuracy' that it monitors.*did you mean 'accuracy'"
    ):
        optim.ReduceOnPlateau(1.0, monitor="acuracy").after_epoch({"loss": 1.0, "accuracy": 1.0})


def test_a_loss_that_is_nan_is_no_improvement() -> None:
    rule = optim.ReduceOnPlateau(1.0, factor=0.5, patience=0)
    assert [rule.after_epoch({"loss": v}) for v in (math.nan, 1.0, math.nan)] == [0.5, 0.5, 0.25]


def test_a_rule_changes_the_rate_of_running_plans() -> None:
    w = op.var("w", (), fill=0.0)
    rule = optim.ReduceOnPlateau(1.0, factor=0.25, patience=0)
    optimizer = optim.SGD(rule)
    plan = cd.compile(optimizer.train(w * 1.0, [w]))
    for _ in range(2):
        plan.run()
        optimizer.after_epoch({"loss": 1.0})
    plan.run()
    assert w.numpy().item() == -2.25
    assert optimizer.current_rate() == rule.value == 0.25


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.ReduceOnPlateau(0.8, factor=0.5, patience=1, cooldown=1),
        lambda: optim.GrowingBatch(16, factor=1.5, every=2, limit=50),
    ],
    ids=["plateau", "growing"],
)
def test_a_rule_continues_where_it_was_saved(make) -> None:  # type: ignore[no-untyped-def]
    losses = [3.0, 2.0, 2.5, 2.5, 2.5, 2.5, 1.0, 1.5, 1.5, 1.5]
    whole = make()
    expected = [whole.after_epoch({"loss": loss}) for loss in losses]
    for cut in range(len(losses)):
        first = make()
        seen = [first.after_epoch({"loss": loss}) for loss in losses[:cut]]
        kept = json.loads(json.dumps(first.state()))
        second = make()
        second.restore(kept)
        seen += [second.after_epoch({"loss": loss}) for loss in losses[cut:]]
        assert seen == expected
    with pytest.raises(cd.ConfigError, match="a state like"):
        make().restore({"value": 1.0})


def test_a_batch_grows_to_its_limit() -> None:
    rule = optim.GrowingBatch(10, factor=1.5, every=2, limit=30)
    assert rule.value == 10
    seen = [rule.after_epoch({}) for _ in range(8)]
    assert seen == [10, 15, 15, 22, 22, 30, 30, 30]
    assert all(isinstance(size, int) for size in seen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: optim.Cosine(1.0, steps=5, warm_up=5), "0 <= warm_up < steps"),
        (lambda: optim.Cosine(0.0, steps=5), "learning rate above 0"),
        (lambda: optim.StepDecay(1.0), "either every= or at="),
        (lambda: optim.StepDecay(1.0, every=3, at=[4]), "either every= or at="),
        (lambda: optim.StepDecay(1.0, every=0), "a step >= 1, got 0"),
        (lambda: optim.Exponential(1.0, factor=1.5), "0 < factor <= 1"),
        (lambda: optim.LinearWarmUp(0, then=1.0), "steps >= 1"),
        (lambda: optim.LinearWarmUp(5, then=-1.0), "learning rate above 0"),
        (lambda: optim.LinearWarmUp(5, then=1.0, start=-1.0), "a start >= 0"),
        (lambda: optim.OneCycle(1.0, steps=3, rising=0.3), "more than one step to rise"),
        (lambda: optim.OneCycle(1.0, steps=30, start_divisor=0.5), "divisors >= 1"),
        (lambda: optim.ReduceOnPlateau(1.0, factor=1.0), "0 < factor < 1"),
        (lambda: optim.ReduceOnPlateau(1.0, patience=-1), "patience, threshold"),
        (lambda: optim.GrowingBatch(0), "an initial batch size >= 1"),
        (lambda: optim.GrowingBatch(8, factor=0.5), "factor >= 1"),
        (lambda: optim.GrowingBatch(8, limit=4), "a limit of at least 8"),
    ],
)
def test_mistakes_are_named(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(cd.ConfigError, match=message):
        make()
