"""Feeding a plan on a device with memory of its own: two places, a copy beside each run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import caldera as cd
from caldera import op
from caldera.compiler.plan.buffers import Inputs
from caldera.core.graph.memory_format import NHWC
from caldera.core.memory import device
from caldera.core.memory.interface import recorded
from tests.transfers import counted_from_now

APART = "loopback:6"


def adding() -> tuple[cd.Plan, cd.Variable]:
    """A plan that adds up what it is fed."""
    x = op.input("x", (1000,), dtype="int64")
    total = op.var("total", (1000,), dtype="int64", device=APART)
    return cd.compile([op.assign(total, total + x)]), total


def batch(number: int) -> dict[str, Any]:
    return {"x": np.full(1000, number)}


def held(stream: Any) -> threading.Event:
    gate = threading.Event()
    stream.launch(lambda: gate.wait(20))
    return gate


@pytest.mark.parametrize("captured", [False, True])
def test_every_batch_arrives_in_its_turn(captured: bool) -> None:
    plan, total = adding()
    if captured:
        plan.capture()
    array = np.empty(1000, np.int64)
    for number in range(1, 101):
        array.fill(number)
        plan.run({"x": array})
        # The caller's array is free again as soon as it has been fed.
        array.fill(-1)
    assert set(total.numpy().tolist()) == {5050}


@pytest.mark.parametrize("captured", [False, True])
def test_the_next_batch_is_copied_while_a_run_goes_on(captured: bool) -> None:
    plan, total = adding()
    where = device(APART)
    if captured:
        plan.capture()
    for number in (1, 2):
        plan.run(batch(number))
    counted_from_now(where)
    gate = held(where.stream)
    for number in (3, 4):
        plan.run(batch(number))
    # Nothing has run, but both batches are there, and the host has not waited.
    where.copy_stream.synchronize()
    assert where.counters.h2d == 2
    assert where.counters.waits == 1
    for number in (5, 6):
        plan.run(batch(number))
    # Their places are still to be read, so these wait for their turn on the stream of copies.
    assert where.counters.h2d == 2
    gate.set()
    assert set(total.numpy().tolist()) == {21}


def test_the_host_waits_for_a_place_that_is_still_to_be_copied() -> None:
    plan, total = adding()
    where = device(APART)
    plan.capture()
    gate = held(where.stream)
    for number in range(1, 5):
        plan.run(batch(number))
    threading.Timer(0.05, gate.set).start()
    waits = where.counters.waits
    plan.run(batch(5))
    assert gate.is_set()
    assert where.counters.waits == waits + 1
    assert set(total.numpy().tolist()) == {15}


def test_a_run_that_fails_is_heard_of_and_the_next_one_works() -> None:
    x = op.input("x", (1,), dtype="int64")
    table = op.var("table", (3,), fill=np.array([1.0, 2.0, 3.0]), device=APART)
    found = op.var("found", (1,), device=APART)
    plan = cd.compile([op.assign(found, op.gather(table, x))])
    plan.run({"x": [7]})

    def go_on() -> None:
        for _ in range(10):
            plan.run({"x": [0]})

    with pytest.raises(cd.DataError, match="7 into an axis of length 3"):
        go_on()
    for _ in range(4):
        plan.run({"x": [2]})
    assert found.numpy().tolist() == [3.0]


def test_copies_and_runs_show_in_a_trace() -> None:
    plan, _ = adding()
    where = device(APART)
    plan.capture()
    with recorded(where) as trace:
        where.stream.launch(lambda: threading.Event().wait(0.02))
        for number in range(3):
            plan.run(batch(number))
    spans = trace.spans()
    kinds = [("h2d", "copies"), ("run", "kernels")]
    assert [(span.what, span.stream) for span in spans] == kinds * 3
    assert all(span.begin <= span.end for span in spans)
    runs = [span for span in spans if span.what == "run"]
    assert all(one.end <= other.begin for one, other in pairwise(runs))
    assert where.trace is None
    plan.run(batch(0))
    assert len(trace.spans()) == 6


def test_a_variable_that_the_host_changes_is_seen_by_the_next_replay() -> None:
    plan, total = adding()
    plan.capture()
    for number in range(3):
        plan.run(batch(number))
    assert total.numpy()[0] == 3
    total.assign(np.full(1000, 100))
    plan.run(batch(7))
    plan.run(batch(7))
    assert total.numpy()[0] == 114
    plan.run(batch(1))
    assert total.numpy()[0] == 115


def test_a_memory_that_was_waited_for_is_waited_for_again() -> None:
    plan, total = adding()
    plan.capture()
    plan.run(batch(1))
    total.tensor.memory.sync()
    gate = held(device(APART).stream)
    plan.run(batch(1))
    threading.Timer(0.05, gate.set).start()
    total.tensor.memory.sync()
    assert gate.is_set()


LARGE = (96, 3, 32, 64)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x,
        np.asfortranarray,
        lambda x: x[::-1, :, ::2],
        lambda x: x.swapaxes(0, 1)[:, ::-1],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x.astype([("of", "i1"), ("a", "f4")])["a"],
    ],
)
def test_a_large_batch_may_lie_in_any_order(arrange: Callable[[np.ndarray], np.ndarray]) -> None:
    """Threads share a copy to another order."""
    given = arrange(np.arange(np.prod(LARGE), dtype=np.float32).reshape(LARGE))
    symbol = op.input("x", given.shape).node.attrs["symbol"]
    inputs = Inputs([symbol], {symbol: NHWC}, device("cpu"))
    inputs.feed({"x": given})
    np.testing.assert_array_equal(inputs.fed()["x"], given)
    # What was fed last, turned round: it is read before it is written.
    last = inputs.fed()["x"][::-1]
    right = last.copy()
    inputs.feed({"x": last})
    np.testing.assert_array_equal(inputs.fed()["x"], right)
