"""Partition of a network into pipeline stages, by operations or by measured times.

A network is a list of layer calls, and each stage starts with a call. Nodes between two such calls
belong to the stage, for any shape: values that a later stage needs are passed on from stage to
stage. Nodes that depend only on parameters (a transposed weight, a mask) belong to no stage: every
stage that needs them computes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from time import perf_counter

import numpy as np

from caldera import op
from caldera.comm import SingleProcess
from caldera.compiler.lazy import Expr, compile
from caldera.core.graph import ITEM, Body, Node, rebuilt, topological, users_of
from caldera.core.graph.differentiate import accumulate
from caldera.core.graph.ops.base import full
from caldera.core.memory import Device
from caldera.core.tensor.dtype import is_float
from caldera.errors import ConfigError
from caldera.nn import LayerCall, Sequential
from caldera.parallel.tensor.layer_sharding import RankNetwork, TracedNetwork

Stages = dict[Node, int]
"""Stage of each node that belongs to a stage."""


def stages_of(network: TracedNetwork, starts: Sequence[int]) -> Stages:
    """Return the stage of each node, where stage t + 1 begins with the call number `starts[t]`."""
    free = _follows_from(network)
    found: Stages = {}
    seen: set[Node] = set()

    def take(roots: Iterable[Expr], stage: int) -> None:
        for node in topological((expr.node for expr in roots), seen):
            if node.inputs and node not in free:
                found[node] = found[node.inputs[0]] if node.op is ITEM else stage

    for stage, start in enumerate(starts):
        before = [call for place, call in enumerate(network.calls) if place + call.inside < start]
        take((expr for call in before for expr in call.outputs), stage)
        take(network.calls[start].inputs, stage)
    take((expr for call in network.calls for expr in call.outputs), len(starts))
    # Nodes outside layers are computed where their inputs are; without inputs, in every stage.
    for node in topological(network.roots):
        given = [found[each] for each in node.inputs if each in found]
        if given:
            found.setdefault(node, max(given))
    return found


def _follows_from(network: TracedNetwork) -> set[Node]:
    """Return the nodes that depend only on values available to every rank."""
    found: set[Node] = set()
    calls = [expr.node for call in network.calls for expr in call.outputs]
    for node in topological([*network.roots, *calls]):
        is_leaf = node in network.free or node.op.name == "constant"
        if is_leaf or (node.inputs and all(given in found for given in node.inputs)):
            found.add(node)
    return found


def boundary_values(network: TracedNetwork, stages: Stages, count: int) -> list[list[Node]]:
    """Return, for each of `count` cuts, the values computed before it and used after it."""
    order = topological(network.roots)
    users = users_of(order)
    found: list[list[Node]] = [[] for _ in range(count)]
    for node in order:
        if node in stages:
            last = max((stages.get(user, -1) for user in users[node]), default=-1)
            for cut in range(stages[node], last):
                found[cut].append(node)
    return found


def readers(network: TracedNetwork, stages: Mapping[Node, int]) -> dict[Node, set[int]]:
    """Return the stages that read each node without a stage, such as a parameter."""
    found: dict[Node, set[int]] = {}
    for node in reversed(topological(network.roots)):
        here = {stages[node]} if node in stages else found.get(node, set())
        for given in node.inputs:
            if given not in stages:
                found.setdefault(given, set()).update(here)
    return found


# --- choosing the cuts


Costs = Callable[[Sequence[int]], Sequence[float]]
"""Of units of a network, of which those after the first begin with these calls."""


def stage_starts(
    network: RankNetwork, wanted: int | Sequence[str], costs: Costs | None = None
) -> list[int]:
    """Return the indices of the calls that start the stages after the first.

    `wanted` is a number of stages, or layer names. Stages are balanced by `costs`, or else by the
    operations of a rank.
    """
    own = network.own
    if not isinstance(wanted, int):
        return [_called(own.calls, name) for name in wanted]
    starts = unit_starts(own.calls, wanted)
    cuts = boundary_values(own, stages_of(own, starts[1:]), len(starts) - 1)
    sizes = [sum(node.spec.nbytes for node in cut) for cut in cuts]
    dear = unit_flops(own, network.trained, starts[1:]) if costs is None else costs(starts[1:])
    return [starts[place] for place in balanced_cuts(dear, sizes, wanted)]


def traced_samples(batch_size: int, pipelines: int, micro_batches: int, ranks: int) -> int:
    """Return the number of samples for tracing the partition.

    It is a micro-batch, or one sample for each rank that shares layers if that is more.
    """
    return max(batch_size // (pipelines * micro_batches), ranks)


def with_gradients(roots: Sequence[Node], trained: Collection[Node]) -> set[Node]:
    """Return the nodes that depend on parameters that are trained, and these."""
    found: set[Node] = set()
    for node in topological(roots):
        if node in trained or not found.isdisjoint(node.inputs):
            found.add(node)
    return found


def unit_flops(
    network: TracedNetwork, trained: Collection[Node], starts: Sequence[int]
) -> list[int]:
    """Return the operations of each unit, forward and backward; `trained` are parameter nodes.

    In the backward pass a product costs its forward operations for each factor with a gradient. The
    first layer's input has none, and no value before the first trained layer has one.
    """
    outputs = [each.node for call in network.calls for each in call.outputs]
    differentiable = with_gradients([*network.roots, *outputs], trained)
    flops = [0] * (len(starts) + 1)
    for node, unit in stages_of(network, starts).items():
        if node.op is not ITEM:
            factors = sum(given in differentiable for given in node.inputs)
            flops[unit] += node.op.count_flops(node) * (1 + min(factors, 2))
    return flops


def _called(calls: Sequence[LayerCall], name: str) -> int:
    for place, call in enumerate(calls):
        if place and call.layer.path == name:
            return place
    known = ", ".join(dict.fromkeys(call.layer.path for call in calls[1:]))
    raise ConfigError.build(
        "PipelineParallel",
        expected=f"stages that begin with layers of the model: {known}",
        got=repr(name),
        hint="model.summary() shows their names",
    )


def unit_starts(calls: Sequence[LayerCall], wanted: int) -> list[int]:
    """Return calls that may start a stage: the outermost ones, and inner ones only if needed."""
    found = _inside(calls, 0)
    while len(found) < wanted:
        finer = [part for place in found for part in _inside(calls, place) or [place]]
        if finer == found:
            raise ConfigError.build(
                "PipelineParallel",
                expected=f"at least {wanted} layers, one for each stage",
                got=f"a model of {len(found)}",
                hint="give fewer stages, and data= for the rest",
            )
        found = finer
    return found


def _inside(calls: Sequence[LayerCall], place: int) -> list[int]:
    """Return the calls inside a call, flattening nested sequences."""
    found: list[int] = []
    at = place + 1
    while at <= place + calls[place].inside:
        inner = _inside(calls, at) if isinstance(calls[at].layer, Sequential) else []
        found += inner or [at]
        at += 1 + calls[at].inside
    return found


def balanced_cuts(costs: Sequence[float], sizes: Sequence[int], groups: int) -> list[int]:
    """Return the cut positions that minimise the cost of the most expensive group.

    `sizes` is the cost of a cut before each element but the first; ties are broken by it.

    >>> from caldera.parallel.pipeline.stage_partition import balanced_cuts
    >>> balanced_cuts([1, 1, 1, 3], [5, 5, 5], 2)
    [3]
    >>> balanced_cuts([2, 0, 2], [9, 5], 2)
    [2]
    """
    count = len(costs)
    spans = {(cut, end): sum(costs[cut:end]) for end in range(1, count + 1) for cut in range(end)}
    best: dict[int, tuple[float, int, list[int]]] = {
        end: (spans[0, end], 0, []) for end in range(1, count + 1)
    }
    for made in range(2, groups + 1):
        before = [
            (cut, best[cut][0], best[cut][1] + sizes[cut - 1], [*best[cut][2], cut])
            for cut in range(made - 1, count)
        ]
        best = {end: _cheapest(before, spans, end) for end in range(made, count + 1)}
    return best[count][2]


def _cheapest(
    before: Sequence[tuple[int, float, int, list[int]]],
    spans: Mapping[tuple[int, int], float],
    end: int,
) -> tuple[float, int, list[int]]:
    """Return the best partition before the last group, which ends at `end`."""
    found: tuple[float, int, list[int]] | None = None
    for cut, dearest, size, cuts in reversed(before[: end - before[0][0]]):
        if found is not None and spans[cut, end] > found[0]:
            # The last group only becomes dearer from here on.
            break
        new = (max(dearest, spans[cut, end]), size, cuts)
        found = new if found is None else min(found, new)
    assert found is not None
    return found


def check_starts(starts: Sequence[int], names: Sequence[str]) -> None:
    """Refuse stages that are not in the order of the model."""
    if any(first >= second for first, second in pairwise([0, *starts])):
        raise ConfigError.build(
            "PipelineParallel",
            expected="stages in the order in which the model calls its layers",
            got=", ".join(names),
        )


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
    """Return a unit's outputs for its inputs, and the gradients of its inputs and parameters."""
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
    """Return the least time of a run, of several."""
    inputs = [op.input(f"{i}", spec.shape, spec.dtype) for i, spec in enumerate(body.parameters)]
    plan = compile(
        [Expr(node) for node in body(*(each.node for each in inputs))],
        device=device,
        precision=precision,
        communicator=SingleProcess(),
        remember=False,
    )
    # Zeros are valid indices of tables and within the range of half precision.
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
