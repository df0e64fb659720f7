"""Times that were measured predict others, and spare measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.kernels.table import Kernel, KernelTable
from caldera.kernels.tuning import choose
from caldera.kernels.tuning.choice_store import KernelChoice
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.cost_model import (
    FEATURES,
    FOLLOWING,
    FROM_MEMORY,
    MOST_SAMPLES,
    CostModel,
    features,
    following,
    group_of,
)
from caldera.kernels.tuning.measure import TuningResult
from tests.unit.kernels.fake_kernels import product_node

FAST, SLOW, NEAR = "fast", "slow", "near"
RATES = {FAST: 1.0, SLOW: 3.0, NEAR: 1.02}


def _table(*names: str) -> KernelTable:
    table = KernelTable()
    for name in names:
        table.add(Kernel("matmul", "cpu", name, lambda call: lambda: None))
    return table


def _seconds(node: Node, name: str) -> float:
    """A machine on which times go with operations, and with the kernel; long enough that the
    number of threads does not matter."""
    return 1e-3 * RATES[name] * node.op.count_flops(node) / 1e5


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The kernels of each measurement on that machine."""
    seen: list[list[str]] = []

    def timer(node: Node, rivals: Sequence[Kernel], seconds: float, **named: bool) -> TuningResult:
        seen.append([kernel.name for kernel in rivals])
        return TuningResult({kernel.name: _seconds(node, kernel.name) for kernel in rivals})

    monkeypatch.setitem(choose.TIMERS, "cpu", timer)
    monkeypatch.setattr(settings, "cache_dir", tmp_path)
    return seen


SIZES = (64, 80, 96, 128, 160)


@pytest.mark.parametrize("seed", range(3))
def test_times_of_shapes_never_seen(seed: int) -> None:
    generator = np.random.default_rng(seed)
    (kernel,) = _table(FAST).kernels("matmul", "cpu")
    model = CostModel()
    for size in (64, 96, 160, 256, 400, 512):
        node = product_node(size)
        noisy = _seconds(node, FAST) * math.exp(generator.normal(0, 0.03))
        model.learn("cpu", "matmul", "float32", {FAST: noisy}, {FAST: features(node, kernel)})
    for size in (80, 200, 300):
        node = product_node(size)
        found = model.seconds(group_of(node, kernel), features(node, kernel))
        assert found is not None
        assert found.seconds == pytest.approx(_seconds(node, FAST), rel=0.15)
        assert found.spread < 0.4
    far = model.seconds(group_of(node, kernel), features(product_node(8), kernel))
    assert far is not None
    assert far.spread > found.spread


def test_times_of_a_busy_machine_are_taken_beside_a_yardstick() -> None:
    (kernel,) = _table(FAST).kernels("matmul", "cpu")
    model = CostModel()
    for size, load in zip((64, 96, 160, 256, 400), (1.0, 3.0, 1.0, 2.0, 1.0), strict=True):
        node = product_node(size)
        times = {FAST: load * _seconds(node, FAST)}
        rows = {FAST: features(node, kernel)}
        model.learn("cpu", "matmul", "float32", times, rows, 1e-3 * load ** (1 / FOLLOWING))
    node = product_node(128)
    found = model.seconds(group_of(node, kernel), features(node, kernel))
    assert found is not None
    assert found.seconds == pytest.approx(_seconds(node, FAST), rel=0.05)
    # Of what an earlier version has written nothing is known of the load.
    fresh = CostModel()
    for _ in range(5):
        fresh.learn("cpu", "matmul", "float32", times, rows, 0.0)
    assert fresh.seconds(group_of(node, kernel), features(node, kernel)) is None


def test_what_comes_from_memory_follows_the_yardstick_less() -> None:
    """A core that is shared computes more slowly, and fetches as fast."""
    (kernel,) = _table(FAST).kernels("matmul", "cpu")
    assert following(features(product_node(256), kernel)) == FOLLOWING
    large = product_node(1 << 16)
    assert following(features(large, kernel)) == FROM_MEMORY < FOLLOWING
    model = CostModel()
    for load in (1.0, 1.0, 2.0):
        times = {FAST: load**FROM_MEMORY * _seconds(large, FAST)}
        model.learn("cpu", "matmul", "float32", times, {FAST: features(large, kernel)}, 1e-3 * load)
    found = model.seconds(group_of(large, kernel), features(large, kernel))
    assert found is not None
    assert found.seconds == pytest.approx(_seconds(large, FAST), rel=0.02)


def test_measurements_that_come_one_by_one_count_as_if_they_had_come_together() -> None:
    generator = np.random.default_rng(0)
    count = MOST_SAMPLES + 1
    rows = generator.normal(0, 1, (count, FEATURES))
    times = np.exp(rows @ generator.normal(0, 0.02, FEATURES))
    group, place = ("cpu", "sum", "float32", "a"), list(generator.normal(0, 1, FEATURES))
    together, in_turn = CostModel(), CostModel()
    for row, seconds in zip(rows, times, strict=True):
        for model in (together, in_turn):
            model.learn(*group[:3], {"a": float(seconds)}, {"a": list(row)})
        known = len(in_turn._alone[group].samples)
        assert known <= MOST_SAMPLES
        if known % 9 == 0:
            in_turn.seconds(group, place)
        if known in (3, 31, 200):
            together._alone[group]._fit = None
            all_at_once, added = together.seconds(group, place), in_turn.seconds(group, place)
            assert added.seconds == pytest.approx(all_at_once.seconds, rel=0.01)
            assert added.spread == pytest.approx(all_at_once.spread, rel=0.05)
    # The oldest make room, many at once.
    assert known < MOST_SAMPLES


def test_what_has_no_chance_is_not_measured_again(timed: list[list[str]]) -> None:
    choices = Choices(_table(SLOW, FAST, NEAR))
    for size in SIZES:
        assert choices.kernel(product_node(size), "cpu").name in (FAST, NEAR)
    assert timed[0] == [SLOW, FAST, NEAR]
    assert timed[-1] == [FAST, NEAR]
    # Another process learns from what is on disk.
    found = Choices(_table(SLOW, FAST, NEAR)).kernel(product_node(112), "cpu")
    assert found.name in (FAST, NEAR)
    assert SLOW not in timed[-1]
    with choices.exhaustive():
        choices.kernel(product_node(144), "cpu")
    assert timed[-1] == [SLOW, FAST, NEAR]


def test_a_clear_case_is_not_measured_at_all(timed: list[list[str]]) -> None:
    choices = Choices(_table(SLOW, FAST))
    for size in SIZES:
        choices.kernel(product_node(size), "cpu")
    before = len(timed)
    assert before < len(SIZES)
    choice = choices.choose(product_node(112), "cpu")
    assert (choice.kernel.name, choice.source) == (FAST, "predicted")
    assert choice.beaten[SLOW] == pytest.approx(3.0, rel=0.2)
    assert len(timed) == before
    assert choices.choose(product_node(112), "cpu", measure=False).source == "predicted"


def test_what_a_library_names_anew_for_each_shape_is_measured_for_each(
    timed: list[list[str]],
) -> None:
    table = _table(FAST, NEAR)
    (slow,) = _table(SLOW).kernels("matmul", "cpu")
    table.add(replace(slow, varies=True))
    choices = Choices(table)
    for size in SIZES:
        assert choices.choose(product_node(size), "cpu").source == "measured"
    assert all(SLOW in names for names in timed)


def test_a_call_on_one_thread_must_win_a_race(timed: list[list[str]]) -> None:
    """However clear a case seems: more threads gain more where there is more to do."""
    table = _table(SLOW)
    (fast,) = _table(FAST).kernels("matmul", "cpu")
    table.add(replace(fast, serial=True))
    choices = Choices(table)
    with settings.override(threads=4):
        for size in SIZES:
            assert choices.choose(product_node(size), "cpu").source == "measured"
        assert all(set(names) == {SLOW, FAST} for names in timed)
        assert choices.kernel(product_node(112), "cpu").name == FAST
        with settings.override(tune_budget_s=0.0):
            choice = choices.choose(product_node(144), "cpu")
    assert (choice.kernel.name, choice.source) == (SLOW, "predicted")


@pytest.mark.parametrize("how", [{"deterministic": True}, {"tune_budget_s": 0.0}])
def test_where_there_is_no_time_predictions_serve(timed: list[list[str]], how: dict) -> None:
    choices = Choices(_table(SLOW, FAST, NEAR))
    for size in SIZES[:3]:
        choices.kernel(product_node(size), "cpu")
    before = len(timed)
    with settings.override(**how):
        choice = choices.choose(product_node(112), "cpu")
    assert choice.source == "predicted"
    assert choice.kernel.name != SLOW
    assert len(timed) == before
    choices.clear()
    with settings.override(**how):
        assert choices.choose(product_node(112), "cpu").source == "guess"


def test_explain_says_that_it_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cd.compile([op.var("x", (3, 3)) @ op.var("y", (3, 3))])
    (step,) = plan.schedule.steps
    found = KernelChoice(step.kernel, {step.kernel.name: 1.0, "other": 2.0}, "predicted")
    monkeypatch.setattr(Choices, "choose", lambda *given, **named: found)
    assert "(predicted 2.0x other)" in str(plan.explain(time=False))
