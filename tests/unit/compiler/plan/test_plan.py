"""Plans: planned once, right in place, results that belong to the user, capture and replay."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.compiler.lazy import Expr, forget_plans
from caldera.compiler.plan import arena
from caldera.core.graph.node import Node
from caldera.kernels.table import Kernel
from caldera.kernels.tuning.choose import Choices, choices
from caldera.train.tracking.measure_run import training_step
from tests.transfers import counted_from_now


def _variable(name: str, *shape: int, device: str = "cpu") -> cd.Variable:
    return op.var(name, shape, fill=cd.uniform(), dtype="float64", device=device)


# --- planning


def test_the_same_graph_is_planned_once() -> None:
    x = _variable("x", 3)
    assert cd.compile([x * 2.0 + 1.0]) is cd.compile([x * 2.0 + 1.0])
    assert cd.compile([x * 2.0]) is not cd.compile([x * 3.0])
    assert cd.compile([x * 2.0], without=["fuse"]) is not cd.compile([x * 2.0])


@pytest.mark.parametrize("seed", range(20))
def test_buffers_that_live_together_never_overlap(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count = int(generator.integers(1, 40))
    sizes = generator.integers(0, 5000, count).tolist()
    first = generator.integers(0, 30, count)
    last = (first + generator.integers(0, 10, count)).tolist()
    offsets, total = arena.place(sizes, first.tolist(), last)
    assert total <= sum(map(arena.aligned, sizes))
    for i in range(count):
        assert offsets[i] % arena.ALIGNMENT == 0
        assert offsets[i] + sizes[i] <= total
        for j in range(i):
            together = first[i] <= last[j] and first[j] <= last[i]
            apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
            assert apart or not together


def test_equal_layers_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def kernel(choices: Choices, node: Node, *given: Any, **named: Any) -> Kernel:
        asked.append(node)
        return choices.choose(node, *given, **named).kernel

    monkeypatch.setattr(Choices, "kernel", kernel)
    y: cd.Expr = _variable("x", 32, 32)
    for i in range(4):
        y = op.matmul(y, _variable(f"w{i}", 32, 32))
    plan = cd.compile([y, y[::-1] @ y])
    # What lies otherwise in memory may take another kernel.
    assert [node.op.name for node in asked] == ["matmul", "matmul"]
    products = [step.kernel for step in plan.schedule.steps][:4]
    assert all(each is products[0] for each in products)


def test_a_chain_needs_little_memory() -> None:
    x = _variable("x", 64, 64)
    y = x
    for _ in range(10):
        y = op.matmul(y, x)
    # One that needs no workspace, whichever is the fastest here.
    choices.fix("matmul", "blas")
    try:
        plan = cd.compile(y)
    finally:
        choices.unfix("matmul")
    assert plan.arena_bytes <= 2 * 64 * 64 * 8 < plan.naive_bytes


def test_the_arena_of_a_training_step_is_at_most_60_percent_of_naive() -> None:
    h: cd.Expr = _variable("x", 100, 64)
    parameters = []
    for i in range(8):
        w, b = _variable(f"w{i}", 64, 64), _variable(f"b{i}", 64)
        h = op.sigmoid(h @ w + b)
        parameters += [w, b]
    loss = op.mean(h * h)
    plan = cd.compile([loss, *optim.Adam(1e-3).train(loss, parameters)])
    assert plan.arena_bytes <= 0.6 * plan.naive_bytes


# --- state


def test_all_reads_see_the_values_from_before_the_run() -> None:
    a, b = _variable("a", 4), _variable("b", 4)
    old_a, old_b = a.numpy(), b.numpy()
    swap = cd.compile([op.assign(a, b), op.assign(b, a), a + b])
    total = swap.run()[0].numpy()
    np.testing.assert_array_equal(a.numpy(), old_b)
    np.testing.assert_array_equal(b.numpy(), old_a)
    np.testing.assert_array_equal(total, old_a + old_b)


def test_updates_in_place_do_not_disturb_other_readers() -> None:
    w = _variable("w", 3, 3)
    old = w.numpy()
    plan = cd.compile([op.assign(w, w * 2.0), w @ w, op.transpose(w), w + 1.0])
    product, turned, more = (result.numpy() for result in plan.run())
    np.testing.assert_allclose(product, old @ old)
    np.testing.assert_array_equal(turned, old.T)
    np.testing.assert_allclose(more, old + 1)
    np.testing.assert_allclose(w.numpy(), 2 * old)


def test_an_update_by_a_product_of_itself() -> None:
    w = _variable("w", 3, 3)
    old = w.numpy()
    cd.compile(op.assign(w, w @ w)).run()
    np.testing.assert_allclose(w.numpy(), old @ old)


def test_assignments_give_no_results_of_their_own() -> None:
    w = _variable("w", 3)
    plan = cd.compile([op.assign(w, w + 1.0), w * 2.0])
    assert len(plan.run()) == 1
    assert cd.compile([op.assign(w, w + 1.0)]).run() == []


def test_an_update_from_a_value_that_is_also_a_result() -> None:
    a, b = _variable("a", 3), _variable("b", 3)
    old = a.numpy()
    new = a * 3.0
    result, turned = cd.compile([new, op.assign(a, new), op.assign(b, a), op.flip(a, 0)]).run()
    np.testing.assert_allclose(result.numpy(), 3 * old)
    np.testing.assert_allclose(a.numpy(), 3 * old)
    np.testing.assert_array_equal(b.numpy(), old)
    np.testing.assert_array_equal(turned.numpy(), old[::-1])


def test_two_values_for_one_variable_are_refused() -> None:
    w = _variable("w", 2)
    with pytest.raises(cd.CalderaError, match=r"at most one new value.*two for w"):
        cd.compile([op.assign(w, w + 1.0), op.assign(w, w + 2.0)])


def test_an_assignment_inside_an_expression_is_performed_once() -> None:
    w = op.var("w", (), fill=cd.constant(1.0))
    assert float(op.assign(w, w + 1.0) * 10.0) == 20.0
    assert w.numpy() == 2.0


# --- results


def test_results_belong_to_whoever_holds_them() -> None:
    x = op.var("x", (3,), fill=cd.constant(1.0))
    plan = cd.compile(x * 2.0)
    kept = [plan.run()[0]]
    arrays = [plan.run()[0].numpy()]
    x.assign(np.full(3, 5.0))
    kept.append(plan.run()[0])
    arrays.append(plan.run()[0].numpy()[1:])
    assert [t.tolist() for t in kept] == [[2.0] * 3, [10.0] * 3]
    assert [a.tolist() for a in arrays] == [[2.0] * 3, [10.0] * 2]


def test_results_belong_to_whoever_holds_them_on_a_device() -> None:
    x = op.var("x", (3,), fill=cd.constant(1.0), device="loopback")
    plan = cd.compile(x * 2.0)
    first = plan.run()[0].numpy()
    x.assign(np.full(3, 5.0))
    second = plan.run()[0].numpy()
    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [10.0] * 3)


def test_dropped_results_are_written_to_the_same_memory() -> None:
    x = op.var("x", (64,), fill=cd.uniform())
    plan = cd.compile(x * 2.0)
    plan.run()
    address = plan.run()[0].memory.address
    bound = plan._binding.bound[0].steps
    assert plan.run()[0].memory.address == address
    assert plan._binding.bound[0].steps is bound, "bound again for the same memory"


def test_large_results_are_not_kept_by_the_plan() -> None:
    x = op.var("x", (2 << 20,), fill=cd.zero())
    plan = cd.compile(x + 1.0)
    plan.run()
    before = cd.device("cpu").pool.in_use
    result = plan.run()[0]
    assert cd.device("cpu").pool.in_use - before >= result.nbytes
    del result
    assert cd.device("cpu").pool.in_use == before


def test_the_same_expression_twice_gives_two_results() -> None:
    x = _variable("x", 3)
    y = x * 2.0
    first, second = cd.compile([y, y]).run()
    first[0] = 99.0
    assert second[0] == 2.0 * x.numpy()[0]


def test_a_variable_or_constant_can_be_a_result() -> None:
    x = _variable("x", 3)
    results = cd.compile([x, op.cast(x, "float64"), op.broadcast(2.0, (2,))]).run()
    np.testing.assert_array_equal(results[0].numpy(), x.numpy())
    results[0][0] = 99.0
    assert x.numpy()[0] != 99.0
    assert results[2].tolist() == [2.0, 2.0]


# --- inputs and devices


def test_inputs_are_checked_by_name_shape_and_dtype() -> None:
    x = op.input("x", (2,), dtype="int64")
    plan = cd.compile(x + 1)
    assert plan.run({"x": [1, 2]})[0].tolist() == [2, 3]
    with pytest.raises(cd.ConfigError, match="a value for each of: x, got y"):
        plan.run({"y": [1, 2]})
    with pytest.raises(cd.ShapeError, match=r"input x: expected shape \(2,\), got \(3,\)"):
        plan.run({"x": [1, 2, 3]})
    with pytest.raises(cd.DtypeError, match="input x"):
        plan.run({"x": [0.5, 1.5]})


def test_a_training_step_on_a_device_copies_nothing_back_and_forth() -> None:
    w = _variable("w", 4, 4, device="loopback:3")
    plan = cd.compile(optim.GradientDescent(0.1).train(op.sum(w * w), [w]))
    plan.run()
    counters = counted_from_now(cd.device("loopback:3"))
    for _ in range(5):
        plan.run()
    cd.device("loopback:3").stream.synchronize()
    assert (counters.h2d, counters.d2h) == (0, 0)


@pytest.mark.parametrize("device", ["cpu", "loopback:0"])
def test_a_captured_plan_computes_what_it_did_before(device: str) -> None:
    def build() -> tuple[cd.Variable, cd.Plan]:
        cd.seed(1)
        w = _variable("w", 5, 5, device=device)
        x = op.input("x", (5,), dtype="float64")
        loss = op.sum(op.square(w @ x))
        return w, cd.compile([loss, *optim.Adam(0.1).train(loss, [w])])

    (plain, plan), (captured, replayed) = build(), build()
    replayed.capture()
    for step in range(4):
        feeds = {"x": np.arange(5.0) + step}
        assert plan.run(feeds)[0].item() == replayed.run(feeds)[0].item()
    np.testing.assert_array_equal(plain.numpy(), captured.numpy())


def test_other_plans_do_not_disturb_a_captured_one() -> None:
    x = _variable("x", 8, 8)
    captured = cd.compile((x @ x) @ x)
    captured.capture()
    before = captured.run()[0].numpy().copy()
    big = _variable("big", 300, 300)
    ((big @ big) @ big).eval()
    np.testing.assert_array_equal(captured.run()[0].numpy(), before)


def test_gradients_of_parameters_come_before_what_they_need_is_forgotten() -> None:
    """So memory is what the forward pass keeps and little more; and nothing is copied for it."""
    layers, batch, width = 8, 256, 64
    weights = [
        op.var(f"w{i}", (width, width), fill=cd.uniform(-0.1, 0.1), dtype="float32")
        for i in range(layers)
    ]
    y: Expr = op.var("x", (batch, width), fill=cd.uniform(-1, 1))
    for weight in weights:
        y = op.tanh(y @ weight)
    slopes = op.grad(op.mean(y * y), weights)
    updates = [op.assign(w, w - 0.1 * slope) for w, slope in zip(weights, slopes, strict=True)]
    plan = cd.compile(updates)
    assert plan.arena_bytes <= (layers + 4) * batch * width * 4
    assert all(step.kernel.op != "copy" for step in plan.schedule.steps)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_counting_right_answers_keeps_no_copy_of_the_scores(precision: str | None) -> None:
    """Counted before the gradient is written over them, and no wider for it."""
    batch, classes = 64, 5000
    data = np.zeros((batch, 20), np.float32), np.zeros(batch, np.int64)

    def arena_bytes(metrics: list[str]) -> int:
        model = cd.NeuralNetwork(
            [nn.Input((20,)), nn.Dense(30), nn.Dense(classes)],
            loss="cross_entropy",
            metrics=metrics,
            precision=precision,
        )
        return training_step(model, data, batch)[0].arena_bytes

    assert arena_bytes(["accuracy"]) - arena_bytes([]) < batch * classes / 10


def test_a_result_without_elements_may_be_kept_at_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cd.compile([op.input("x", (0,)) * 2.0])
    kept = [plan.run({"x": np.zeros(0, "float32")}) for _ in range(2)]
    bound = []
    bind = plan.schedule.bind
    monkeypatch.setattr(plan.schedule, "bind", lambda *given: bound.append(given) or bind(*given))
    kept += [plan.run({"x": np.zeros(0, "float32")}) for _ in range(2)]
    assert not bound
    assert [results[0].shape for results in kept] == [(0,)] * 4


def test_plans_of_a_device_share_the_copy_of_a_constant_array() -> None:
    pool = cd.device("loopback").pool
    forget_plans()
    gc.collect()
    before = pool.in_use
    large = np.arange(1 << 18, dtype="float32")
    x = op.var("x", large.shape, fill=2.0, device="loopback")
    product = x * large
    first = cd.compile(op.sum(product))
    assert first.run()[0].item() == 2.0 * large.sum(dtype="float64")
    with_one = pool.in_use
    second = cd.compile(op.max(product))
    assert second.run()[0].item() == 2.0 * large[-1]
    assert pool.in_use - with_one < large.nbytes
    # What plans share goes with the last of them.
    del first, second, product, x
    forget_plans()
    gc.collect()
    assert pool.in_use == before
