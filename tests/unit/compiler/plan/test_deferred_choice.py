"""On a device of its own, kernels are chosen by measuring before the second run, not the first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.kernels.tuning import choose
from caldera.kernels.tuning.measure import TuningResult


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The ops that were measured; the kernel of lowest priority always wins."""
    ops: list[str] = []

    def timer(node: Node, kernels: list[choose.Kernel], seconds: float) -> TuningResult:
        ops.append(node.op.name)
        return TuningResult({kernel.name: 1.0 / (1 + i) for i, kernel in enumerate(kernels)})

    monkeypatch.setitem(choose.TIMERS, "cpu", timer)
    cd.forget_plans()
    with settings.override(cache_dir=tmp_path, tune_budget_s=1e6, deterministic=False):
        yield ops
    cd.forget_plans()


def _plan(place: str) -> cd.Plan:
    values = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    x = op.var("x", (64, 64), fill=values, device=place)
    return cd.compile([op.matmul(x, x)], device=place)


def _kernels(plan: cd.Plan) -> list[str]:
    return [step.kernel.name for step in plan.schedule.steps]


def test_the_first_run_does_not_wait_for_measurements(measured: list[str]) -> None:
    plan = _plan("loopback:1")
    guessed = _kernels(plan)
    first = plan.run()[0].numpy()
    assert not measured
    second = plan.run()[0].numpy()
    assert measured == ["matmul"]
    assert _kernels(plan) != guessed
    np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-4)
    plan.run()
    assert measured == ["matmul"]


def test_what_is_captured_is_measured_before(measured: list[str]) -> None:
    plan = _plan("loopback:1")
    guessed = _kernels(plan)
    plan.capture()
    assert measured == ["matmul"]
    assert _kernels(plan) != guessed
    for _ in range(3):
        plan.run()
    assert measured == ["matmul"]


def test_who_looks_at_times_sees_the_kernels_that_stay(measured: list[str]) -> None:
    plan = _plan("loopback:1")
    (row,) = plan.explain().rows
    assert measured == ["matmul"]
    assert row.kernel == _kernels(plan)[0]
    plan.run()
    plan.run()
    assert [row.kernel] == _kernels(plan)


def test_what_is_remembered_serves_at_once(measured: list[str]) -> None:
    plan = _plan("loopback:1")
    for _ in range(2):
        plan.run()
    cd.forget_plans()
    assert _kernels(_plan("loopback:1")) == _kernels(plan)


def test_a_deterministic_run_keeps_its_first_choice(measured: list[str]) -> None:
    with settings.override(deterministic=True):
        plan = _plan("loopback:1")
        guessed = _kernels(plan)
        for _ in range(3):
            plan.run()
    assert _kernels(plan) == guessed
    assert not measured


def test_kernels_of_the_host_are_measured_when_a_plan_is_made(measured: list[str]) -> None:
    _plan("cpu")
    assert measured == ["matmul"]


def test_what_was_fixed_when_a_plan_was_made_stays(measured: list[str]) -> None:
    choose.choices.fix("matmul", "reference", family="cpu")
    try:
        plan = _plan("loopback:1")
    finally:
        choose.choices.unfix("matmul", family="cpu")
    for _ in range(3):
        plan.run()
    assert _kernels(plan) == ["reference"]
    assert not measured
