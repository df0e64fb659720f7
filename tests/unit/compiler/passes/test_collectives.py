"""One order of all collectives, in two parts each, with everything else between them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import caldera as cd
from caldera import nn, op, optim
from caldera.comm import Communicator, run_virtual_ranks
from caldera.compiler.lazy import Expr
from caldera.compiler.passes.collectives import collectives
from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import Message, all_gather_flat, all_reduce, next_number
from caldera.core.graph.program import Program
from caldera.core.graph.verify import verify
from caldera.parallel import DataParallel, Sharded
from caldera.parallel.consistency import messages
from caldera.train.fit import make_steps, run_setup
from caldera.train.strategy import Strategy

LAYERS = 4


def _two_ranks() -> Communicator:
    """Somebody who says that there are two; nobody sends anything."""
    found: list[Communicator] = []
    run_virtual_ranks(2, lambda comm: found.append(comm) if comm.rank == 0 else None)
    return found[0]


def _training_plan(strategy_of: type[Strategy] | None = None, **options: object) -> cd.Plan:
    layers: list[nn.Layer] = [nn.Input((8,))]
    layers += [nn.Dense(8, activation="tanh", bias=False) for _ in range(LAYERS)]
    plans: list[cd.Plan] = []
    models = [
        cd.NeuralNetwork(list(layers), loss="mse", optimizer=optim.SGD(0.1), metrics=[])
        for _ in range(2)
    ]
    x = np.zeros((4, 8), "float32")

    def work(comm: Communicator) -> None:
        strategy = (strategy_of or DataParallel)(communicator=comm, **options)  # type: ignore[call-arg]
        strategy.begin(run_setup(models[comm.rank], strategy))
        steps = make_steps(models[comm.rank], cd.data.ArrayData(x, x), strategy)
        plan = steps.training(cd.data.Share.of(0, 4, 4, comm.rank, 2))
        if comm.rank == 0:
            plans.append(plan)

    run_virtual_ranks(2, work)
    return plans[0]


def _steps(plan: cd.Plan) -> list[str]:
    """What a plan does, in words: starts and ends of messages, products, and updates."""
    found = []
    for step in plan.schedule.steps:
        name = step.node.op.name
        if name.startswith("collective_"):
            message = step.node.attrs["message"]
            found.append(f"{name.removeprefix('collective_')} {message.kind} {message.number[0]}")
        elif name.startswith("matmul"):
            found.append("product")
    return found


def test_gradients_leave_as_soon_as_they_are_there() -> None:
    steps = _steps(_training_plan(bucket_bytes=1))
    first_gradient = steps.index("start sum 0")
    # Forward, then the gradient of the last weight, and only then the rest of the backward pass.
    assert steps[:first_gradient].count("product") == LAYERS + 1
    for number in range(LAYERS - 2):
        between = steps[steps.index(f"start sum {number}") : steps.index(f"start sum {number + 1}")]
        assert between.count("product") == 2
    # Nothing that could be computed is left when the first one is waited for.
    assert "product" not in steps[steps.index("finish sum 0") :]


def test_without_overlap_everything_is_computed_first() -> None:
    steps = _steps(_training_plan(bucket_bytes=1, overlap=False))
    assert "product" not in steps[steps.index("start sum 0") :]


def test_parameters_are_fetched_one_layer_ahead_of_their_use() -> None:
    steps = _steps(_training_plan(Sharded, stage=3, bucket_bytes=1))
    gathers = [step for step in steps if "gather" in step]
    in_flight = most = 0
    for step in gathers:
        in_flight += 1 if step.startswith("start") else -1
        most = max(most, in_flight)
    assert most == 2
    # Each of them twice, but for the first layer's: the backward pass does not need it.
    assert sum(step.startswith("start gather") for step in steps) == 2 * LAYERS - 1
    ends = [index for index, step in enumerate(steps) if step.startswith("finish gather")]
    assert all("product" in steps[a:b] for a, b in pairwise(ends[: LAYERS + 1]))


def test_parts_that_were_updated_are_sent_while_the_forward_pass_begins() -> None:
    steps = _steps(_training_plan(Sharded, stage=1, bucket_bytes=1))
    first_product = steps.index("product")
    assert [s for s in steps[:first_product] if "gather" in s] == [
        *(f"start gather {number}" for number in range(LAYERS)),
        "finish gather 0",
    ]
    assert sum(step.startswith("finish gather") for step in steps[first_product:]) == LAYERS - 1


@pytest.mark.parametrize(("stage", "most"), [(1, LAYERS), (2, 2)])
def test_from_stage_2_gradients_do_not_wait_for_each_other(stage: int, most: int) -> None:
    in_flight = seen = 0
    for step in _steps(_training_plan(Sharded, stage=stage, bucket_bytes=1)):
        if "scatter" in step:
            in_flight += 1 if step.startswith("start") else -1
            seen = max(seen, in_flight)
    assert seen == most


def test_what_is_sent_is_written_where_it_is_sent_from() -> None:
    plan = _training_plan(bucket_bytes=1 << 20)
    start = next(
        step
        for step in plan.schedule.steps
        if step.node.op.name == "collective_start" and step.node.attrs["message"].number == (1,)
    )
    places = [value.buffer.within for value in start.inputs[:-1]]
    assert [place and place[1] for place in places] == [256 * k for k in range(LAYERS)]
    assert all(place is not None and place[0] is start.outputs[0] for place in places)


def _written(outputs: list[Expr]) -> list[Node]:
    program = collectives(Program(tuple(each.node for each in outputs)))
    verify(program, after="collectives")
    return [node for node in program.order() if node.op.name == "collective_start"]


def test_small_sums_that_do_not_depend_on_each_other_share_a_message() -> None:
    x = op.input("x", (5,))
    length, total = op.all_sum(op.sum(x * x)), op.all_sum(op.sum(x))
    later = op.all_sum(length * total)
    starts = _written([length, total, later])
    assert [len(node.inputs) for node in starts] == [2, 2]  # values, or a value and a token


def test_equal_values_are_still_messages_of_their_own() -> None:
    """On another rank they may differ, and it would wait."""
    x = op.input("x", (5,))
    several = [all_reduce([x.node], Message("sum", "data", next_number()))[0] for _ in range(3)]
    assert len(_written([Expr(node) for node in several])) == 3


def test_nothing_that_others_wait_for_is_left_out() -> None:
    """A rank without samples finds out that it needs no weights; the others count on its part."""
    comm = _two_ranks()
    part = op.var("part", (6,))
    message = Message("gather", "data", next_number(), ranks=2)
    (weight,) = all_gather_flat([part.node], [(3, 4)], message)
    loss = op.sum(op.input("x", (0, 3)) @ Expr(weight))
    assert messages(cd.compile(op.all_sum(loss), communicator=comm)) == [
        "gather along data of (6,) float32",
        "sum along data of () float32",
    ]
