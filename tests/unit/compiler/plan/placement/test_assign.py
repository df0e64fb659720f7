"""Where nodes run by cost: tables of seconds, given and not timed."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr, Variable
from caldera.compiler.plan.placement import assign
from caldera.compiler.plan.placement.assign import (
    DevicePlacement,
    MeasuredCosts,
    place_nodes,
    predicted,
)
from caldera.compiler.plan.placement.parts import parts_of
from caldera.core.graph.node import Node, pinned
from caldera.core.graph.program import Program, program_of
from caldera.core.memory import Device

CARD, HOST = cd.device("loopback:3"), cd.device("cpu")


class Table:
    """Seconds by the name of an op; a card is so many times faster, and far away."""

    def __init__(self, ratio: dict[str, float], latency: float = 1.0) -> None:
        self.ratio = ratio
        self.latency = latency

    def seconds(self, node: Node, device: Device) -> float:
        if node.op.name not in self.ratio:
            return 0.0
        return 100.0 if device.is_host else 100.0 / self.ratio[node.op.name]

    def copied(self, nbytes: int, source: Device, target: Device) -> float:
        return 0.0 if source is target else self.latency + nbytes / 1000


def variable(name: str, device: Device = CARD) -> Variable:
    return op.var(name, (10,), fill=cd.uniform(0.5, 1.0), device=device)


def places_of(found: DevicePlacement) -> dict[str, str]:
    return {node.op.name: device.kind for device, nodes in found.groups for node in nodes}


def placed(outputs: list[Expr], costs: Table) -> DevicePlacement:
    return place_nodes(program_of([each.node for each in outputs]), CARD, costs)


def test_what_a_card_is_slow_at_is_done_by_the_host() -> None:
    a = variable("a")
    chain = [op.log(op.sort(op.exp(a)))]
    slow_sort = Table({"exp": 10.0, "sort": 0.1, "log": 10.0})
    found = placed(chain, slow_sort)
    assert places_of(found) == {
        "exp": "loopback",
        "sort": "cpu",
        "item": "cpu",
        "log": "loopback",
    }
    assert "divided" in found.reason
    far = Table({"exp": 10.0, "sort": 0.1, "log": 10.0}, latency=1000.0)
    assert set(places_of(placed(chain, far)).values()) == {"loopback"}
    nowhere = Table({"exp": 0.1, "sort": 0.1, "log": 0.1})
    assert set(places_of(placed(chain, nowhere)).values()) == {"cpu"}


def test_one_device_is_kept_where_a_division_gains_next_to_nothing() -> None:
    a = variable("a")
    same = Table({"exp": 1.0, "sort": 0.999, "log": 1.0}, latency=0.0)
    found = placed([op.log(op.sort(op.exp(a)))], same)
    assert len(found.devices) == 1


def test_a_pin_is_not_shared_with_the_same_expression_elsewhere() -> None:
    a = variable("a")
    free = op.exp(a)
    with pinned("cpu"):
        bound = op.exp(a)
        parts = op.split(a, 2)
    assert bound.node is not free.node
    assert parts[1].node.pin == "cpu"
    assert op.exp(a).node is free.node
    assert op.grad(op.sum(bound), a).node.pin == "cpu"
    before = placed([op.log(free)], Table({"exp": 1.0, "log": 1.0}))
    assert places_of(before) == {"exp": "loopback", "log": "loopback"}


def test_pins_hold_against_any_cost() -> None:
    a = variable("a")
    with pinned("cpu"):
        y = op.exp(a)
    found = placed([op.log(y)], Table({"exp": 1e6, "log": 1e6}))
    assert places_of(found) == {"exp": "cpu", "log": "loopback"}


def random_program(seed: int) -> Program:
    draw = np.random.default_rng(seed)
    values: list[Expr] = [variable("a"), variable("b", HOST)]
    ops = [op.exp, op.tanh, op.square, op.neg]
    for i in range(7):
        x, y = (values[int(j)] for j in draw.integers(0, len(values), 2))
        made = ops[int(draw.integers(0, 4))](x) + (y if i % 2 else x)
        values.append(made * float(i + 1))
    return program_of([values[-1].node, values[-2].node])


class Random(Table):
    """Seconds drawn for each node and device."""

    def __init__(self, seed: int) -> None:
        super().__init__({})
        self._seed = seed
        self.latency = 40.0
        self.seconds = cache(self._seconds)  # type: ignore[method-assign]

    def _seconds(self, node: Node, device: Device) -> float:
        if node.op.kind == "leaf":
            return 0.0
        return float(
            np.random.default_rng([self._seed, node.serial, device.is_host]).uniform(0, 99)
        )


def total(program: Program, sides: dict[Node, Device], costs: Table) -> float:
    """Times and copies, added up."""
    found = sum(costs.seconds(node, device) for node, device in sides.items())
    homes = {
        node: node.attrs["symbol"].value.device
        for node in program.order()
        if "symbol" in node.attrs
    }
    copied = {
        (given, sides[node])
        for node in sides
        for given in node.inputs
        if given in sides or given in homes
    }
    for given, target in copied:
        found += costs.copied(given.spec.nbytes, (sides | homes)[given], target)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_is_as_good_as_trying_everything(seed: int) -> None:
    program, costs = random_program(seed), Random(seed)
    nodes = [node for node in program.order() if node.op.kind != "leaf"][:9]
    rest = [node for node in program.order() if node.op.kind != "leaf"][9:]
    fixed = dict.fromkeys(rest, CARD)
    moved = set(assign._cut(program, fixed, CARD, HOST, costs))
    sides = {node: HOST if node in moved else CARD for node in nodes} | fixed
    best = min(
        total(program, dict(zip(nodes, each, strict=True)) | fixed, costs)
        for each in product((CARD, HOST), repeat=len(nodes))
    )
    assert total(program, sides, costs) == pytest.approx(best)


def test_two_devices_at_work_at_once_take_less_than_their_sum() -> None:
    a, b = variable("a"), variable("b", HOST)
    with pinned(CARD.name):
        far = op.exp(a)
    with pinned("cpu"):
        near = op.tanh(b)
    costs = Table({"exp": 1.0, "tanh": 1.0})
    found = placed([far + near], costs)
    assert [device.kind for device, _ in found.groups][:2] == ["loopback", "cpu"]
    assert predicted(program_of([(far + near).node]), found.groups, costs) < 110.0


def test_a_division_by_cost_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    a = variable("a")
    y = op.log(op.sort(op.exp(a)))
    expected = y.numpy()
    program = program_of([y.node])
    found = place_nodes(program, CARD, Table({"exp": 10.0, "sort": 0.1, "log": 10.0}))
    assert [part.device.kind for part in parts_of(program, found.groups)] == [
        "loopback",
        "cpu",
        "loopback",
    ]
    b = variable("b", HOST)
    monkeypatch.setattr(MeasuredCosts, "_seconds", lambda _, node, device: 1e-3 * device.is_host)
    plan = cd.compile([y + 0.0 * b])
    np.testing.assert_array_equal(plan.run()[0].numpy(), expected)
    explained = plan.explain(time=False)
    assert explained.placement.startswith("settings.placement auto: all on loopback:3")
    assert explained.copied_bytes == b.tensor.nbytes
    assert "40 B from cpu to loopback:3" in str(explained)
