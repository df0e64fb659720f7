"""Copies of weights in half precision, written by updates: the same bits, whoever changes weights.

On the CPU itself there are none, so what it computes is what a device has to compute.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import compile, forget_plans
from caldera.compiler.plan.plan import Plan
from caldera.core.graph.node import Node, Symbol
from caldera.core.memory import device
from caldera.core.memory.pool import size_class
from caldera.core.tensor.dtype import bfloat16

PRECISIONS = ("bfloat16", "float16")


@pytest.fixture(autouse=True)
def _own_plans() -> Iterator[None]:
    yield
    forget_plans()


def made(place: str, precision: str = "bfloat16") -> cd.NeuralNetwork:
    layers = [nn.Input((6,)), nn.Dense(8, activation="relu"), nn.Dense(4)]
    return cd.NeuralNetwork(
        layers,
        optimizer=optim.SGD(0.1, momentum=0.9),
        batch_size=4,
        precision=precision,
        device=place,
    )


# Two batches and a smaller one.
DRAW = np.random.default_rng(0)
X, Y = DRAW.standard_normal((10, 6), np.float32), DRAW.integers(0, 4, 10)


def fit(model: cd.NeuralNetwork, epochs: int = 1) -> list[float]:
    return list(model.fit((X, Y), epochs=epochs, shuffle=False, verbose=0)["loss"])


def on_both(work: Callable[[cd.NeuralNetwork], object], precision: str = "bfloat16") -> None:
    """What comes of some work with a model has the same bits on both devices."""
    found = []
    for place in ("cpu", "loopback"):
        model = made(place, precision)
        found.append((work(model), [each.numpy() for each in model.parameters()]))
    (here, weights), (there, others) = found
    assert here == there
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_training_has_the_same_bits(precision: str) -> None:
    on_both(fit, precision)


def test_weights_that_a_user_assigns_are_read() -> None:
    def work(model: cd.NeuralNetwork) -> list[float]:
        losses = fit(model)
        for each in model.parameters():
            each.assign(each.numpy() * 0.5)
        losses += fit(model)
        # One number alone.
        model.parameters()[0].tensor[0, 0] = 0.25
        return losses + fit(model)

    on_both(work)


def test_weights_that_are_loaded_are_read(tmp_path: Path) -> None:
    def work(model: cd.NeuralNetwork) -> list[float]:
        path = tmp_path / f"{model.device.kind}.caldera"
        model.save(path)
        losses = fit(model)
        for each, saved in zip(model.parameters(), cd.load(path).parameters(), strict=True):
            each.assign(saved.numpy())
        return losses + fit(model)

    on_both(work)


def step(place: str) -> tuple[Plan, list[cd.Variable]]:
    """A step of gradient descent, and its variables."""
    draw = np.random.default_rng(1)
    w = op.var("w", (6, 4), fill=draw.standard_normal((6, 4)), device=place)
    b = op.var("b", (4,), fill=draw.standard_normal(4), device=place)
    x = cd.tensor(draw.standard_normal((5, 6), np.float32), device=place)
    loss = op.mean(op.square(x @ w + b))
    slopes = op.grad(loss, [w, b])
    updates = [op.assign(v, v - 0.1 * g) for v, g in zip((w, b), slopes, strict=True)]
    return compile([loss, *updates], device=place, precision="bfloat16"), [w, b]


def copies_of(plan: Plan) -> list[Symbol]:
    return [
        each for each in plan.symbols if each.role == "variable" and each.spec.dtype == bfloat16
    ]


def test_the_update_writes_the_copy_and_nobody_casts_the_weight() -> None:
    plan, _ = step("loopback")
    assert {each.name for each in copies_of(plan)} == {"w in bfloat16", "b in bfloat16"}

    def casts_of_weights() -> Iterator[Node]:
        for node in plan.optimised.order():
            if node.op.name == "cast" and node.inputs[0].op.name == "variable":
                yield node

    assert not list(casts_of_weights())
    plan.run()
    (loss, *_) = plan.run()
    assert np.isfinite(float(loss))
    assert not copies_of(step("cpu")[0])


def test_a_copy_is_what_its_weight_is_after_every_run() -> None:
    plan, variables = step("loopback")
    copies = {each.name: each.value for each in copies_of(plan)}

    def check() -> None:
        plan.run()
        for each in variables:
            copy = copies[f"{each.name} in bfloat16"].numpy()
            np.testing.assert_array_equal(copy, each.numpy().astype(bfloat16))

    check()
    plan.capture()
    check()
    variables[0].assign(np.ones((6, 4), np.float32))
    check()
    plan.explain()
    check()
    check()


def test_weights_that_another_plan_updates_are_read() -> None:
    found = []
    for place in ("cpu", "loopback"):
        plan, (w, _) = step(place)
        other = compile([op.assign(w, w * 0.5)], device=place)
        # From the second time on neither asks for anything that could be counted.
        for each in (plan, other, plan, other, plan, plan, other, plan):
            each.run()
        found.append([w.numpy(), plan.run()[0].numpy()])
    for one, another in zip(*found, strict=True):
        np.testing.assert_array_equal(one, another)


def test_copies_are_made_anew_only_if_weights_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, (w, _) = step("loopback")
    copies = plan._binding.copies
    assert copies is not None
    renewals = []
    run = copies._renewal.run
    monkeypatch.setattr(copies._renewal, "run", lambda: renewals.append(run()))
    for _ in range(3):
        plan.run()
    assert len(renewals) == 1
    w.numpy()
    plan.run()
    assert len(renewals) == 1, "nobody wrote"
    w.assign(w.numpy())
    plan.run()
    plan.run()
    assert len(renewals) == 2


def test_plans_share_copies_which_go_with_them() -> None:
    pool = device("loopback").pool
    # Those that earlier tests left are forgotten with the others below.
    forget_plans()
    gc.collect()
    before = pool.in_use
    model = made("loopback")
    fit(model)
    with_plans = pool.in_use
    forget_plans()
    model._trainer.clear()
    gc.collect()
    halves = [size_class(each.tensor.memory.nbytes // 2) for each in model.parameters()]
    assert pool.in_use <= with_plans - sum(halves)
    del model
    gc.collect()
    # Less, if a thread of an earlier test let go of something meanwhile.
    assert pool.in_use <= before
