"""How long the parts of a network take, each by itself: a step forward and one back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from time import perf_counter

import numpy as np

from caldera import op
from caldera.comm import SingleProcess
from caldera.compiler.lazy import Expr, compile
from caldera.core.graph.body import Body, rebuilt, topological
from caldera.core.graph.differentiate import accumulate
from caldera.core.graph.node import Node
from caldera.core.graph.ops.base import full
from caldera.core.memory import Device
from caldera.core.tensor.dtype import is_float
from caldera.parallel.pipeline.stage_partition import boundary_values, stages_of, unit_flops
from caldera.parallel.tensor.rank_network import RankNetwork

FEWEST_RUNS, MOST_RUNS, BUDGET_S = 3, 50, 0.05


def unit_seconds(
    network: RankNetwork, device: Device, precision: str | None, starts: Sequence[int]
) -> list[float]:
    """The time of each unit of a network, of which those after the first begin with these calls.

    The whole network is timed. A rank that does half of the operations, because others share its
    layers, is taken for twice as fast. Units that are alike are timed once.
    """
    whole, trained = network.whole, network.trained
    cuts = boundary_values(whole, stages_of(whole, starts), len(starts))
    known: dict[Body, float] = {}
    found = []
    for given, made in zip([[], *cuts], [*cuts, list(whole.roots)], strict=True):
        body = _unit(given, made, trained)
        if body not in known:
            known[body] = _seconds(body, device, precision)
        found.append(known[body])
    flops = zip(*(unit_flops(each, trained, starts) for each in (whole, network.own)), strict=True)
    return [t * own / all_ if all_ else t for t, (all_, own) in zip(found, flops, strict=True)]


def _unit(given: Sequence[Node], made: Sequence[Node], trained: Collection[Node]) -> Body:
    """What a unit makes of what it is given, and the gradients of that and of its parameters."""
    leaves = {value: op.input("given", value.shape, value.dtype).node for value in given}
    outputs = rebuilt(made, dict(leaves))
    arguments = [node for node in topological(outputs) if node.op.name in ("input", "variable")]
    wanted = [
        node
        for node in arguments
        if is_float(node.dtype) and (node in trained or node in set(leaves.values()))
    ]
    ends = [node for node in outputs if is_float(node.dtype)]
    gradients = accumulate(ends, [full(end.shape, 1, end.dtype) for end in ends], wanted)
    return Body(arguments, [*outputs, *(slope for slope in gradients if slope is not None)])


def _seconds(body: Body, device: Device, precision: str | None) -> float:
    """The least time of a run, of several."""
    inputs = [op.input(f"{i}", spec.shape, spec.dtype) for i, spec in enumerate(body.parameters)]
    plan = compile(
        [Expr(node) for node in body(*(each.node for each in inputs))],
        device=device,
        precision=precision,
        communicator=SingleProcess(),
        remember=False,
    )
    # Places in tables are within them, and nothing is too large for halves.
    feeds = {
        f"{i}": np.full(each.shape, 0.1 if is_float(each.dtype) else 0, each.dtype)
        for i, each in enumerate(inputs)
        if f"{i}" in plan.inputs
    }
    times: list[float] = []
    began = perf_counter()
    while len(times) < FEWEST_RUNS or (
        len(times) < MOST_RUNS and perf_counter() - began < BUDGET_S
    ):
        start = perf_counter()
        plan.run(feeds)
        device.stream.synchronize()
        times.append(perf_counter() - start)
    return min(times)
