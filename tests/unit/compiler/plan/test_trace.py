"""What `trace` writes: Chrome's trace format, with every kernel, thread, copy and byte."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op
from caldera.compiler.plan.inspection import arena_in_use
from caldera.errors import ConfigError
from caldera.kernels.native.codegen.program import NativeRunner

Event = dict[str, Any]


def training_step(device: str = "cpu", batch: int = 256) -> tuple[cd.Plan, list[cd.Variable]]:
    x = op.input("x", (batch, 64))
    w = op.var("w", (64, 256), fill=cd.uniform(), device=device)
    v = op.var("v", (256, 8), fill=cd.uniform(), device=device)
    loss = op.mean(op.square(op.tanh(x @ w) @ v))
    gradients = op.grad(loss, [w, v])
    updates = [op.assign(p, p - 0.1 * g) for p, g in zip([w, v], gradients, strict=True)]
    return cd.compile([loss, *updates], device=device), [w, v]


def traced(folder: Path, device: str = "cpu", runs: int = 2) -> tuple[cd.Plan, list[Event]]:
    plan, _ = training_step(device)
    x = np.random.default_rng(0).normal(size=(256, 64)).astype("float32")
    path = plan.trace(folder / "step.json", {"x": x}, runs=runs)
    content = json.loads(path.read_text())
    assert content["otherData"]["device"] == plan.device.name
    return plan, content["traceEvents"]


def of_category(events: list[Event], category: str) -> list[Event]:
    return [each for each in events if each.get("cat") == category]


def test_every_event_has_what_the_format_asks_for(tmp_path: Path) -> None:
    _, events = traced(tmp_path)
    for each in events:
        assert isinstance(each["name"], str)
        assert isinstance(each["pid"], int)
        assert each["ph"] in "XCM"
        if each["ph"] == "X":
            assert each["ts"] >= 0
            assert each["dur"] >= 0
            assert isinstance(each["tid"], int)
        if each["ph"] == "C":
            assert each["ts"] >= 0
            assert all(isinstance(value, int) for value in each["args"].values())
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    assert {(each["pid"], each["tid"]) for each in events if each["ph"] == "X"} <= named
    assert [each["args"]["name"] for each in events if each["name"] == "process_name"] == ["cpu"]


def test_each_run_has_each_kernel_once_in_order(tmp_path: Path) -> None:
    plan, events = traced(tmp_path, runs=3)
    rows = [row for row in plan.explain(time=False).rows if row.step is not None]
    kernels = of_category(events, "kernel") + [
        each for each in of_category(events, "copy") if "step" in each["args"]
    ]
    kernels.sort(key=lambda each: each["ts"])
    assert [each["args"]["step"] for each in kernels] == list(range(len(rows))) * 3
    for each in kernels:
        row = rows[each["args"]["step"]]
        assert (each["name"], each["args"]["kernel"]) == (row.op, row.kernel)
        assert (each["args"]["bytes"], each["args"]["FLOPs"]) == (row.nbytes, row.flops)
    # One after the other, inside of the run they belong to.
    for before, after in pairwise(kernels):
        assert before["ts"] + before["dur"] <= after["ts"] + 1e-3
    runs = [each for each in events if each["name"].startswith("run ")]
    assert [each["name"] for each in runs] == ["run 1", "run 2", "run 3"]
    for index, each in enumerate(kernels):
        run = runs[index // len(rows)]
        assert run["ts"] <= each["ts"]
        assert each["ts"] + each["dur"] <= run["ts"] + run["dur"] + 1e-3


def test_threads_share_a_kernel_in_parts(tmp_path: Path) -> None:
    with cd.settings.override(threads=2):
        plan, events = traced(tmp_path)
        several = {
            step
            for step, runner in enumerate(plan._binding.bound[0].steps)
            if isinstance(runner, NativeRunner) and any(call.parts > 1 for call in runner.calls)
        }
    assert several, "the network is large enough for two threads"
    parts = of_category(events, "part")
    assert several <= {each["args"]["step"] for each in parts}
    for step in several:
        mine = [each["args"] for each in parts if each["args"]["step"] == step]
        shared = [args for args in mine if args["parts"] > 1]
        # Each part was done once in each of the two runs, by whichever thread was free.
        assert all(args["part"] < args["parts"] for args in shared)
        done = [(args["part"], args["parts"]) for args in shared]
        assert all(done.count(one) % 2 == 0 for one in done)


def test_memory_rises_and_falls_with_the_planned_arena(tmp_path: Path) -> None:
    plan, events = traced(tmp_path, runs=1)
    levels = [e for e in events if e["ph"] == "C" and e["name"] == "arena"]
    expected = arena_in_use(plan.schedule)
    assert [each["args"]["bytes"] for each in levels] == [*expected, 0]
    assert 0 < max(expected) <= plan.arena_bytes
    pools = [each for each in events if each["name"] == "pool of cpu"]
    assert pools[0]["args"]["bytes"] >= plan.arena_bytes


def test_a_device_has_tracks_of_its_own(tmp_path: Path) -> None:
    plan, events = traced(tmp_path, "loopback", runs=1)
    names = {
        (each["pid"], each["tid"]): each["args"]["name"]
        for each in events
        if each["name"] == "thread_name"
    }
    processes = {
        each["pid"]: each["args"]["name"] for each in events if each["name"] == "process_name"
    }
    assert processes == {1: "host", 2: "loopback:0"}
    kernels = of_category(events, "kernel")
    assert {names[each["pid"], each["tid"]] for each in kernels} == {"calls"}
    assert {each["pid"] for each in kernels} == {2}
    assert len(kernels) == sum(step.kernel.op != "copy" for step in plan.schedule.steps)
    (copy,) = [each for each in of_category(events, "copy") if each["name"] == "h2d"]
    assert names[copy["pid"], copy["tid"]] == "copies"
    assert copy["ts"] + copy["dur"] <= min(each["ts"] for each in kernels) + 1e-3


@pytest.mark.parametrize("device", ["cpu", "loopback"])
def test_variables_keep_their_values(tmp_path: Path, device: str) -> None:
    plan, variables = training_step(device)
    before = [each.numpy() for each in variables]
    plan.trace(tmp_path / "step.json")
    for old, variable in zip(before, variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


@pytest.mark.parametrize(
    ("name", "runs", "said"),
    [("step.txt", 1, "ends in .json"), ("no/step.json", 1, "a folder"), ("a.json", 0, "runs >= 1")],
)
def test_mistakes_are_refused(tmp_path: Path, name: str, runs: int, said: str) -> None:
    plan, _ = training_step(batch=4)
    with pytest.raises(ConfigError, match=said):
        plan.trace(tmp_path / name, runs=runs)


def test_a_model_profiles_its_training_step(tmp_path: Path) -> None:
    model = cd.NeuralNetwork(
        [nn.Input((4,)), nn.Dense(16, activation="relu"), nn.Dense(2)], batch_size=8
    )
    x = np.random.default_rng(0).normal(size=(20, 4)).astype("float32")
    before = [each.numpy() for each in model.parameters()]
    found = model.profile((x, np.arange(20) % 2), trace=tmp_path / "step.json")
    assert "roofline" in str(found)
    assert found.seconds is not None
    assert any("matmul" in row.op for row in found.rows)
    # Weights, not only losses: the step of `fit`, with its updates.
    assert any("1-Dense/weight" in row.target for row in found.rows)
    assert (tmp_path / "step.json").is_file()
    for old, parameter in zip(before, model.parameters(), strict=True):
        np.testing.assert_array_equal(parameter.numpy(), old)
