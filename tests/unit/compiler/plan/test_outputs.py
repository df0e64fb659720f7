"""Results that are kept from run to run: the plan is bound no more often for that."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy.compile import compile_nodes
from caldera.compiler.plan.plan import Plan
from caldera.compiler.plan.schedule import StepSchedule
from caldera.core.graph.node import Spec, Symbol
from caldera.core.graph.ops.base import tensor as tensor_leaf

Expr = cd.Expr


@contextmanager
def _bindings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[None]]:
    """One entry for each time that a whole schedule is bound."""
    counted: list[None] = []
    bind = StepSchedule.bind

    def counting(self: StepSchedule, *given: object, **more: object) -> object:
        counted.append(None)
        return bind(self, *given, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(StepSchedule, "bind", counting)
        yield counted


def _views(x: Expr) -> list[Expr]:
    y = x * 2.0
    return [y, op.transpose(y), y[1:], op.reshape(y, (-1,))]


PROGRAMS: dict[str, Callable[[cd.Variable], list[Expr]]] = {
    "native": lambda x: [x * 2.0 + 1.0, op.sum(x), x @ x],
    "views": _views,
    "one read by another": lambda x: [op.exp(x), op.sum(op.exp(x)), op.exp(x) @ x],
    "the variable": lambda x: [x, op.transpose(x), x],
    "updated": lambda x: [x * 2.0, op.assign(x, x * 0.5 + 1.0)],
    "not native": lambda x: [op.cumsum(x, axis=0), op.sort(x), x + 1.0],
    "none read": lambda x: [op.broadcast(2.0, (2,)), op.sum(x)],
    "gathered": lambda x: [op.gather(x, np.array([1, 0])), op.gather(x, np.array([2])) * 2.0],
    "empty": lambda x: [x[:0], x + 1.0],
    "transforms": lambda x: [op.fft(x), op.ifft2(x), op.rfft(x), op.irfft(x), op.abs(op.fft(x))],
    "seen otherwise": lambda x: [op.reshape(op.exp(x), (9,)), op.reshape(op.fft(x), (9,))],
    "read and seen": lambda x: [op.reshape(op.exp(x), (9,)), op.exp(x), op.exp(x) @ x],
    "loop": lambda x: [op.scan(lambda h, r: (op.tanh(h + r), h), x[0], x)[0]],
}


@pytest.mark.parametrize("device", ["cpu", "loopback:21"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_results_stay_what_they_were(name: str, device: str) -> None:
    """Beside a plan whose results are dropped at once, which writes them to one place."""
    start = np.random.default_rng(3).uniform(-1, 1, (3, 3))
    variables = [op.var("x", (3, 3), fill=start, dtype="float64", device=device) for _ in range(2)]
    plans = [cd.compile(PROGRAMS[name](x)) for x in variables]
    tensors, arrays, wanted = [], [], []
    for run in range(5):
        wanted.append([each.numpy().copy() for each in plans[0].run()])
        kept = plans[1].run()
        tensors.append(kept)
        arrays.append([each.numpy() for each in kept])
        for x in variables:
            x.assign(start + run if name != "updated" else x.numpy() + run)
    for run in range(5):
        for right, tensor, array in zip(wanted[run], tensors[run], arrays[run], strict=True):
            np.testing.assert_array_equal(tensor.numpy(), right)
            np.testing.assert_array_equal(array, right)


@pytest.mark.parametrize("device", ["cpu", "loopback:21"])
def test_a_plan_is_bound_as_often_whether_results_are_kept_or_not(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = op.var("x", (4, 4), fill=np.arange(16.0).reshape(4, 4), device=device)
    plan = cd.compile([op.tanh(x) * 2.0, op.cumsum(x, axis=0), op.sum(x)])
    with _bindings(monkeypatch) as bindings:
        kept = [plan.run() for _ in range(100)]
        # Once for the first result, once when it is seen that it was kept; on a device for each of
        # the two places of inputs, of which there are none here.
        assert len(bindings) <= 3
    addresses = {result[0].memory.address for result in kept}
    assert len(addresses) == 100


def test_inputs_in_turn_are_bound_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    x = op.input("x", (3,))
    plan = cd.compile([x * 2.0], device="loopback:21")
    with _bindings(monkeypatch) as bindings:
        kept = [plan.run({"x": np.full(3, float(n))})[0] for n in range(40)]
        assert len(bindings) <= 4
    assert [each[0] for each in kept] == [2.0 * n for n in range(40)]


def test_large_results_are_written_to_their_own_memory_without_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = op.var("x", ((4 << 20) // 4 + 1,), fill=cd.constant(1.0))
    plan = cd.compile(x + 1.0)
    plan.run()
    copies = _count_copies(monkeypatch)
    with _bindings(monkeypatch) as bindings:
        kept = []
        for number in range(4):
            x.tensor[0] = float(number)
            kept.append(plan.run()[0])
        assert len(bindings) == 1
    assert [float(each[0]) for each in kept] == [1.0, 2.0, 3.0, 4.0]
    assert not copies, "a native kernel writes its result where it stays"


def test_a_transform_writes_its_result_where_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = np.random.default_rng(0).normal(size=(600, 500)) + 1j
    x = op.var("x", given.shape, fill=given, dtype="complex128")
    plan = cd.compile(op.fft2(x))
    assert [step.node.op.name for step in plan.schedule.steps] == ["fft", "fft"]
    kept = [plan.run()[0] for _ in range(3)]
    copies = _count_copies(monkeypatch)
    kept += [plan.run()[0] for _ in range(3)]
    assert not copies
    assert len({each.memory.address for each in kept}) == 6
    for each in kept:
        np.testing.assert_allclose(each.numpy(), np.fft.fft2(given), rtol=1e-12)


def test_a_result_that_is_seen_otherwise_takes_no_copy() -> None:
    x = op.var("x", (6, 4), fill=np.zeros((6, 4)))
    for seen, steps in (
        (op.reshape(op.softmax(x), (3, 8)), 1),
        (op.transpose(op.softmax(x)), 2),
        (op.softmax(x)[1:], 2),
        (op.reshape(op.softmax(x)[:, ::-1], (-1,)), 2),
    ):
        assert len(cd.compile(seen).schedule.steps) == steps


def _count_copies(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    copies: list[None] = []
    copy_from = cd.MemoryManager.copy_from

    def counting(self: cd.MemoryManager, *given: object) -> None:
        copies.append(None)
        copy_from(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(cd.MemoryManager, "copy_from", counting)
    return copies


@pytest.mark.parametrize("device", ["cpu", "loopback:21"])
def test_a_captured_plan_gives_results_of_their_own(device: str) -> None:
    x = op.var("x", (3,), fill=np.zeros(3), device=device)
    plan: Plan = cd.compile([x * 2.0, op.assign(x, x + 1.0)])
    first = plan.run()[0]
    plan.capture()
    kept = [first, *(plan.run()[0] for _ in range(5))]
    assert [each.tolist() for each in kept] == [[2.0 * n] * 3 for n in range(6)]


def test_a_result_on_a_device_does_not_make_variables_ready_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = op.var("x", (3,), fill=np.zeros(3), device="loopback:21")
    plan = cd.compile([x * 2.0, op.assign(x, x + 1.0)])
    kept = [plan.run() for _ in range(4)]
    asked: list[str] = []
    on_device = cd.MemoryManager.on_device
    monkeypatch.setattr(
        cd.MemoryManager,
        "on_device",
        lambda self, *given, **more: asked.append(self.owner) or on_device(self, *given, **more),
    )
    kept += [plan.run() for _ in range(4)]
    assert set(asked) <= {"results"}
    assert [each[0].tolist() for each in kept] == [[2.0 * n] * 3 for n in range(8)]


def test_a_plan_that_is_tied_to_its_own_last_result_writes_the_next_one() -> None:
    """Bound anew, its calls have to be told again where to write."""
    start = cd.tensor(np.ones(5, np.float32))
    symbol = Symbol("", Spec(start.shape, start.dtype), "tensor", start)
    x = cd.Expr(tensor_leaf(symbol=symbol))
    plan = compile_nodes([(x * 0.5 + 1.0).node], remember=False)
    held = []
    for _ in range(5):
        held.append(plan.run()[0])
        symbol.move(held[-1])
    assert [each.tolist()[0] for each in held] == [1.5, 1.75, 1.875, 1.9375, 1.96875]


def test_a_plan_that_was_released_holds_none_of_what_it_read() -> None:
    value = cd.tensor(np.ones(5, np.float32))
    symbol = Symbol("", Spec(value.shape, value.dtype), "tensor", value)
    plan = compile_nodes([(cd.Expr(tensor_leaf(symbol=symbol)) * 2.0).node], remember=False)
    assert plan.run()[0].tolist() == [2.0] * 5
    memory = weakref.ref(value.memory)
    symbol.move(None)
    plan.release()
    del value
    gc.collect()
    assert memory() is None
    symbol.move(cd.tensor(np.full(5, 3.0, np.float32)))
    assert plan.run()[0].tolist() == [6.0] * 5
