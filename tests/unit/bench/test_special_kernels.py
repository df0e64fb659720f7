"""benchmarks/kernels/special_kernels.py: what is on trial, beside what, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest

from benchmarks.kernels import kernel_problems
from benchmarks.kernels import special_kernels as trial
from benchmarks.kernels.op_problems import other_problems
from caldera import op
from caldera.compiler.sharding import ops  # noqa: F401 - registers its kernels
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import OPS
from caldera.core.graph.program import program_of
from caldera.core.memory import device
from caldera.kernels.native.codegen import host_target
from caldera.kernels.native.codegen.matrix_multiply import has_amx
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.kernels.tuning.measure import measure


def _problems(*outputs: Any) -> list[Any]:
    nodes = kernel_problems.nodes_of(program_of([each.node for each in outputs]), "cpu")
    return [kernel_problems.Problem("test", node) for node in nodes]


def _by_oracle(call: Call) -> Runner:
    def run() -> None:
        for output, value in zip(call.outputs, evaluate(call.node, call.inputs), strict=True):
            np.copyto(output, value)

    return run


def _slowly(call: Call) -> Runner:
    compute = _by_oracle(call)
    return lambda: (sleep(2e-3), compute())


def _wrongly(call: Call) -> Runner:
    return lambda: call.outputs[0].fill(1)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for sorting that nobody has named in the script."""
    monkeypatch.setitem(TABLE._kernels, ("sort", "cpu"), list(TABLE.kernels("sort", "cpu")))
    for name, bind in (("slow", _slowly), ("slow 2", _by_oracle), ("wrong", _wrongly)):
        TABLE.add(Kernel("sort", "cpu", name, bind))


@pytest.mark.usefixtures("others")
def test_a_new_kernel_is_on_trial_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    problems = _problems(op.sort(op.input("x", (4, 9)), axis=-1))
    (result,) = trial.trials(problems, device("cpu"), 1, perf_counter() + 60)
    # The second way is the faster one, and what computes something else has no time.
    assert set(result.times) == {"slow", "reference"}
    assert result.times["slow"] < 1e-3
    assert set(result.failures) == {"wrong"}
    trial.show(result)
    assert "| sort: slow | test: 4x9 float32 |" in capsys.readouterr().out
    assert "sort: slow" not in trial.untried([result], "cpu")


def test_time_that_is_used_up_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    problems = _problems(op.sort(op.input("x", (4, 9)), axis=-1))
    assert list(trial.trials(problems, device("cpu"), 1, perf_counter())) == []
    assert "1 problems are left" in capsys.readouterr().out


def test_an_op_is_beside_what_it_is_made_of() -> None:
    (problem,) = _problems(op.softmax(op.input("x", (6, 10)), axis=-1))
    result = trial.tried(problem, device("cpu"), 1)
    assert not result.failures
    assert set(result.times) == {"native", "its parts"}
    assert {row.split(" | ")[0] for row in result.rows()} == {"| softmax: native"}


def test_images_lie_as_in_a_plan_and_loops_are_looked_into() -> None:
    x, w = op.input("x", (2, 4, 6, 6)), op.input("w", (8, 4, 3, 3))
    found = {each.node.op.name: each.node for each in _problems(op.conv2d(x, w))}
    assert found["conv2d"].spec.order == NHWC

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        return op.matmul(carry, x), carry

    state, _ = op.scan(body, op.input("s", (3, 3)), op.input("xs", (5, 3, 3)))
    nodes = [each.node for each in _problems(state)]
    assert [node.op.name for node in nodes if node.inputs] == ["matmul"]


@pytest.mark.parametrize(
    ("times", "word"), [((0.5, 1.0), "ahead"), ((1.0, 1.0), "level"), ((1.2, 1.0), "behind")]
)
def test_verdicts(times: tuple[float, float], word: str) -> None:
    result = trial.Result("sort", "8", {"ours": times[0], "reference": times[1]})
    (row,) = result.rows()
    assert row.endswith(f"| {word} |")
    (line,) = list(trial.summary([result, result]))[2:]
    assert ("ahead at 1" if word == "ahead" else f"{word} everywhere") in line


def test_a_kernel_has_to_be_ahead_in_every_run() -> None:
    def run(ours: float) -> list[trial.Result]:
        return [trial.Result("sort", "8", {"ours": ours, "reference": 1.0})]

    (lost,) = list(trial.summary(run(0.5), run(1.2)))[2:]
    assert "| 1 | 0 | 1.20 | 8 | behind everywhere |" in lost
    (won,) = list(trial.summary(run(0.5), run(0.9)))[2:]
    assert "| 1 | 1 | 0.90 | 8 | ahead at 1 |" in won


def test_runs_are_kept_and_reported_losses_first(tmp_path: Path) -> None:
    results = [
        trial.Result("sort", shape, {"ours": ours, "reference": 1.0})
        for shape, ours in (("8", 0.5), ("9", 2.0))
    ]
    file = tmp_path / "kept.jsonl"
    file.write_text("".join(json.dumps(asdict(each)) + "\n" for each in results))
    lines = list(trial.report(trial.kept_results(str(file))))
    rows = [line for line in lines if line.startswith("| sort: ours | ")]
    assert [row.split(" | ")[1] for row in rows] == ["2", "9", "8"]
    assert any("matmul: packed together (needs 8 threads)" in line for line in lines)


def test_the_processors_time_finds_the_faster_kernel() -> None:
    def bind(rounds: int) -> Any:
        def bound(call: Call) -> Runner:
            return lambda: [_by_oracle(call)() for _ in range(rounds)]

        return bound

    node = op.cumsum(op.input("x", (2, 3)), axis=-1).node
    kernels = [Kernel("cumsum", "cpu", f"{n} rounds", bind(n)) for n in (1, 50)]
    times = trial.processor_seconds(node, kernels, None)
    assert times["1 rounds"] < times["50 rounds"]


def test_every_kernel_of_the_cpu_is_on_trial_or_has_a_reason() -> None:
    networks = kernel_problems.network_problems("cpu", ("mlp", "lenet5", "gpt"))
    nodes = {problem.node for problem in (*networks, *other_problems("cpu"))}
    missing = {
        (name, kernel.name)
        for name in OPS
        for kernel in TABLE.kernels(name, "cpu")
        if kernel.name not in {"reference", *trial.REASONS}
        and not any(node.op.name == name and kernel.supports(node) for node in nodes)
    }
    if not has_amx():
        missing = {each for each in missing if not each[1].startswith("amx")}
    if not host_target().has_masks:
        missing = {each for each in missing if each[1] != "planes"}
    assert not missing


def test_reasons_are_those_of_kernels_that_there_are() -> None:
    known = {kernel for name in OPS for kernel in TABLE.names(name, "cpu")}
    assert trial.REASONS.keys() <= known


def test_inputs_mean_something() -> None:
    a, places = op.input("a", (3, 5, 5)), op.input("p", (7,), "int64")
    solve = _problems(op.cholesky(a))[0].node
    (matrix,) = kernel_problems.values_of(solve)
    assert np.linalg.eigvalsh(matrix).min() > 0.9
    picked = _problems(op.gather(a, places, axis=1))[0].node
    assert kernel_problems.values_of(picked)[1].max() == 4
    assert kernel_problems.values_of(_problems(op.sort(a, axis=-1))[0].node) is None


def test_kernels_are_measured_on_inputs_that_are_given() -> None:
    seen = []

    def bind(call: Call) -> Runner:
        seen.append(call.inputs[0].copy())
        return _by_oracle(call)

    node: Node = op.cumsum(op.input("x", (2, 3)), axis=-1).node
    values = [np.arange(6, dtype="float32").reshape(2, 3)]
    outcome = measure(node, [Kernel("cumsum", "cpu", "any", bind)], 0.01, values)
    assert not outcome.failures
    np.testing.assert_array_equal(seen[0], values[0])
