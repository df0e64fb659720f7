"""Choosing kernels by measurement: which one serves, and why."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.base.config import settings
from caldera.base.threads import at_most_threads, thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import parameter
from caldera.core.graph.ops.product import matmul
from caldera.core.tensor.dtype import float32
from caldera.errors import ConfigError, DeviceError
from caldera.kernels.native.codegen.emitter import Emitter, Pointer
from caldera.kernels.native.codegen.kernel import Integer, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.table import TABLE, Call, Kernel, KernelTable
from caldera.kernels.tuning import choose, measure
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.correctness import compare
from caldera.kernels.tuning.measure import TuningResult
from caldera.kernels.tuning.threads import on_fewer_threads
from tests.unit.kernels.fake_kernels import (
    FakeKernels,
    compute,
    fail,
    nothing,
    product_node,
    race,
    slowly,
    wrongly,
)

pytestmark = pytest.mark.usefixtures("own_folder")


# --- measuring


def test_the_faster_kernel_is_chosen_whatever_its_priority(kernels: FakeKernels) -> None:
    choice = race(kernels).choose(product_node(), "cpu")
    assert choice.kernel.name == "fast"
    assert choice.source == "measured"
    assert choice.times is not None
    assert set(choice.times) == {"slow", "fast"}
    assert list(choice.beaten) == ["slow"]
    assert choice.beaten["slow"] > 1.0


@pytest.mark.parametrize(
    ("work", "reason"),
    [(wrongly, "differs"), (nothing, "differs"), (fail, "no such instruction")],
)
def test_kernels_that_are_wrong_are_left_out_with_a_warning(
    kernels: FakeKernels, work: Callable[[Call], object], reason: str
) -> None:
    kernels.add("bad", work, priority=5)
    kernels.add("good", slowly)
    with pytest.warns(RuntimeWarning, match=rf"op\.matmul: kernel 'bad' is left out.*{reason}"):
        choice = Choices(kernels.table).choose(product_node(), "cpu")
    assert choice.kernel.name == "good"
    assert choice.times is not None
    assert "bad" not in choice.times


@pytest.mark.filterwarnings("ignore:.*is left out")
def test_the_oracle_serves_when_all_others_fail(kernels: FakeKernels) -> None:
    kernels.add("wrong", wrongly)
    kernels.add("broken", fail)
    with pytest.raises(DeviceError, match=r"op\.matmul.*none of wrong, broken"):
        Choices(kernels.table).choose(product_node(), "cpu")
    kernels.add("reference", priority=-10)
    assert Choices(kernels.table).kernel(product_node(), "cpu").name == "reference"


def test_a_kernel_made_for_the_node_competes_with_those_of_the_table(kernels: FakeKernels) -> None:
    kernels.add("slow", slowly)
    made = Kernel("matmul", "cpu", "made", lambda call: lambda: compute(call))
    choice = Choices(kernels.table).choose(product_node(), "cpu", [made])
    assert (choice.kernel, choice.source) == (made, "measured")
    assert choice.times is not None
    assert set(choice.times) == {"slow", "made"}


def test_the_oracle_does_not_compete(kernels: FakeKernels) -> None:
    kernels.add("reference", priority=-10)
    kernels.add("other", slowly)
    choice = Choices(kernels.table).choose(product_node(), "cpu")
    assert (choice.kernel.name, choice.source) == ("other", "only")
    assert not kernels.measured()


def test_a_single_kernel_is_taken_as_it_is(kernels: FakeKernels) -> None:
    kernels.add("alone", fail)
    choice = Choices(kernels.table).choose(product_node(), "cpu")
    assert (choice.kernel.name, choice.times, choice.source) == ("alone", None, "only")


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"first": 1.00, "second": 0.98}, "first"),
        ({"first": 1.00, "second": 0.96}, "second"),
        ({"first": 1.00, "second": 0.98, "third": 0.965}, "third"),
        ({"first": 1.00, "second": 0.90, "third": 0.89}, "second"),
        ({"second": 1.00, "third": 1.50}, "second"),
    ],
)
def test_a_higher_priority_is_worth_three_percent(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], chosen: str
) -> None:
    for priority, name in enumerate(["third", "second", "first"]):
        kernels.add(name, priority=priority)
    monkeypatch.setitem(
        choose.TIMERS, "cpu", lambda node, rivals, limit: TuningResult(dict(seconds))
    )
    assert Choices(kernels.table).kernel(product_node(), "cpu").name == chosen


@pytest.mark.parametrize(("threads", "chosen"), [(1, "library"), (2, "native")])
def test_a_call_that_ends_a_run_of_native_kernels_must_be_worth_it(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch, threads: int, chosen: str
) -> None:
    library = kernels.add("library")
    kernels.table.forget("matmul")
    kernels.table.add(replace(library, serial=True))
    kernels.add("native", priority=1)
    times = {"native": 1e-4, "library": 0.8e-4}
    monkeypatch.setitem(choose.TIMERS, "cpu", lambda node, rivals, limit: TuningResult(dict(times)))
    with settings.override(threads=threads):
        assert Choices(kernels.table).kernel(product_node(), "cpu").name == chosen
        times["library"] = 0.5e-4
        assert Choices(kernels.table).kernel(product_node(80), "cpu").name == "library"


def test_tiny_nodes_are_not_measured(kernels: FakeKernels) -> None:
    choices = race(kernels)
    tiny = matmul(
        parameter(0, Spec((4, 4), float32)),
        parameter(1, Spec((4, 4), float32)),
        ta=False,
        tb=False,
    )
    choice = choices.choose(tiny, "cpu")
    assert (choice.kernel.name, choice.source) == ("slow", "guess")
    assert not kernels.measured()


def test_other_families_go_by_priority(kernels: FakeKernels) -> None:
    for name, priority in (("first", 1), ("second", 0)):
        kernels.table.add(
            Kernel("matmul", "abacus", name, lambda call: lambda: None, priority=priority)
        )
    choice = Choices(kernels.table).choose(product_node(), "abacus")
    assert (choice.kernel.name, choice.source) == ("first", "guess")


# --- limits


def test_the_workspace_limit_excludes(kernels: FakeKernels) -> None:
    kernels.add("hungry", workspace=2000, priority=5)
    kernels.add("slow", slowly)
    kernels.add("slower", slowly, priority=-1)
    choices = Choices(kernels.table)
    with settings.override(workspace_limit=1999):
        choice = choices.choose(product_node(), "cpu")
        assert choice.times is not None
        assert "hungry" not in choice.times
    with settings.override(workspace_limit=2000):
        assert choices.kernel(product_node(), "cpu").name == "hungry"


def test_if_nothing_is_within_the_limit_the_least_hungry_serves(kernels: FakeKernels) -> None:
    kernels.add("more", workspace=3000, priority=5)
    kernels.add("less", workspace=2000)
    with settings.override(workspace_limit=0):
        assert Choices(kernels.table).kernel(product_node(), "cpu").name == "less"


def test_measured_kernels_get_the_workspace_they_ask_for(kernels: FakeKernels) -> None:
    seen: dict[str, int] = {}

    def note(name: str) -> Callable[[Call], None]:
        def work(call: Call) -> None:
            seen[name] = 0 if call.workspace is None else call.workspace.nbytes
            compute(call)

        return work

    kernels.add("large", note("large"), workspace=4096)
    kernels.add("small", note("small"), workspace=64)
    Choices(kernels.table).kernel(product_node(), "cpu")
    assert seen["large"] >= 4096
    assert seen["small"] >= 64


def test_a_deterministic_run_measures_nothing(kernels: FakeKernels) -> None:
    choices = race(kernels)
    with settings.override(deterministic=True):
        choice = choices.choose(product_node(), "cpu")
        assert (choice.kernel.name, choice.source) == ("slow", "guess")
        assert not kernels.measured()


def test_a_deterministic_run_follows_what_is_remembered(kernels: FakeKernels) -> None:
    choices = race(kernels)
    choices.kernel(product_node(), "cpu")
    with settings.override(deterministic=True):
        choice = choices.choose(product_node(), "cpu")
    assert (choice.kernel.name, choice.source) == ("fast", "remembered")


def test_without_a_budget_the_priority_decides(kernels: FakeKernels) -> None:
    choices = race(kernels)
    with settings.override(tune_budget_s=0.0):
        assert choices.choose(product_node(), "cpu").source == "guess"
    assert not kernels.measured()


def test_all_nodes_share_one_budget(kernels: FakeKernels) -> None:
    choices = race(kernels)
    with settings.override(tune_budget_s=0.003):
        # The first measurement takes longer than that: each call of "slow" does.
        assert choices.choose(product_node(64), "cpu").source == "measured"
        assert choices.choose(product_node(65), "cpu").source == "predicted"
    choices.clear()
    with settings.override(tune_budget_s=0.003):
        assert choices.choose(product_node(65), "cpu").source == "measured"


def test_a_node_that_would_take_too_long_is_not_begun(kernels: FakeKernels) -> None:
    choices = race(kernels)
    huge = matmul(
        parameter(0, Spec((1 << 14, 1 << 14), float32)),
        parameter(1, Spec((1 << 14, 1 << 14), float32)),
        ta=False,
        tb=False,
    )
    assert choices.choose(huge, "cpu").source == "guess"
    assert not kernels.measured()


# --- fixing, clearing, printing


def test_a_fixed_kernel_serves_until_it_is_unfixed(kernels: FakeKernels) -> None:
    choices = race(kernels)
    choices.fix("matmul", "slow")
    choice = choices.choose(product_node(), "cpu")
    assert (choice.kernel.name, choice.times, choice.source) == ("slow", None, "fixed")
    choices.unfix("matmul")
    assert choices.kernel(product_node(), "cpu").name == "fast"


def test_a_fixed_kernel_that_needs_too_much_memory_is_an_error(kernels: FakeKernels) -> None:
    kernels.add("hungry", workspace=2000)
    kernels.add("modest")
    choices = Choices(kernels.table)
    choices.fix("matmul", "hungry")
    with settings.override(workspace_limit=10):
        with pytest.raises(ConfigError, match=r"hungry.*2000 bytes.*10 are allowed.*modest"):
            choices.kernel(product_node(), "cpu")
        choices.fix("matmul", "hungry", optional=True)
        assert choices.kernel(product_node(), "cpu").name == "modest"


def test_a_fixed_kernel_that_does_not_support_a_node_is_an_error() -> None:
    x, w = op.var("x", (1, 1, 6, 6), fill=cd.one()), op.var("w", (1, 1, 5, 5), fill=cd.one())
    choose.choices.fix("conv2d", "1x1 product")
    try:
        with pytest.raises(ConfigError, match=r"can run <conv2d.*1x1 product, which.*direct"):
            cd.compile([op.conv2d(x, w)])
        choose.choices.fix("conv2d", "1x1 product", optional=True)
        plan = cd.compile([op.conv2d(x, w)])
    finally:
        choose.choices.unfix("conv2d")
    np.testing.assert_array_equal(plan.run()[0].numpy(), np.full((1, 1, 2, 2), 25.0))


def test_fixing_what_does_not_exist_is_refused(kernels: FakeKernels) -> None:
    choices = race(kernels)
    with pytest.raises(ConfigError, match=r"slow, fast.*'quick'"):
        choices.fix("matmul", "quick")
    with pytest.raises(ConfigError, match="did you mean 'matmul'"):
        choices.fix("matmull", "fast")
    with pytest.raises(ConfigError, match="'mat'"):
        choices.unfix("mat")


def test_clearing_forgets_memory_and_disk(kernels: FakeKernels, tmp_path: Path) -> None:
    choices = race(kernels)
    choices.kernel(product_node(), "cpu")
    choices.clear()
    assert not list((tmp_path / "choices").iterdir())
    assert choices.choose(product_node(), "cpu").source == "measured"


def test_the_version_changes_when_choices_may(kernels: FakeKernels) -> None:
    choices = race(kernels)
    versions = [choices.version]
    choices.fix("matmul", "slow")
    versions.append(choices.version)
    choices.unfix("matmul")
    versions.append(choices.version)
    choices.clear()
    versions.append(choices.version)
    with settings.override(workspace_limit=7):
        versions.append(choices.version)
    assert len(set(versions)) == len(versions)


def test_the_table_shows_what_was_chosen_and_what_it_beat(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timer(node: Node, rivals: Sequence[Kernel], seconds: float) -> TuningResult:
        return TuningResult({"slow": 2e-3, "fast": 5e-4})

    monkeypatch.setitem(choose.TIMERS, "cpu", timer)
    choices = race(kernels)
    choices.kernel(product_node(), "cpu")
    for shown in (choices.table(), Choices(kernels.table).table()):
        assert shown.splitlines() == [
            "op      inputs                       chosen       beat",
            "matmul  64x64 float32 64x64 float32  fast 500 us  slow 2 ms (4.00x)",
        ]
    choices.fix("matmul", "slow")
    assert "fixed by hand" in choices.table()


# --- in plans


def test_plans_go_by_the_choices() -> None:
    x = op.var("x", (3, 3), fill=cd.identity())
    product = x @ x

    def kernel_of_product() -> str:
        steps = cd.compile([product]).schedule.steps
        return next(step.kernel.name for step in steps if step.node.op.name == "matmul")

    assert kernel_of_product() == "tiles"
    choose.choices.fix("matmul", "reference")
    try:
        assert kernel_of_product() == "reference"
    finally:
        choose.choices.unfix("matmul")
    assert kernel_of_product() == "tiles"


# --- the number of threads


@native_kernel
def _waste_time(k: Emitter, x: Pointer, turns: Integer) -> None:
    """A kernel for which more parts are more work."""
    with k.loop(0, turns) as i:
        x.store(0, x.load(0) + k.convert(i, x.type))


def _slower_on_more_threads(call: Call) -> NativeRunner:
    parts = thread_count()
    product = next(each for each in TABLE.kernels("matmul", "cpu") if each.name == "tiles")
    with at_most_threads(1):
        bound = product.bind(call)
    assert isinstance(bound, NativeRunner)
    waste = _waste_time.call(x=np.zeros(1), turns=2_000_000 * (parts - 1), parts=parts)
    return NativeRunner([*bound.calls, waste])


def _slower_than_a_busy_machine(call: Call) -> None:
    """Four threads that share two cores with others may wait for some milliseconds."""
    time.sleep(0.05)
    compute(call)


def test_an_op_gets_the_number_of_threads_it_is_fastest_with(
    kernels: FakeKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Calls of milliseconds, so that other programs change nothing, count as short ones here.
    monkeypatch.setattr(measure, "SHORT_S", 1.0)
    kernels.add("slow", _slower_than_a_busy_machine)
    kernels.table.add(Kernel("matmul", "cpu", "native", _slower_on_more_threads, priority=1))
    with settings.override(threads=4):
        choice = Choices(kernels.table).choose(product_node(), "cpu")
        assert choice.kernel.name == "native on 1 thread"
        assert choice.times is not None
        assert {"native", "native on 2 threads", "slow"} <= set(choice.times)
        # Another process finds it on disk.
        again = Choices(kernels.table).choose(product_node(), "cpu")
        assert (again.kernel.name, again.source) == ("native on 1 thread", "remembered")


def test_kernels_on_one_thread_are_not_tried_on_fewer(kernels: FakeKernels) -> None:
    with settings.override(threads=4):
        choice = race(kernels).choose(product_node(), "cpu")
    assert choice.times is not None
    assert set(choice.times) == {"slow", "fast"}


def test_a_number_of_threads_is_a_field_and_shown_in_the_name() -> None:
    (kernel, *_) = TABLE.kernels("matmul", "cpu")
    with settings.override(threads=16):
        fewer = on_fewer_threads(kernel)
    names = [f"{kernel.name} on {n}" for n in ("1 thread", "4 threads", "8 threads")]
    assert [each.name for each in fewer] == names
    assert [each.threads for each in fewer] == [1, 4, 8]
    assert kernel.threads is None
    assert {each.origin for each in fewer} == {kernel.origin}


# --- comparing with the oracle


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_results_are_compared_with_the_largest_element(dtype: str) -> None:
    wanted = np.array([[1.0, -100.0], [0.0, 3.0]], dtype)
    compare(wanted + np.asarray(0.05, dtype), wanted, 1e-3)
    for wrong in (0.2, np.nan, np.inf):
        with pytest.raises(Exception, match="differs from the reference kernel"):
            compare(wanted + np.asarray([[0.0, 0.0], [0.0, wrong]], dtype), wanted, 1e-3)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_must_be_in_the_same_places(special: float) -> None:
    wanted = np.array([1.0, special, 2.0], np.float32)
    compare(wanted.copy(), wanted, 1e-4)
    with pytest.raises(Exception, match="differs from the reference kernel"):
        compare(np.array([special, 1.0, 2.0], np.float32), wanted, 1e-4)


def test_large_results_are_compared_without_making_them_wider() -> None:
    wanted = np.linspace(-1.0, 1.0, 1000, dtype=np.float32)
    with patch.object(np, "allclose", side_effect=AssertionError("the slow way")):
        compare(wanted + np.float32(1e-6), wanted, 1e-4)


@pytest.mark.parametrize("shape", [(300_000,), (3, 100_000), (2, 3, 251, 200), (1, 1, 1)])
def test_a_difference_anywhere_in_a_large_result_is_seen(shape: tuple[int, ...]) -> None:
    wanted = np.ones(shape, np.float32).transpose()
    compare(wanted.copy(), wanted, 1e-4)
    for index in (0, wanted.size // 2, wanted.size - 1):
        output = wanted.copy()
        output.reshape(-1)[index] += 1e-3
        with pytest.raises(Exception, match="differs"):
            compare(output, wanted, 1e-4)


def test_large_results_are_compared_in_little_memory() -> None:
    wanted = np.ones((1024, 1024), np.float32)
    output = wanted.copy()
    tracemalloc.start()
    try:
        compare(output, wanted, 1e-4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < wanted.nbytes / 4


def test_kernels_of_the_cpu_are_loaded_when_one_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some_kernels.py").write_text("loaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    for look in (
        lambda table: table.has("exp", "cpu"),
        lambda table: table.names("exp", "cpu"),
        lambda table: table.load("cpu"),
    ):
        monkeypatch.delitem(sys.modules, "some_kernels", raising=False)
        table = KernelTable(rooms={"cpu": "some_kernels", "cuda": "no_such_module"})
        table.add(Kernel("exp", "cpu", "plain", lambda call: lambda: None))
        assert not table.has("exp", "cuda")
        assert "some_kernels" not in sys.modules
        look(table)
        assert "some_kernels" in sys.modules
        assert table.names("exp", "cpu") == ["plain"]


def test_what_was_told_is_not_told_again_unless_it_changed() -> None:
    """Ranks are sent the choices of rank 0 with every plan: a long run has many of both."""
    mine, theirs, told = Choices(), Choices(), {}
    mine.learn([[{"op": "matmul", "size": size}, "blas", {"blas": 1.0}] for size in (1, 2)])
    assert len(mine.known(told)) == 2
    assert mine.known(told) == []
    # What others know already is left as it is, and what they chose differently is not.
    mine.learn([[{"op": "matmul", "size": 1}, "blas", {}], [{"op": "sum"}, "native", {}]])
    theirs.learn(mine.known(told))
    assert theirs.known() == [[{"op": "sum"}, "native", {}]]
    mine.learn([[{"op": "matmul", "size": 1}, "packed", {}]])
    assert mine.known(told) == [[{"op": "matmul", "size": 1}, "packed", {}]]
    assert len(mine.known()) == 3
