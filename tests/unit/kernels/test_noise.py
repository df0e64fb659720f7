"""Choices measured while other programs computed: provisional, and measured again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.cli import main
from caldera.core.graph.node import Node
from caldera.kernels.table import Kernel
from caldera.kernels.tuning import choose
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.cost_model import FEATURES, CostModel
from caldera.kernels.tuning.measure import TuningResult
from tests.unit.kernels.fake_kernels import FakeKernels, product_node

pytestmark = pytest.mark.usefixtures("own_folder")

QUIET_TIMES = {"blas": 3e-4, "native": 2e-4, "native on 1 thread": 4e-4}
BUSY_TIMES = {"blas": 5e-4, "native": 9e-4, "native on 1 thread": 4e-4}


class FakeMachine:
    """A machine on which other programs take some cores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noise = 0.0
        self.measured = 0
        monkeypatch.setitem(choose.TIMERS, "cpu", self._measure)
        monkeypatch.setattr(choose, "others_now", lambda: self.noise)
        # Each question is answered anew.
        monkeypatch.setattr(choose, "LEAST_S", -1.0)

    def _measure(
        self, node: Node, kernels: Sequence[Kernel], seconds: float, **how: Any
    ) -> TuningResult:
        self.measured += 1
        times = BUSY_TIMES if self.noise else QUIET_TIMES
        return TuningResult(dict(times), pace=1e-4, noise=self.noise)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    return FakeMachine(monkeypatch)


@pytest.fixture
def table(kernels: FakeKernels) -> FakeKernels:
    native = kernels.add("native", priority=1)
    kernels.table.add(Kernel("matmul", "cpu", "blas", native.bind, serial=True, priority=2))
    return kernels


def _chosen(choices: Choices) -> tuple[str, str]:
    with settings.override(threads=2):
        found = choices.choose(product_node(), "cpu")
    return found.kernel.name, found.source


def test_noise_is_no_reason_for_fewer_threads(machine: FakeMachine, table: FakeKernels) -> None:
    machine.noise = 2.0
    choices = Choices(table.table)
    assert _chosen(choices) == ("native", "provisional")
    # In this process the choice stays, so that a training repeats with the same bits.
    machine.noise = 0.0
    assert _chosen(choices) == ("native", "provisional")
    assert machine.measured == 1


def test_a_choice_made_in_noise_is_measured_again_when_it_is_quieter(
    machine: FakeMachine, table: FakeKernels
) -> None:
    machine.noise = 2.0
    _chosen(Choices(table.table))
    # Hardly quieter: it serves.
    machine.noise = 1.5
    assert _chosen(Choices(table.table)) == ("native", "provisional")
    assert machine.measured == 1
    machine.noise = 0.0
    assert _chosen(Choices(table.table)) == ("native", "measured")
    assert _chosen(Choices(table.table)) == ("native", "remembered")
    assert machine.measured == 2
    # Noise never replaces what was measured in quiet.
    machine.noise = 9.0
    assert _chosen(Choices(table.table)) == ("native", "remembered")


def test_tuning_measures_provisional_choices_in_any_case(
    machine: FakeMachine, table: FakeKernels
) -> None:
    machine.noise = 3.0
    _chosen(Choices(table.table))
    machine.noise = 2.5
    choices = Choices(table.table)
    with choices.exhaustive():
        assert _chosen(choices) == ("native", "provisional")
    assert machine.measured == 2
    (name,) = FileCache("choices")
    assert FileCache("choices").read_json(name)["noise"] == 2.5


def test_a_deterministic_run_and_an_empty_budget_measure_nothing_again(
    machine: FakeMachine, table: FakeKernels
) -> None:
    machine.noise = 2.0
    _chosen(Choices(table.table))
    machine.noise = 0.0
    for limits in ({"deterministic": True}, {"tune_budget_s": 0.0}):
        with settings.override(**limits):
            assert _chosen(Choices(table.table)) == ("native", "provisional")
    assert machine.measured == 1


def test_records_without_noise_are_provisional(machine: FakeMachine, table: FakeKernels) -> None:
    _chosen(Choices(table.table))
    (name,) = FileCache("choices")
    held = FileCache("choices").read_json(name)
    del held["noise"]
    held |= {"chosen": "native on 1 thread", "times": BUSY_TIMES}
    FileCache("choices").write_json(name, held)
    machine.noise = 80.0
    assert _chosen(Choices(table.table)) == ("native", "provisional")
    machine.noise = 0.0
    assert _chosen(Choices(table.table)) == ("native", "measured")


def test_a_slow_yardstick_is_noise(
    machine: FakeMachine, table: FakeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose, "slowdown", lambda pace, fastest: pace / fastest - 1.0)
    choices = Choices(table.table)
    with settings.override(threads=2):
        choices.choose(product_node(64), "cpu")
        monkeypatch.setitem(
            choose.TIMERS, "cpu", lambda *given, **how: TuningResult(dict(QUIET_TIMES), pace=3e-4)
        )
        with choices.exhaustive():
            assert choices.choose(product_node(96), "cpu").source == "provisional"


def test_predictions_from_noise_are_uncertain() -> None:
    group, row = ("cpu", "sum", "float32", "a"), [0.0] * FEATURES
    spreads = []
    for noise in (0.0, 0.5):
        model = CostModel()
        for _ in range(3):
            model.learn(
                "cpu", "sum", "float32", {"a": 1.0, "b": 2.0}, {"a": row, "b": row}, 1.0, noise
            )
        found = model.seconds(group, row)
        assert found is not None
        assert found.seconds == pytest.approx(1.0, rel=0.1)
        spreads.append(found.spread)
    assert spreads[1] > 3 * spreads[0]


def test_explain_shows_provisional_choices(machine: FakeMachine) -> None:
    machine.noise = 2.0
    a = op.var("a", (70, 71), fill=cd.uniform(-1, 1))
    b = op.var("b", (71, 72), fill=cd.uniform(-1, 1))
    with settings.override(threads=2):
        timed = {"blas": 2e-3, "packed": 1e-3}
        choose.TIMERS["cpu"] = lambda *given, **how: TuningResult(timed, pace=1e-4, noise=2.0)
        rows = cd.compile([a @ b]).explain(time=False)
    assert "provisional" in {row.source for row in rows.rows}
    assert "provisional" in str(rows)


def test_tune_names_the_steps_measured_in_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = choose.TIMERS["cpu"]

    def noisily(*given: Any, **how: Any) -> TuningResult:
        found = measured(*given, **how)
        found.noise = 2.0
        return found

    monkeypatch.setitem(choose.TIMERS, "cpu", noisily)
    model = ["mlp", "--hidden", "64", "--batch-size", "32", "--seconds", "5"]
    assert main(["tune", *model]) == 0
    assert "measured while others computed" in capsys.readouterr().out
    noises = {
        json.loads(json.dumps(FileCache("choices").read_json(n)))["noise"]
        for n in FileCache("choices")
    }
    assert noises == {2.0}
