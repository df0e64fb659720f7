"""Choosing among kernels of a card: what is timed, checked and remembered, and what is not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from caldera.base.config import settings
from caldera.core.graph.memory_format import NHWC
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import OPS, parameter
from caldera.core.graph.ops import product
from caldera.core.memory import Device
from caldera.core.memory.gpus import card_count
from caldera.core.tensor.dtype import BY_NAME, float16, float32, int64
from caldera.kernels.cuda.product import tiled
from caldera.kernels.cuda.runtime import device
from caldera.kernels.cuda.runtime import measure as on_card
from caldera.kernels.reference import evaluate
from caldera.kernels.table import TABLE, Call, Kernel, KernelTable, Runner
from caldera.kernels.tuning import database
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.correctness import tolerance_of
from tests.card.test_convolution import nodes_of
from tests.unit.ops.cases.convolution import Setting

POINTWISE = Setting("1x1", (2, 16, 6, 6), (24, 16, 1, 1))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path, tune_budget_s=20.0):
        yield


def _product(dtype: str = "float32", size: int = 40, **how: str) -> Node:
    a, b = (parameter(i, Spec((size, size), BY_NAME[dtype])) for i in (0, 1))
    node: Node = product.matmul(a, b, ta=False, tb=False, **how)
    return node


# --- a table whose kernels are known


class _Clock:
    """The clock of the card that is played: a call takes what its kernel says, however busy the
    machine is."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


_clock = _Clock()
CALL_S = 1e-4


def _by_oracle(call: Call) -> Runner:
    def run() -> None:
        _clock.seconds += CALL_S
        for output, value in zip(call.outputs, evaluate(call.node, call.inputs), strict=True):
            np.copyto(output, value)

    return run


def _slowly(call: Call) -> Runner:
    compute = _by_oracle(call)

    def run() -> None:
        _clock.seconds += 0.004
        compute()

    return run


def _wrongly(call: Call) -> Runner:
    return lambda: call.outputs[0].fill(1)


def _not_at_all(call: Call) -> Runner:
    return lambda: None


def _with_an_error(call: Call) -> Runner:
    raise RuntimeError("no such algorithm")


def _kernels(**binds: Any) -> KernelTable:
    table = KernelTable()
    for place, (name, bind) in enumerate(binds.items()):
        table.add(Kernel("matmul", "cuda", name, bind, priority=len(binds) - place))
    return table


@pytest.fixture
def real(card: Device, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The way in which a real card is measured; its memory is that of the host."""
    if card_count():
        pytest.skip("the kernels that are measured here are functions of the host")

    class Event:
        def record(self) -> None:
            self.at = _clock.now()

    def fill(address: int, value: int, nbytes: int, stream: int) -> None:
        ctypes.memset(address, value, nbytes)

    cuda = SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda one, other: (other.at - one.at) * 1e3,
        runtime=SimpleNamespace(memsetAsync=fill),
    )
    monkeypatch.setattr(on_card, "cupy", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(on_card, "card_count", lambda: 1)
    monkeypatch.setattr(on_card, "device", lambda name: card)
    return card


def test_the_fastest_wins(real: Device) -> None:
    choice = Choices(_kernels(slow=_slowly, tiles=_by_oracle)).choose(_product(), "cuda")
    assert choice.source == "measured"
    assert choice.kernel.name == "tiles"
    assert choice.beaten["slow"] > 2


def test_what_takes_much_longer_is_called_no_more_than_twice(real: Device) -> None:
    calls = []

    def counted(call: Call) -> Runner:
        run = _slowly(call)
        return lambda: (calls.append(call), run())

    choice = Choices(_kernels(quick=_by_oracle, tiles=counted)).choose(_product(), "cuda")
    assert choice.kernel.name == "quick"
    assert choice.beaten["tiles"] > 2
    assert len(calls) == 2


def test_a_slow_launch_is_no_slow_kernel(real: Device) -> None:
    def library(call: Call) -> Runner:
        compute, calls = _by_oracle(call), []

        def run() -> None:
            # The host is busy as long as nothing is replayed.
            calls.append(call)
            _clock.seconds += 0.0008 if len(calls) <= 2 else 0.0
            compute()

        return run

    choice = Choices(_kernels(library=library, tiles=_by_oracle)).choose(_product(), "cuda")
    assert choice.times is not None
    assert choice.times["library"] == pytest.approx(CALL_S)


@pytest.mark.parametrize("bind", [_wrongly, _not_at_all, _with_an_error])
@pytest.mark.parametrize("judge", ["oracle", "own"])
def test_what_is_wrong_is_left_out(
    real: Device, bind: Any, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if judge == "own":
        monkeypatch.setattr(on_card, "ORACLE_FLOPS", 0)
    choices = Choices(_kernels(wrong=bind, tiles=_slowly))
    with pytest.warns(RuntimeWarning, match="'wrong' is left out"):
        choice = choices.choose(_product(), "cuda")
    assert choice.kernel.name == "tiles"
    assert set(choice.times or {}) == {"tiles"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_large_results_are_looked_at_here_and_there(
    real: Device, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_card, "WINDOW", 256)
    monkeypatch.setattr(on_card, "PATTERN", 77)

    def spoiled_at_the_end(call: Call) -> Runner:
        compute = _by_oracle(call)

        def run() -> None:
            compute()
            call.outputs[0][-1, -1] += 10

        return run

    choices = Choices(_kernels(wrong=spoiled_at_the_end, good=_by_oracle, tiles=_slowly))
    with pytest.warns(RuntimeWarning, match="'wrong' is left out"):
        assert choices.kernel(_product(dtype), "cuda").name == "good"


def test_our_own_kernels_on_the_course(real: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "now", perf_counter)
    for node in nodes_of(POINTWISE, "float32"):
        kernels = TABLE.candidates(node, "cuda")
        outcome = on_card.measure(node, kernels, 1.0)
        assert outcome.failures == {}
        assert set(outcome.times) == {kernel.name for kernel in kernels}
        assert all(seconds > 0 for seconds in outcome.times.values())


def test_kernels_are_measured_on_inputs_that_are_given(real: Device) -> None:
    seen = []

    def bind(call: Call) -> Runner:
        compute = _by_oracle(call)
        return lambda: (seen.append(call.inputs[0].copy()), compute())

    x = parameter(0, Spec((1, 2, 3, 4), float32, NHWC))
    node = OPS["cumsum"](x, axis=1, reverse=False)
    value = np.arange(24, dtype="float32").reshape(1, 2, 3, 4)
    outcome = on_card.measure(node, [Kernel("cumsum", "cuda", "any", bind)], 0.01, [value])
    assert not outcome.failures
    np.testing.assert_array_equal(seen[0], value)


def test_no_memory_to_measure_in(real: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(real, "allocate", full)
    choice = Choices(_kernels(slow=_slowly, tiles=_by_oracle)).choose(_product(), "cuda")
    assert choice.source == "guess"


def test_a_kernel_that_cannot_be_captured(real: Device) -> None:
    table = KernelTable()
    table.add(Kernel("matmul", "cuda", "alone", _by_oracle, capturable=False))
    table.add(Kernel("matmul", "cuda", "tiles", _slowly))
    assert Choices(table).kernel(_product(), "cuda").name == "alone"


# --- without a card


def test_the_hosts_clock_decides(card: Device) -> None:
    node = next(each for each in nodes_of(POINTWISE, "float32") if each.spec.order == NHWC)
    choice = Choices().choose(node, "cuda")
    assert choice.source == "measured"
    assert set(choice.times or {}) >= {"1x1 product", "direct"}
    assert Choices().choose(node, "cuda").source == "remembered"


def test_a_deterministic_run_measures_nothing(card: Device) -> None:
    node = next(nodes_of(POINTWISE, "float32"))
    with settings.override(deterministic=True):
        assert Choices().choose(node, "cuda").source == "guess"
    assert not list(database.all_records())


def test_another_card_is_another_question(
    card: Device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = next(nodes_of(POINTWISE, "float32"))
    choices = Choices()
    assert choices.choose(node, "cuda").source == "measured"
    assert "conv2d" in choices.table()
    monkeypatch.setitem(database.FACTS, "cuda", lambda: {"card": "another one"})
    assert not list(database.all_records())
    assert Choices().choose(node, "cuda").source == "measured"


def test_facts_about_no_card() -> None:
    if not card_count():
        assert device.facts()["card"].startswith("none")


def test_how_far_off_a_result_may_be() -> None:
    assert tolerance_of(_product(), float32) == 1e-4
    assert tolerance_of(_product(compute="tf32"), float32) == 5e-3
    assert tolerance_of(_product("float16"), float16) == 1e-2
    assert tolerance_of(_product(), int64) == 0


def test_long_products_are_not_measured_where_the_card_is_played(card: Device) -> None:
    if card_count():
        pytest.skip("a real card is fast enough to measure everything")
    a, b = (parameter(i, Spec((4000, 4000), float32)) for i in (0, 1))
    table = KernelTable()
    for name in ("tiles", "other"):
        table.add(Kernel("matmul", "cuda", name, tiled._bind))
    node = product.matmul(a, b, ta=False, tb=False)
    assert Choices(table).choose(node, "cuda").source == "guess"
