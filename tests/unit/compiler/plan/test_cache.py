"""Plans that are kept for the next time: how many, how much they hold, and when they go."""

from __future__ import annotations

import gc
import weakref
from importlib import import_module

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.plan import cache
from caldera.compiler.plan.arena import SharedArena
from caldera.compiler.plan.cache import RecentPlans, SharedPlans
from caldera.core.graph.opdef import detached
from caldera.core.memory.capture import LaunchBatcher


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> SharedPlans:
    """The plans that `compile` keeps, none at first and not many."""
    kept = SharedPlans(most=20)
    # The module, whose name in `caldera.compiler.lazy` is that of the function.
    monkeypatch.setattr(import_module("caldera.compiler.lazy.compile"), "_plans", kept)
    return kept


def test_the_plans_of_many_shapes_are_not_all_kept(plans: SharedPlans) -> None:
    inputs = [op.input("x", (n + 1,)) for n in range(200)]
    results = [(x + 1.0).eval(x=np.zeros(x.shape, "float32")).shape for x in inputs]
    assert results == [(n + 1,) for n in range(200)]
    assert len(plans) == 20
    assert sum(len(x.symbol.users) for x in inputs) == 20


def test_expressions_do_not_hold_their_plans(plans: SharedPlans) -> None:
    x = op.var("x", (3,))
    kept = [x + float(number) for number in range(60)]
    made = [weakref.ref(cd.compile(each)) for each in kept if each.eval()[0] is not None]
    gc.collect()
    assert sum(plan() is not None for plan in made) == len(plans) == 20
    assert [each.eval()[0] for each in kept] == [float(number) for number in range(60)]


def test_those_used_last_are_kept(plans: SharedPlans) -> None:
    x = op.var("x", (2,))
    first = cd.compile(x * 2.0)
    for number in range(40):
        cd.compile(x + float(number))
        assert cd.compile(x * 2.0) is first
    assert len(plans) == 20


def test_large_plans_make_room_for_others() -> None:
    kept = RecentPlans(most=100, most_bytes=1 << 20)
    made = []
    for number in range(12):
        x = op.input("x", (1 << 16,))
        plan = cd.compile(x + float(number), remember=False)
        plan.run({"x": np.zeros(1 << 16, "float32")})
        kept.add(number, plan)
        made.append(weakref.ref(plan))
    assert kept.nbytes <= max(1 << 20, cache.FEWEST * plan.held_bytes)
    assert cache.FEWEST <= len(kept) < 12
    del plan
    assert sum(each() is not None for each in made) == len(kept), "others are gone at once"


def test_plans_that_grow_later_make_room_too() -> None:
    """They are counted when they are added, before their first run, and then now and again."""
    kept = RecentPlans(most=100, most_bytes=1 << 20)

    def added(number: int) -> cd.Plan:
        plan = cd.compile(op.input("x", (1 << 14,)) + float(number), remember=False)
        kept.add(number, plan)
        return plan

    first = [added(number) for number in range(40)]
    assert len(kept) == 40
    for plan in first:
        plan.run({"x": np.zeros(1 << 14, "float32")})
    assert kept.nbytes > 1 << 20
    for number in range(16):
        added(40 + number)
    assert kept.nbytes <= 1 << 20
    assert len(kept) > 16


def test_the_report_says_what_plans_hold(plans: SharedPlans) -> None:
    x = op.input("x", (1000,))
    before = cd.memory_report().splitlines()[-1]
    plan = cd.compile(x + 1.0)
    plan.run({"x": np.zeros(1000, "float32")})
    after = cd.memory_report().splitlines()[-1]
    assert before != after
    assert after.split()[1:3] == ["plans", "kept"]
    assert plan.held_bytes >= 8000


@pytest.mark.parametrize("device", ["cpu", "loopback:25"])
def test_plans_go_with_the_variables_they_read(plans: SharedPlans, device: str) -> None:
    older = op.var("older", (3,), device=device)
    older.tensor.memory.on_device()
    pools = {cd.device("cpu").pool, cd.device(device).pool}
    gc.collect()
    before = [pool.in_use for pool in pools]
    x = op.var("x", (500,), device=device)
    op.sum(x * 2.0).eval()
    cd.compile([x + 1.0, older, op.assign(x, x * 2.0)]).run()
    (op.gather(x, np.array([1, 2])) + op.input("y", (2,))).eval(y=[1.0, 2.0])
    assert len(plans) == 3
    del x
    gc.collect()
    cd.device(device).stream.synchronize()
    assert len(plans) == 0
    assert [pool.in_use for pool in pools] == before
    assert older.numpy().tolist() == [0.0] * 3


def test_what_is_known_about_a_node_does_not_hold_its_variables() -> None:
    x, w = op.var("x", (2, 3)), op.var("w", (3, 4))
    node = (x @ w).node
    alone = detached(node)
    assert (alone.op, alone.spec) == (node.op, node.spec)
    assert [given.spec for given in alone.inputs] == [given.spec for given in node.inputs]
    symbol = weakref.ref(w.symbol)
    del x, w, node
    gc.collect()
    assert symbol() is None


def test_an_arena_that_is_outgrown_is_given_up_by_all_plans() -> None:
    here = cd.device("loopback:12")
    x = op.var("x", (32, 32), fill=cd.uniform(), device=here)
    big = op.var("big", (256, 256), fill=cd.uniform(), device=here)
    small, large = (cd.compile((each @ each) @ each, remember=False) for each in (x, big))
    first = small.run()[0].numpy()
    in_use = here.pool.report()["arena"]
    large.run()
    here.stream.synchronize()
    assert here.pool.report()["arena"] < in_use + large.arena_bytes * 1.25
    assert SharedArena.of(here).at_least(1).nbytes == large.arena_bytes
    np.testing.assert_array_equal(small.run()[0].numpy(), first)
    del small, large
    gc.collect()
    here.stream.synchronize()
    assert "arena" not in here.pool.report()


def test_repeats_that_were_launched_are_not_held_on_to() -> None:
    class Work:
        def times(self, count: int) -> object:
            return lambda: count

    work, repeats = Work(), LaunchBatcher()
    launched: list[object] = []
    for _ in range(3):
        repeats.add(work.times, lambda call: launched.append(call()))
    assert launched == [1, 2]
    gone = weakref.ref(work)
    del work
    assert gone() is None


def test_memory_that_nobody_uses_is_given_back() -> None:
    here = cd.device("loopback:13")
    del cd.Tensor((1 << 16,), device=here, kind=cd.DEVICE)._memory
    here.stream.synchronize()
    assert here.pool.cached >= 1 << 18
    assert cd.empty_cache() >= 1 << 18
    assert here.pool.cached == 0
