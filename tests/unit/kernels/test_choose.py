"""Choosing kernels by measurement: which one serves, why, and what is remembered."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.config import settings
from caldera.errors import ConfigError, DeviceError
from caldera.graph.body import Body
from caldera.graph.node import Node, Spec, intern
from caldera.graph.opdef import parameter
from caldera.graph.ops.control import fused
from caldera.graph.ops.elementwise import add, exp
from caldera.graph.ops.movement import arrange
from caldera.graph.ops.product import matmul
from caldera.graph.ops.random import random_uniform
from caldera.kernels import choose, remember
from caldera.kernels.choose import Choices
from caldera.kernels.measure import Outcome, measure
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel, KernelTable, Runner
from caldera.tensor.dtype import float32, int64


def _product(rows: int = 64) -> Node:
    """A node that is large enough to be measured."""
    node: Node = matmul(
        parameter(0, Spec((rows, 64), float32)), parameter(1, Spec((64, 64), float32)),
        ta=False, tb=False,
    )  # fmt: skip
    return node


def _compute(call: Call) -> None:
    for output, value in zip(call.outputs, evaluate(call.node, call.inputs), strict=True):
        np.copyto(output, value)


class Watched:
    """Makes kernels for the tests, and counts how often each was bound."""

    def __init__(self) -> None:
        self.bound: dict[str, int] = {}
        self.table = KernelTable()

    def add(
        self,
        name: str,
        work: Callable[[Call], object] = _compute,
        priority: int = 0,
        workspace: int = 0,
    ) -> Kernel:
        def bind(call: Call) -> Runner:
            self.bound[name] = self.bound.get(name, 0) + 1
            return lambda: work(call)

        kernel = Kernel(
            "matmul", "cpu", name, bind, workspace=lambda node: workspace, priority=priority
        )
        self.table.add(kernel)
        return kernel

    def measured(self) -> bool:
        return bool(self.bound)


def _slowly(call: Call) -> None:
    time.sleep(0.003)
    _compute(call)


def _wrongly(call: Call) -> None:
    _compute(call)
    call.outputs[0][0, 0] += 1.0


def _raise(call: Call) -> None:
    raise RuntimeError("no such instruction")


def _nothing(call: Call) -> None:
    """A kernel that forgets to write its result."""


@pytest.fixture
def kernels() -> Watched:
    """An empty table."""
    return Watched()


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path) -> Iterator[None]:
    """Each test has its own memory on disk."""
    with settings.override(cache_dir=tmp_path, tune_budget_s=10.0, deterministic=False):
        yield


def _race(kernels: Watched) -> Choices:
    """A slow kernel of high priority against a fast one."""
    kernels.add("slow", _slowly, priority=5)
    kernels.add("fast")
    return Choices(kernels.table)


# --- measuring


def test_the_faster_kernel_is_chosen_whatever_its_priority(kernels: Watched) -> None:
    verdict = _race(kernels).verdict(_product(), "cpu")
    assert verdict.kernel.name == "fast"
    assert verdict.source == "measured"
    assert verdict.times is not None
    assert set(verdict.times) == {"slow", "fast"}
    assert list(verdict.beaten) == ["slow"]
    assert verdict.beaten["slow"] > 1.0


@pytest.mark.parametrize(
    ("work", "reason"),
    [(_wrongly, "differs"), (_nothing, "differs"), (_raise, "no such instruction")],
)
def test_kernels_that_are_wrong_are_left_out_with_a_warning(
    kernels: Watched, work: Callable[[Call], object], reason: str
) -> None:
    kernels.add("bad", work, priority=5)
    kernels.add("good", _slowly)
    with pytest.warns(RuntimeWarning, match=rf"op\.matmul: kernel 'bad' is left out.*{reason}"):
        verdict = Choices(kernels.table).verdict(_product(), "cpu")
    assert verdict.kernel.name == "good"
    assert verdict.times is not None
    assert "bad" not in verdict.times


@pytest.mark.filterwarnings("ignore:.*is left out")
def test_the_oracle_serves_when_all_others_fail(kernels: Watched) -> None:
    kernels.add("wrong", _wrongly)
    kernels.add("broken", _raise)
    with pytest.raises(DeviceError, match=r"op\.matmul.*none of wrong, broken"):
        Choices(kernels.table).verdict(_product(), "cpu")
    kernels.add("reference", priority=-10)
    assert Choices(kernels.table).kernel(_product(), "cpu").name == "reference"


def test_the_oracle_does_not_compete(kernels: Watched) -> None:
    kernels.add("reference", priority=-10)
    kernels.add("other", _slowly)
    verdict = Choices(kernels.table).verdict(_product(), "cpu")
    assert (verdict.kernel.name, verdict.source) == ("other", "only")
    assert not kernels.measured()


def test_a_single_kernel_is_taken_as_it_is(kernels: Watched) -> None:
    kernels.add("alone", _raise)
    verdict = Choices(kernels.table).verdict(_product(), "cpu")
    assert (verdict.kernel.name, verdict.times, verdict.source) == ("alone", None, "only")


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
    kernels: Watched, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], chosen: str
) -> None:
    for priority, name in enumerate(["third", "second", "first"]):
        kernels.add(name, priority=priority)
    monkeypatch.setitem(choose.TIMERS, "cpu", lambda node, rivals, limit: Outcome(dict(seconds)))
    assert Choices(kernels.table).kernel(_product(), "cpu").name == chosen


def test_tiny_nodes_are_not_measured(kernels: Watched) -> None:
    choices = _race(kernels)
    tiny = matmul(
        parameter(0, Spec((4, 4), float32)), parameter(1, Spec((4, 4), float32)),
        ta=False, tb=False,
    )  # fmt: skip
    verdict = choices.verdict(tiny, "cpu")
    assert (verdict.kernel.name, verdict.source) == ("slow", "guess")
    assert not kernels.measured()


def test_other_families_go_by_priority(kernels: Watched) -> None:
    for name, priority in (("first", 1), ("second", 0)):
        kernels.table.add(
            Kernel("matmul", "abacus", name, lambda call: lambda: None, priority=priority)
        )
    verdict = Choices(kernels.table).verdict(_product(), "abacus")
    assert (verdict.kernel.name, verdict.source) == ("first", "guess")


# --- limits


def test_the_workspace_limit_excludes(kernels: Watched) -> None:
    kernels.add("hungry", workspace=2000, priority=5)
    kernels.add("slow", _slowly)
    kernels.add("slower", _slowly, priority=-1)
    choices = Choices(kernels.table)
    with settings.override(workspace_limit=1999):
        verdict = choices.verdict(_product(), "cpu")
        assert verdict.times is not None
        assert "hungry" not in verdict.times
    with settings.override(workspace_limit=2000):
        assert choices.kernel(_product(), "cpu").name == "hungry"


def test_if_nothing_is_within_the_limit_the_least_hungry_serves(kernels: Watched) -> None:
    kernels.add("more", workspace=3000, priority=5)
    kernels.add("less", workspace=2000)
    with settings.override(workspace_limit=0):
        assert Choices(kernels.table).kernel(_product(), "cpu").name == "less"


def test_measured_kernels_get_the_workspace_they_ask_for(kernels: Watched) -> None:
    seen: dict[str, int] = {}

    def note(name: str) -> Callable[[Call], None]:
        def work(call: Call) -> None:
            seen[name] = 0 if call.workspace is None else call.workspace.nbytes
            _compute(call)

        return work

    kernels.add("large", note("large"), workspace=4096)
    kernels.add("small", note("small"), workspace=64)
    Choices(kernels.table).kernel(_product(), "cpu")
    assert seen["large"] >= 4096
    assert seen["small"] >= 64


def test_a_deterministic_run_measures_nothing(kernels: Watched) -> None:
    choices = _race(kernels)
    with settings.override(deterministic=True):
        verdict = choices.verdict(_product(), "cpu")
        assert (verdict.kernel.name, verdict.source) == ("slow", "guess")
        assert not kernels.measured()


def test_a_deterministic_run_follows_what_is_remembered(kernels: Watched) -> None:
    choices = _race(kernels)
    choices.kernel(_product(), "cpu")
    with settings.override(deterministic=True):
        verdict = choices.verdict(_product(), "cpu")
    assert (verdict.kernel.name, verdict.source) == ("fast", "remembered")


def test_without_a_budget_the_priority_decides(kernels: Watched) -> None:
    choices = _race(kernels)
    with settings.override(tune_budget_s=0.0):
        assert choices.verdict(_product(), "cpu").source == "guess"
    assert not kernels.measured()


def test_all_nodes_share_one_budget(kernels: Watched) -> None:
    choices = _race(kernels)
    with settings.override(tune_budget_s=0.003):
        # The first measurement takes longer than that: each call of "slow" does.
        assert choices.verdict(_product(64), "cpu").source == "measured"
        assert choices.verdict(_product(65), "cpu").source == "guess"
    choices.clear()
    with settings.override(tune_budget_s=0.003):
        assert choices.verdict(_product(65), "cpu").source == "measured"


def test_a_node_that_would_take_too_long_is_not_begun(kernels: Watched) -> None:
    choices = _race(kernels)
    huge = matmul(
        parameter(0, Spec((1 << 14, 1 << 14), float32)),
        parameter(1, Spec((1 << 14, 1 << 14), float32)), ta=False, tb=False,
    )  # fmt: skip
    assert choices.verdict(huge, "cpu").source == "guess"
    assert not kernels.measured()


# --- remembering


def test_another_process_remembers(kernels: Watched, tmp_path: Path) -> None:
    _race(kernels).kernel(_product(), "cpu")
    kernels.bound.clear()
    verdict = Choices(kernels.table).verdict(_product(), "cpu")
    assert (verdict.kernel.name, verdict.source) == ("fast", "remembered")
    assert verdict.times is not None
    assert set(verdict.times) == {"slow", "fast"}
    assert not kernels.measured()
    assert [path.suffix for path in (tmp_path / "choices").iterdir()] == [".json"]


def test_another_set_of_kernels_is_another_question(kernels: Watched) -> None:
    _race(kernels).kernel(_product(), "cpu")
    kernels.add("new", priority=-1)
    kernels.bound.clear()
    assert Choices(kernels.table).verdict(_product(), "cpu").source == "measured"


def _columns_first(spec: Spec) -> Spec:
    return Spec(spec.shape, spec.dtype, (1, 0))


def test_kernels_are_measured_on_memory_in_the_order_of_the_node() -> None:
    plain = _product()
    given = arrange(plain.inputs[0], (1, 0))
    node = intern(
        plain.op, (given, plain.inputs[1]), dict(plain.attrs), (_columns_first(plain.spec),)
    )
    seen: list[Call] = []

    def bind(call: Call) -> Runner:
        seen.append(call)
        return lambda: np.matmul(*call.inputs, call.outputs[0])

    outcome = measure(node, [Kernel("matmul", "cpu", "mine", bind)], 0.0)
    assert list(outcome.times) == ["mine"]
    (call,) = seen
    flags = [array.flags.f_contiguous for array in (*call.inputs, *call.outputs)]
    assert flags == [True, False, True]


@pytest.mark.parametrize("change", ["threads", "shape", "attribute", "order"])
def test_what_matters_is_part_of_the_question(change: str) -> None:
    node = _product()
    before = remember.question_of(node, "cpu", [])
    with settings.override(threads=settings.threads + (change == "threads")):
        other = node
        if change == "shape":
            other = _product(65)
        if change == "attribute":
            other = matmul(*node.inputs, ta=True, tb=False)
        if change == "order":
            other = intern(node.op, node.inputs, dict(node.attrs), (_columns_first(node.spec),))
        after = remember.question_of(other, "cpu", [])
    assert before is not None
    assert after is not None
    assert remember.digest(before) != remember.digest(after)


def test_the_machine_is_part_of_the_question() -> None:
    question = remember.question_of(_product(), "cpu", [])
    assert question is not None
    assert question["machine"]["numpy"] == np.__version__
    assert question["machine"]["cpu"]
    assert question["machine"]["blas"]


def test_the_number_of_a_random_stream_does_not_matter() -> None:
    state, offset = parameter(0, Spec((2,), int64)), parameter(1, Spec((), int64))
    first, second = (
        random_uniform(state, offset, shape=(9,), dtype=float32, stream=stream) for stream in (1, 2)
    )
    assert remember.question_of(first, "cpu", []) == remember.question_of(second, "cpu", [])


def test_bodies_are_written_down_by_structure() -> None:
    x = parameter(0, Spec((3,), float32))
    questions = [
        remember.question_of(fused(x, body=Body([x], [output])), "cpu", [])
        for output in (exp(x), add(exp(x), x))
    ]
    assert None not in questions
    assert questions[0] != questions[1]
    assert json.loads(json.dumps(questions)) == questions


def test_what_cannot_be_written_down_is_not_asked() -> None:
    variable = op.var("x", (3,)).node
    assert remember.question_of(variable, "cpu", []) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '"text"', '{"format": 1}', '{"format": 2, "question": {}}', "\x00\xff",
     '{"format": 1, "question": {}, "chosen": "fast", "times": {}}',
     '{"format": 1, "question": [], "chosen": 3, "times": []}'],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_measured_anew(
    kernels: Watched, tmp_path: Path, content: str
) -> None:
    _race(kernels).kernel(_product(), "cpu")
    (path,) = (tmp_path / "choices").iterdir()
    path.write_text(content, encoding="latin-1")
    (tmp_path / "choices" / "notes.json").write_text(content, encoding="latin-1")
    choices = Choices(kernels.table)
    assert "fast" not in choices.table()
    assert choices.verdict(_product(), "cpu").source == "measured"
    assert Choices(kernels.table).verdict(_product(), "cpu").source == "remembered"


@pytest.mark.parametrize(
    "damage",
    [{"chosen": "gone"}, {"times": {"fast": "quick"}}, {"format": 7}, {"question": {"op": "add"}}],
)
def test_an_answer_that_does_not_fit_is_not_believed(
    kernels: Watched, tmp_path: Path, damage: dict[str, Any]
) -> None:
    _race(kernels).kernel(_product(), "cpu")
    (path,) = (tmp_path / "choices").iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    assert Choices(kernels.table).verdict(_product(), "cpu").source == "measured"


def test_a_folder_that_cannot_be_written_costs_only_the_memory(
    kernels: Watched, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    choices = _race(kernels)
    with settings.override(cache_dir=tmp_path / "file" / "folder"):
        with pytest.warns(RuntimeWarning, match="not kept"):
            assert choices.kernel(_product(), "cpu").name == "fast"
        assert choices.verdict(_product(), "cpu").source == "remembered"


def test_readers_never_see_half_a_file() -> None:
    question = remember.question_of(_product(), "cpu", [Kernel("matmul", "cpu", "k", _bind_none)])
    assert question is not None
    record = remember.Record(question, "k", {"k": 1.0})
    remember.store(record)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            remember.store(record)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    try:
        assert all(remember.load(question) == record for _ in range(200))
    finally:
        done.set()
        for writer in writers:
            writer.join()


def _bind_none(call: Call) -> Runner:
    return lambda: None


# --- fixing, clearing, printing


def test_a_fixed_kernel_serves_until_it_is_unfixed(kernels: Watched) -> None:
    choices = _race(kernels)
    choices.fix("matmul", "slow")
    verdict = choices.verdict(_product(), "cpu")
    assert (verdict.kernel.name, verdict.times, verdict.source) == ("slow", None, "fixed")
    choices.unfix("matmul")
    assert choices.kernel(_product(), "cpu").name == "fast"


def test_a_fixed_kernel_that_cannot_run_a_node_gives_way(kernels: Watched) -> None:
    kernels.add("hungry", workspace=2000)
    kernels.add("modest")
    choices = Choices(kernels.table)
    choices.fix("matmul", "hungry")
    with settings.override(workspace_limit=10):
        assert choices.kernel(_product(), "cpu").name == "modest"


def test_fixing_what_does_not_exist_is_refused(kernels: Watched) -> None:
    choices = _race(kernels)
    with pytest.raises(ConfigError, match=r"slow, fast.*'quick'"):
        choices.fix("matmul", "quick")
    with pytest.raises(ConfigError, match="did you mean 'matmul'"):
        choices.fix("matmull", "fast")
    with pytest.raises(ConfigError, match="'mat'"):
        choices.unfix("mat")


def test_clearing_forgets_memory_and_disk(kernels: Watched, tmp_path: Path) -> None:
    choices = _race(kernels)
    choices.kernel(_product(), "cpu")
    choices.clear()
    assert not list((tmp_path / "choices").iterdir())
    assert choices.verdict(_product(), "cpu").source == "measured"


def test_the_version_changes_when_choices_may(kernels: Watched) -> None:
    choices = _race(kernels)
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
    kernels: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timer(node: Node, rivals: Sequence[Kernel], seconds: float) -> Outcome:
        return Outcome({"slow": 2e-3, "fast": 5e-4})

    monkeypatch.setitem(choose.TIMERS, "cpu", timer)
    choices = _race(kernels)
    choices.kernel(_product(), "cpu")
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
