"""Gradient descent as part of the product that finds the gradient."""

from __future__ import annotations

import numpy as np
import pytest

import caldera as cd
from caldera import op, optim
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.passes.pipeline import optimise
from caldera.core.graph.program import program_of
from caldera.kernels.table import TABLE
from tests.unit.compiler.passes.tools import names


def _loss(dtype: str = "float32") -> tuple[Expr, list[Variable]]:
    w = op.var("w", (4, 3), fill=cd.uniform(-1, 1), dtype=dtype)
    v = op.var("v", (3, 2), fill=cd.uniform(-1, 1), dtype=dtype)
    x = cd.tensor(np.random.default_rng(0).normal(size=(5, 4)).astype(dtype))
    return op.sum(op.square(op.tanh(x @ w) @ v)), [w, v]


def _names(outputs: list[Expr], without: tuple[str, ...] = ()) -> list[str]:
    program = optimise(
        program_of([each.node for each in outputs]),
        has_kernel=lambda name: TABLE.has(name, "cpu"),
        without=without,
    )
    return names(program)


RULES = {
    "plain": lambda: optim.SGD(0.1),
    "weight decay": lambda: optim.SGD(0.1, weight_decay=0.01),
    "decoupled": lambda: optim.SGD(0.1, decay=optim.Decoupled(0.01)),
    # Here it is the velocity that the product is added to.
    "momentum": lambda: optim.SGD(0.1, momentum=0.9),
    "schedule": lambda: optim.SGD(optim.Exponential(0.1, factor=0.5)),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_weight_is_changed_by_its_product(rule: str) -> None:
    loss, variables = _loss()
    assert _names(RULES[rule]().train(loss, variables)).count("matmul_accumulate") == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rule", RULES)
def test_three_steps_lead_to_the_same_weights(rule: str, dtype: str) -> None:
    results = []
    for without in ([], ["update_product"]):
        loss, variables = _loss(dtype)
        for variable in variables:
            numbers = np.random.default_rng(1).normal(size=variable.shape)
            variable.assign(numbers.astype(dtype))
        step = cd.compile([loss, *RULES[rule]().train(loss, variables)], without=without)
        for _ in range(3):
            value = step.run()[0].numpy()
        results.append([value, *(variable.numpy() for variable in variables)])
    for joined, apart in zip(*results, strict=True):
        np.testing.assert_allclose(joined, apart, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_a_gradient_that_is_read_elsewhere_stays() -> None:
    loss, variables = _loss()
    slope = op.grad(loss, [variables[0]])[0]
    assert "matmul_accumulate" not in _names([op.assign(variables[0], variables[0] - slope), slope])
    clipped = optim.SGD(0.1, clip=optim.ClipNorm(1.0)).train(loss, variables)
    assert "matmul_accumulate" not in _names(clipped)


def test_other_rules_are_left_alone() -> None:
    loss, variables = _loss()
    assert "matmul_accumulate" not in _names(optim.Adam(0.1).train(loss, variables))
    assert "matmul_accumulate" not in _names(
        optim.SGD(0.1).train(loss, variables), without=("update_product",)
    )


def test_a_weight_that_is_a_factor_of_its_own_gradient() -> None:
    w = op.var("w", (3, 3), fill=cd.uniform(-1, 1))
    start = w.numpy().copy()
    step = cd.compile([op.assign(w, w - 0.5 * (w @ w))])
    assert "matmul_accumulate" in _names([op.assign(w, w - 0.5 * (w @ w))])
    step.run()
    np.testing.assert_allclose(w.numpy(), start - 0.5 * start @ start, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [False, True])
def test_a_step_that_may_be_refused_is_joined_and_a_refused_one_changes_nothing(bad: bool) -> None:
    start = np.arange(12.0).reshape(3, 4)
    w = op.var("w", (3, 4), fill=start, dtype="float64")
    x = op.input("x", (5, 3), dtype="float64")
    g = op.input("g", (5, 4), dtype="float64")
    went_well = op.isfinite(op.sum(g))
    new = w - 0.5 * (op.transpose(x) @ g + 0.1 * w)
    plan = cd.compile([op.sum(x), op.assign(w, op.where(went_well, new, w))])
    assert "matmul_accumulate" in [step.node.op.name for step in plan.schedule.steps]
    generator = np.random.default_rng(0)
    inputs, slopes = generator.standard_normal((5, 3)), generator.standard_normal((5, 4))
    if bad:
        slopes[2, 1] = np.nan
    plan.run({"x": inputs, "g": slopes})
    expected = start if bad else start - 0.5 * (inputs.T @ slopes + 0.1 * start)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-14)
