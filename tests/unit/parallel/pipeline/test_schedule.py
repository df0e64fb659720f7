"""What a pipeline does when, counted in the plans of its stages: idle slots, parts, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import nn, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.plan.plan import Plan
from caldera.parallel import PipelineParallel
from caldera.parallel.pipeline.schedule import (
    SCHEDULES,
    bubble_fraction,
    in_flight,
    recorded,
    timeline,
)
from caldera.train.fit import make_steps, run_setup
from caldera.train.strategy import NO_VOTES, VOTES
from tests.unit.parallel.ranks import network, samples, strategies_of, trained

WIDE = 64
ACTIVATIONS = 4 * WIDE
"""Bytes of what a sample has at each cut."""


def wide() -> cd.NeuralNetwork:
    """Four square layers: as many at each cut as anywhere."""
    layers = [nn.Input((WIDE,)), *[nn.Dense(WIDE, activation="tanh", bias=False) for _ in range(4)]]
    return cd.NeuralNetwork(layers, loss="mse", optimizer=optim.Adam(0.01), metrics=[])


def stepped(ranks: int, parts: int, count: int, **options: Any) -> list[tuple[Plan, int, int]]:
    """The plan of each rank for batches of `count` samples, the bytes it sends to its neighbours in
    a step, and those of the variables it has."""
    models = [wide() for _ in range(ranks)]
    x = np.random.default_rng(0).normal(size=(count, WIDE)).astype("float32")

    def work(comm: Communicator) -> tuple[Plan, int, int]:
        strategy = PipelineParallel(communicator=comm, micro_batches=parts, **options)
        model = models[comm.rank]
        strategy.begin(run_setup(model, strategy))
        steps = make_steps(model, cd.data.ArrayData(x, x), strategy)
        plan = steps.training(count)
        strategy.shard()
        feeds = steps.feeds((x, x), None) | {VOTES: NO_VOTES}
        neighbours = strategy.plan_communicator.along("pipeline").traffic
        mark = neighbours.mark()
        plan.run({name: feeds[name] for name in plan.inputs})
        kept = sum(
            symbol.spec.nbytes
            for symbol in plan.symbols
            if symbol.role == "variable" and symbol.spec.size > 8
        )
        return plan, neighbours.since(mark).total.bytes_sent, kept

    return run_virtual_ranks(ranks, work)


@pytest.mark.parametrize("schedule", sorted(SCHEDULES))
@pytest.mark.parametrize(("ranks", "parts"), [(2, 3), (4, 5)])
def test_idle_slots_parts_in_flight_and_bytes(schedule: str, ranks: int, parts: int) -> None:
    """Batches of 26 samples do not divide by three or five."""
    found = stepped(ranks, parts, 26, schedule=schedule)
    orders = [recorded(plan) for plan, _, _ in found]
    assert all(len(set(order)) == 2 * parts for order in orders)
    assert bubble_fraction(timeline(orders)) == (ranks - 1) / (parts + ranks - 1)
    flying = [in_flight(order) for order in orders]
    if schedule == "1f1b":
        assert flying == [min(parts, ranks - stage) for stage in range(ranks)]
    else:
        assert flying == [parts] * ranks
    # Forward to the stage after, back to the one before.
    neighbours = [(stage > 0) + (stage < ranks - 1) for stage in range(ranks)]
    assert [sent for _, sent, _ in found] == [26 * ACTIVATIONS * each for each in neighbours]
    # The parameters of its layers, and Adam's two averages of each.
    assert [kept for *_, kept in found] == [3 * 4 * (4 // ranks) * WIDE * WIDE] * ranks


def test_memory_does_not_grow_with_the_number_of_parts() -> None:
    """It is what those take that are on their way, if these are few."""
    size = 32

    def arenas(schedule: str, parts: int) -> list[int]:
        found = stepped(3, parts, parts * size, schedule=schedule)
        return [plan.arena_bytes for plan, _, _ in found]

    short, long = (arenas("1f1b", parts) for parts in (4, 8))
    # Whatever is packed how, not one activation more.
    assert all(b - a <= size * ACTIVATIONS for a, b in zip(short, long, strict=True))
    more = [b - a for a, b in zip(*(arenas("fill-drain", p) for p in (4, 8)), strict=True)]
    # What a layer gives is kept until the part comes back, four parts longer.
    assert min(more) >= 4 * size * ACTIVATIONS


def test_plans_show_where_data_move() -> None:
    plan = stepped(2, 2, 8)[1][0]
    found = plan.explain(time=False)
    assert (found.route, "; messages: threads" in str(found)) == ("threads", True)
    ops = [row.op for row in found.rows]
    moves = [text for text in ops if "pipeline" in text or "turn" in text]
    assert moves == [
        "start receive at 0 over pipeline",
        "finish receive at 0 over pipeline",
        "start receive at 0 over pipeline",
        "turn: forward 0",
        "start send at 0 over pipeline",
        "turn: backward 0",
        "finish receive at 0 over pipeline",
        "turn: forward 1",
        "finish send at 0 over pipeline",
        "start send at 0 over pipeline",
        "turn: backward 1",
        "finish send at 0 over pipeline",
    ]


def test_stages_that_wait_for_each_other_are_told() -> None:
    orders = [SCHEDULES["1f1b"](stage, 2, 2) for stage in (1, 0)]
    with pytest.raises(ValueError, match="for ever"):
        timeline(orders)


def test_updates_are_written_down_for_one_part_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    apply = optim.SGD.apply

    def counted(self: optim.SGD, parameters: Any, *more: Any, **named: Any) -> Any:
        written.append(len(parameters))
        return apply(self, parameters, *more, **named)

    monkeypatch.setattr(optim.SGD, "apply", counted)

    def make() -> cd.NeuralNetwork:
        return network(layers=[nn.Input((6,)), nn.Dense(4), nn.Dense(3)])

    trained(
        2,
        make,
        strategies_of(PipelineParallel)(micro_batches=4),
        samples(10),
        watch=False,
    )
    assert written == [4, 4]
