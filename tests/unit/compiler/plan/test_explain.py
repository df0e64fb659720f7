"""What `explain` says about a plan is true, and asking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.file_cache import FileCache
from caldera.compiler.plan import timing
from caldera.compiler.plan.explain import fastest
from caldera.compiler.plan.timing import Peaks, cpu_peaks
from caldera.core.graph.node import Node
from caldera.core.memory import Device
from caldera.core.tensor.dtype import DType, bfloat16, float32, float64, int64
from caldera.errors import ConfigError
from caldera.kernels.common import blas_threads
from caldera.kernels.table import TABLE, Kernel, Runner
from caldera.kernels.tuning.choice_store import KernelChoice
from caldera.kernels.tuning.choose import Choices, choices
from tests.object_cache import link_kernels

PEAKS = Peaks(float32=2e9, float64=1e9, bfloat16=2e9, bandwidth=4e9)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Few runs, and peaks that need not be measured."""
    monkeypatch.setattr(timing, "BUDGET_S", 0.0)
    monkeypatch.setattr(timing, "measure", lambda: PEAKS)
    monkeypatch.setattr(timing, "_known", {})
    link_kernels(tmp_path)
    with cd.settings.override(cache_dir=tmp_path):
        yield


def training_step(device: str = "cpu") -> tuple[cd.Plan, list[cd.Variable]]:
    x = op.input("x", (4, 3))
    w = op.var("w", (3, 2), fill=cd.uniform(), device=device)
    b = op.var("b", (2,), fill=cd.uniform(), device=device)
    loss = op.sum(op.square(x @ w + b))
    gradients = op.grad(loss, [w, b])
    # Steps so large that a few of them in a row would leave nothing but infinities.
    updates = [op.assign(p, p - 1e6 * g) for p, g in zip([w, b], gradients, strict=True)]
    return cd.compile([loss, *updates]), [w, b]


# --- what it says


def test_orders_in_memory_are_shown() -> None:
    x = op.input("x", (2, 3, 5, 5))
    plan = cd.compile([op.sum(op.conv2d(x, op.var("w", (4, 3, 3, 3), fill=cd.one()))), x])
    fed = np.arange(150, dtype="float32").reshape(2, 3, 5, 5)
    plan.run({"x": fed})
    # Unless it is told otherwise, it runs on what the plan was fed before.
    row = plan.explain().rows[0]
    lying = plan._binding.operands.inputs.fed()["x"].transpose(0, 2, 3, 1)
    assert lying.flags.c_contiguous
    np.testing.assert_array_equal(lying, fed.transpose(0, 2, 3, 1))
    assert [str(spec) for spec in (*row.inputs, *row.outputs)] == [
        "(2, 3, 5, 5) float32 nhwc",
        "(4, 3, 3, 3) float32",
        "(2, 4, 3, 3) float32 nhwc",
    ]
    shapes = "(2, 3, 5, 5) nhwc, (4, 3, 3, 3) -> (2, 4, 3, 3) nhwc float32"
    assert shapes in str(plan.explain(time=False))


def test_it_prints_as_a_table() -> None:
    plan, _ = training_step()
    explanation = plan.explain()
    assert repr(explanation) == str(explanation)
    heading = str(explanation).splitlines()[0].split()
    assert heading == [
        "step",
        "op",
        "kernel",
        "shapes",
        "writes",
        "bytes",
        "FLOPs",
        "time",
        "share",
        "roofline",
    ]
    assert len(str(explanation).splitlines()) == 1 + len(explanation.rows) + 1 + 4


def test_shapes_bytes_and_operations_are_those_of_the_step() -> None:
    a, b = op.var("a", (5, 3)), op.var("b", (3, 7))
    (row,) = cd.compile([a @ b]).explain(time=False).rows
    assert (row.step, row.op, row.target) == (0, "matmul", "output 0")
    assert [spec.shape for spec in row.inputs] == [(5, 3), (3, 7)]
    assert [spec.shape for spec in row.outputs] == [(5, 7)]
    assert row.flops == 2 * 5 * 3 * 7
    assert row.nbytes == 4 * (15 + 21 + 35)


def test_a_broadcast_value_is_read_once() -> None:
    x, y = op.var("x", (100, 100)), op.var("y", (100,))
    plan = cd.compile([op.broadcast(y, (100, 100)) @ x], without=["simplify"])
    row = plan.explain(time=False).rows[-1]
    assert row.nbytes == 4 * (100 + 10_000 + 10_000)


def test_a_value_given_twice_is_read_once() -> None:
    x = op.var("x", (6, 6))
    (row,) = cd.compile([x @ x]).explain(time=False).rows
    assert row.nbytes == 4 * (36 + 36)


def test_a_fused_step_names_its_ops() -> None:
    x = op.var("x", (4, 4))
    (row,) = cd.compile([op.exp(x + 1.0) * 2.0 * x]).explain(time=False).rows
    assert row.op == "fused: add, exp, 2 mul"
    assert row.flops == 4 * 16


def test_copies_say_where_they_go() -> None:
    x = op.var("x", (4,), fill=cd.one())
    explanation = cd.compile([x]).explain(time=False)
    (row,) = explanation.rows
    assert (row.op, row.flops, row.nbytes, row.target) == ("copy", 0, 32, "output 0")
    assert "(4,) -> (4,) float32  output 0" in str(explanation)


def test_updated_variables_are_named() -> None:
    plan, _ = training_step()
    targets = {row.target for row in plan.explain(time=False).rows}
    assert {"w", "b"} <= targets


def test_dtypes_stand_where_they_change() -> None:
    x = op.var("x", (4,), dtype="int64")
    explanation = cd.compile([op.cast(x, "float64")]).explain(time=False)
    assert "(4,) int64 -> (4,) float64" in str(explanation)


def test_a_loop_is_one_step_with_its_body_below() -> None:
    w = op.var("w", (3, 3))

    def step(carry: cd.Expr, x: cd.Expr) -> tuple[cd.Expr, None]:
        return op.reshape(op.reshape(carry, (1, 3)) @ w, (3,)) * x, None

    last, _ = op.scan(step, op.var("start", (3,)), op.var("xs", (5, 3)))
    explanation = cd.compile([last]).explain()
    loop, *body = explanation.rows
    assert (loop.step, loop.depth, loop.op, loop.kernel) == (0, 0, "scan of 5 steps", "loop")
    assert loop.seconds is not None
    assert {(row.step, row.depth, row.seconds) for row in body} == {(None, 1, None)}
    assert [row.op for row in body][:2] == ["matmul", "mul"]
    # The loop counts, its body is only shown.
    assert explanation.flops == loop.flops == 5 * sum(row.flops for row in body)
    assert "\n        matmul" in str(explanation)


def test_the_footer_has_the_facts_of_the_plan() -> None:
    plan, _ = training_step()
    explanation = plan.explain(time=False)
    assert explanation.nodes_as_written > explanation.nodes_optimised >= len(plan.schedule.steps)
    assert explanation.arena_bytes == plan.arena_bytes
    assert explanation.naive_bytes == plan.naive_bytes
    assert (explanation.device, explanation.precision) == ("cpu", ("float32",))
    text = str(explanation)
    assert f"{explanation.nodes_as_written} nodes as written" in text
    assert f"{explanation.nodes_optimised} after optimisation" in text
    assert f"{100 * plan.arena_bytes / plan.naive_bytes:.0f}%" in text


def test_results_written_over_an_input_are_counted() -> None:
    x = op.var("x", (64,), fill=cd.one())
    in_place = cd.compile([op.assign(x, op.exp(x))])
    assert in_place.explain(time=False).in_place == 1
    apart = cd.compile([op.exp(x)])
    assert apart.explain(time=False).in_place == 0


# --- which kernel, and what it beat


def test_beaten_kernels_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(
        self: Choices, node: Node, family: str, others: Sequence[Kernel] = (), **_: Any
    ) -> KernelChoice:
        (kernel, *_) = TABLE.candidates(node, family)
        times = {kernel.name: 1.0, "slow": 1.8, "slower": 3.0, "slowest": 9.0}
        return KernelChoice(kernel, times, "measured")

    monkeypatch.setattr(Choices, "choose", choose)
    x = op.var("x", (3, 3))
    explanation = cd.compile([x @ x]).explain(time=False)
    (row,) = explanation.rows
    assert row.beaten == {"slow": 1.8, "slower": 3.0, "slowest": 9.0}
    assert f"{row.kernel} (1.8x slow, 3.0x slower)" in str(explanation)


def test_a_kernel_fixed_by_hand_says_so() -> None:
    choices.fix("matmul", "reference")
    try:
        x = op.var("x", (3, 3))
        plan = cd.compile([x @ x])
        explanation = plan.explain(time=False)
        assert explanation.rows[0].source == "fixed"
        assert "reference (fixed)" in str(explanation)
        # The plan keeps its kernel; why another one is chosen now says nothing about it.
        choices.fix("matmul", "blas")
        (row,) = plan.explain(time=False).rows
        assert (row.kernel, row.source, row.beaten) == ("reference", "", {})
    finally:
        choices.unfix("matmul")


# --- time


def test_without_time_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = training_step()
    monkeypatch.setattr(plan._binding, "prepare", None)
    explanation = plan.explain(time=False)
    assert explanation.seconds is None
    assert all(row.seconds is row.share is row.roofline is None for row in explanation.rows)
    assert "roofline" not in str(explanation)


def test_shares_are_those_of_the_times() -> None:
    plan, _ = training_step()
    explanation = plan.explain()
    seconds = [row.seconds for row in explanation.rows if row.seconds is not None]
    assert len(seconds) == len(plan.schedule.steps)
    assert explanation.seconds == pytest.approx(sum(seconds))
    assert sum(row.share or 0.0 for row in explanation.rows) == pytest.approx(1.0)


@pytest.mark.parametrize(("dtype", "speed"), [("float32", 2e9), ("float64", 1e9)])
def test_the_roofline_is_the_least_time_over_the_real_one(dtype: str, speed: float) -> None:
    x = op.var("x", (16, 16), dtype=dtype)
    explanation = cd.compile([x @ x]).explain()
    (row,) = explanation.rows
    assert row.seconds is not None
    # A product that beats the measured peak is the new peak.
    peak = max(speed, row.flops / row.seconds)
    least = max(row.flops / peak, row.nbytes / PEAKS.bandwidth)
    assert row.roofline == pytest.approx(least / row.seconds)


def test_a_faster_product_raises_the_peak_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    raised = timing.cpu_peaks_at_least({float32: 3e9, float64: 0.5e9, bfloat16: 9e9})
    assert raised == Peaks(float32=3e9, float64=1e9, bfloat16=9e9, bandwidth=4e9)
    monkeypatch.setattr(timing, "_known", {})
    assert cpu_peaks() == raised


def test_the_larger_of_work_and_traffic_bounds_the_time() -> None:
    assert PEAKS.least_seconds(4e9, 4e9, float32) == 2.0
    assert PEAKS.least_seconds(4e9, 4e9, float64) == 4.0
    assert PEAKS.least_seconds(0, 8e9, int64) == 2.0
    assert replace(PEAKS, bfloat16=8e9).least_seconds(16e9, 0, bfloat16) == 2.0


def _speeds(*roots: Node) -> dict[DType, float]:
    """By dtype, what plans that take a second for each step show of the machine."""
    schedule = cd.compile(list(roots)).schedule
    return fastest(schedule, [1.0] * len(schedule.steps))


def test_only_products_of_matrices_show_what_the_machine_can_do() -> None:
    image, filters = op.var("image", (1, 8, 8, 8)), op.var("filters", (8, 8, 3, 3))
    # Winograd's method does fewer operations than are counted.
    assert _speeds(op.conv2d(image, filters, padding=1)) == {}
    x = op.var("x", (16, 16))
    assert _speeds(x @ x) == {float32: 2 * 16**3}


def test_a_product_of_narrow_numbers_is_no_faster_product_of_wide_ones() -> None:
    x = op.var("x", (16, 16), dtype="bfloat16")
    assert set(_speeds(x @ x)) == {bfloat16}


def test_a_copy_of_one_of_two_results_has_its_share_of_the_roofline() -> None:
    x, first, second = (op.var(name, (4, 4), fill=cd.uniform()) for name in "xyz")
    q, r = op.qr(x)
    rows = cd.compile([op.assign(first, r), op.assign(second, r), q]).explain().rows
    assert "copy" in [row.op for row in rows]
    assert all(row.roofline is not None for row in rows)


# --- nothing changes


@pytest.mark.parametrize("device", ["cpu", "loopback"])
@pytest.mark.parametrize("captured", [False, True])
def test_variables_keep_their_values(device: str, captured: bool) -> None:
    plan, variables = training_step(device)
    twin, twins = training_step(device)
    for variable, other in zip(variables, twins, strict=True):
        other.assign(variable.numpy())
    if captured:
        plan.capture()
    feeds = {"x": np.ones((4, 3), np.float32)}
    before = [variable.numpy() for variable in variables]
    explanation = plan.explain(feeds)
    for variable, old in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)
    assert explanation.device == plan.device.name
    assert plan.run(feeds)[0].item() == twin.run(feeds)[0].item()
    for variable, other in zip(variables, twins, strict=True):
        np.testing.assert_array_equal(variable.numpy(), other.numpy())


def test_variables_keep_their_values_when_a_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, variables = training_step()
    before = [variable.numpy() for variable in variables]
    runs = []

    def fail_after_a_run(calls: Sequence[Runner], device: Device) -> list[float]:
        for call in calls:
            call()
        runs.append(len(calls))
        raise KeyboardInterrupt

    monkeypatch.setattr(timing, "_on_host", fail_after_a_run)
    with pytest.raises(KeyboardInterrupt):
        plan.explain()
    assert runs == [len(plan.schedule.steps)]
    for variable, old in zip(variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), old)


def test_results_in_the_hands_of_a_user_stay() -> None:
    x = op.var("x", (3,), fill=cd.one())
    plan = cd.compile([x * 2.0])
    held = plan.run()[0]
    x.assign([5.0, 5.0, 5.0])
    plan.explain()
    assert held.tolist() == [2.0, 2.0, 2.0]
    assert plan.run()[0].tolist() == [10.0, 10.0, 10.0]


def test_inputs_keep_what_they_were_fed() -> None:
    x = op.input("x", (2,), dtype="int64")
    table = op.var("table", (4, 3), fill=cd.one())
    plan = cd.compile([op.gather(table, x)])
    plan.explain()
    plan.run({"x": [1, 3]})
    plan.explain()
    plan.explain({"x": [0, 2]})
    with pytest.raises(ConfigError, match="a value for each of: x"):
        plan.explain({"y": [0, 2]})


# --- the peaks of the machine


def test_peaks_are_measured_once_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    measured = []

    def measure() -> Peaks:
        measured.append(PEAKS)
        return PEAKS

    monkeypatch.setattr(timing, "measure", measure)
    assert cpu_peaks() == cpu_peaks() == PEAKS
    assert len(measured) == 1
    monkeypatch.setattr(timing, "_known", {})  # as in the next process
    assert cpu_peaks() == PEAKS
    assert len(measured) == 1
    with cd.settings.override(threads=cd.settings.threads + 1):
        cpu_peaks()
    assert len(measured) == 2
    with cd.settings.override(cache_dir=tmp_path / "other"):
        cpu_peaks()
    assert len(measured) == 3


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"float32": 1}', '{"float32": 0, "float64": 1, "bandwidth": 1}']
)
@pytest.mark.parametrize("foreign", [True, False])
def test_a_damaged_file_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, content: str, foreign: bool
) -> None:
    cpu_peaks()
    cache = FileCache("peaks")
    (key,) = cache
    if foreign:
        cache.path(key).write_text(content)
    else:
        cache.write(key, content.encode())
    monkeypatch.setattr(timing, "_known", {})
    assert cpu_peaks() == PEAKS
    assert cache.read_json(key) == vars(PEAKS)


def test_a_folder_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "peaks").write_text("a file where the folder should be")
    assert cpu_peaks() == PEAKS


def test_the_real_measurement_gives_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(timing, "SIDE", 16)
    monkeypatch.setattr(timing, "STREAM_BYTES", 1 << 16)
    monkeypatch.setattr(timing, "ENOUGH_S", 0.0)
    peaks = timing.measure()
    assert min(vars(peaks).values()) > 0


def test_one_thread_is_measured_with_one_thread_of_the_blas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timing, "SIDE", 16)
    monkeypatch.setattr(timing, "ENOUGH_S", 0.0)
    seen = []
    matmul = np.matmul

    def noted(*operands: np.ndarray) -> np.ndarray:
        seen.append(blas_threads._get_threads() if blas_threads._get_threads else 1)
        return matmul(*operands)

    monkeypatch.setattr(np, "matmul", noted)
    with cd.settings.override(threads=3):
        assert timing._product_speed(float32) > 0
    # Once to warm up and once timed, by each of three threads.
    assert seen == [1] * 6
