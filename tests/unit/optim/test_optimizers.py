"""Optimizers against their published rules, in float64."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim

START = np.array([[1.0, -2.0], [0.5, 3.0]])


def _slopes(w: np.ndarray) -> np.ndarray:
    """The gradient of sum(w**3)."""
    return 3 * w**2


def _train(optimizer: optim.Optimizer, start: np.ndarray, steps: int) -> list[np.ndarray]:
    w = op.var("w", start.shape, fill=start, dtype="float64")
    plan = cd.compile(optimizer.train(op.sum(w * w * w), [w]))
    seen = []
    for _ in range(steps):
        plan.run()
        seen.append(w.numpy())
    return seen


@pytest.mark.parametrize("start", [START, np.array(2.0)], ids=["matrix", "scalar"])
def test_gradient_descent_follows_its_rule(start: np.ndarray) -> None:
    w = start.copy()
    for seen in _train(optim.GradientDescent(0.01), start, 4):
        w = w - 0.01 * _slopes(w)
        np.testing.assert_allclose(seen, w, rtol=1e-14)


@pytest.mark.parametrize("start", [START, np.array(2.0)], ids=["matrix", "scalar"])
def test_adam_follows_its_rule(start: np.ndarray) -> None:
    rate, beta1, beta2, epsilon = 0.1, 0.8, 0.95, 1e-6
    w, mean, square = start.copy(), np.zeros_like(start), np.zeros_like(start)
    optimizer = optim.Adam(rate, beta1=beta1, beta2=beta2, epsilon=epsilon)
    for step, seen in enumerate(_train(optimizer, start, 5), start=1):
        g = _slopes(w)
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g * g
        unbiased = np.sqrt(square / (1 - beta2**step))
        w = w - rate * (mean / (1 - beta1**step)) / (unbiased + epsilon)
        np.testing.assert_allclose(seen, w, rtol=1e-12)


def test_cosine_rises_then_falls() -> None:
    schedule = optim.Cosine(0.8, steps=50, warm_up=10, final=0.1)
    step = op.input("step", (), dtype="float64")
    rate = schedule.rate(step)
    for now in range(0, 60, 3):
        if now < 10:
            expected = 0.8 * (now + 1) / 11
        else:
            done = min((now - 10) / 40, 1.0)
            expected = 0.1 + 0.35 * (1 + np.cos(np.pi * done))
        assert rate.eval(step=float(now)).item() == pytest.approx(expected, rel=1e-12)


def test_a_schedule_is_followed_inside_one_plan() -> None:
    w = op.var("w", (), fill=cd.constant(0.0), dtype="float64")
    plan = cd.compile(optim.GradientDescent(optim.Cosine(1.0, steps=10)).train(w * 1.0, [w]))
    rates = []
    for _ in range(4):
        before = w.numpy().item()
        plan.run()
        rates.append(before - w.numpy().item())
    expected = [0.5 * (1 + np.cos(np.pi * step / 10)) for step in range(4)]
    np.testing.assert_allclose(rates, expected, rtol=1e-12)


def test_the_learning_rate_can_be_changed_between_runs() -> None:
    w = op.var("w", (), fill=cd.constant(0.0))
    optimizer = optim.GradientDescent(1.0)
    plan = cd.compile(optimizer.train(w * 1.0, [w]))
    plan.run()
    optimizer.learning_rate.assign(0.25)
    plan.run()
    assert w.numpy().item() == -1.25


def test_state_is_shared_by_plans_of_different_shapes() -> None:
    w = op.var("w", (3,), fill=cd.one(), dtype="float64")
    optimizer = optim.Adam(0.1)
    for count in (4, 2):
        x = op.var("x", (count, 3), fill=cd.one(), dtype="float64")
        cd.compile(optimizer.train(op.sum(x * w), [w])).run()
    assert optimizer.step.numpy() == 2
    assert len(optimizer.state) == 1


def test_the_scale_grows_after_good_steps_and_halves_after_overflow() -> None:
    w = op.var("w", (2,), fill=cd.one())
    factor = op.var("factor", (), fill=1.0)
    scale = optim.LossScale(8.0, growth_interval=3)
    plan = cd.compile(optim.GradientDescent(0.5).train(op.sum(w * factor), [w], loss_scale=scale))
    seen = []
    for value in (1.0, 1.0, 1.0, np.inf, 1.0):
        factor.assign(value)
        before = w.numpy()
        plan.run()
        seen.append(scale.scale.numpy().item())
        moved = 0.0 if np.isinf(value) else 0.5
        np.testing.assert_allclose(before - w.numpy(), moved)
    assert seen == [8.0, 8.0, 16.0, 8.0, 8.0]


def test_minimize_says_whether_it_converged() -> None:
    x = op.var("x", (), fill=cd.constant(3.0), dtype="float64")
    found = optim.GradientDescent(0.05).minimize(x**2 - 2.0, [x], steps=5)
    assert (found.steps, found.converged) == (5, False)
    assert found.value == pytest.approx(float(x) ** 2 - 2.0)
    found = optim.Adam(0.05).minimize(x**2 - 2.0, [x], steps=5000, tolerance=1e-9)
    assert found.converged
    assert found.value == pytest.approx(-2.0)


def test_mistakes_are_named() -> None:
    x = op.var("x", (), fill=cd.constant(3.0))
    with pytest.raises(cd.ConfigError, match="learning rate above 0, got -1"):
        optim.Adam(-1.0)
    with pytest.raises(cd.ConfigError, match="0 <= beta1 < 1, got 1"):
        optim.Adam(beta1=1.0)
    with pytest.raises(cd.ConfigError, match="finite loss.*smaller learning rate"):
        optim.GradientDescent(100.0).minimize(x**4, [x])
    with pytest.raises(cd.ConfigError, match="call train, apply or minimize"):
        _ = optim.Adam().step

    class Forgetful(optim.Optimizer):
        keeps = ("mean",)

        def update(self, parameter, gradient, state, rate, step):  # type: ignore[no-untyped-def]
            return parameter, {}

    with pytest.raises(cd.ConfigError, match="new values for \\['mean'\\]"):
        Forgetful(0.1).train(x * x, [x])
