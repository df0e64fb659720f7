"""Convolutions under a limit on their workspace: divided into slices, and undivided.

    python benchmarks/micro_batching.py alexnet resnet50 --batch 16 --limits 1,8,64,512

All convolutions of a training step, forward and both gradients, each measured alone: undivided by
the fastest kernel that stays within the limit (before slices, that was NumPy's where nothing else
did), and as Caldera divides it. Both take turns, the best turn counts, and a layer counts as often
as it is in the network. At the end the limit is shared by all layers: the sum of their workspaces.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass, replace

import caldera as cd
from caldera import nn, op
from caldera.config import settings
from caldera.graph.node import Node
from caldera.graph.opdef import detached
from caldera.kernels.choose import choices
from caldera.kernels.common.scratch import at_most_workspace
from caldera.kernels.measure import measure
from caldera.kernels.microbatch import SLICED
from caldera.kernels.shared_limits import shared_limits
from caldera.kernels.table import TABLE, Kernel
from caldera.kernels.verdict import ORACLE

MIB = 1 << 20
SECONDS = 1.0
"""For which the two ways to run a layer are measured."""


def convolutions(network: str, batch: int) -> Counter[Node]:
    """The convolutions of a training step, and how often each comes."""
    if network == "layers":
        return single_layers(batch)
    plan = training_plan(nn.Sequential(getattr(nn.models, network)()), batch)
    return Counter(detached(s.node) for s in plan.schedule.steps if s.node.op.name in SLICED)


def training_plan(network: nn.Layer, batch: int) -> cd.Plan:
    """The plan of the gradients of all parameters; nothing is run."""
    x = op.input("x", (batch, 3, 224, 224))
    random = op.random_state()
    with nn.trace(training=True, random=random):
        result = network(x)
    loss = op.mean(result * result)
    with settings.override(tune_budget_s=0.0):
        return cd.compile([op.grad(loss, each) for each in network.parameters()])


def single_layers(batch: int) -> Counter[Node]:
    """AlexNet's and ResNet's kinds of layers, with images as plans lay them out."""
    found: Counter[Node] = Counter()
    for images, filters, how in (
        ((batch, 64, 27, 27), (192, 64, 5, 5), {"padding": 2}),
        ((batch, 256, 13, 13), (256, 256, 3, 3), {"padding": 1}),
        ((batch, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        ((batch, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ):
        x, w = op.var("x", images, fill=cd.zero()), op.var("w", filters, fill=cd.zero())
        y = op.conv2d(x, w, **how)
        with settings.override(tune_budget_s=0.0):
            plan = cd.compile([y, op.grad(op.sum(y * y), x), op.grad(op.sum(y * y), w)])
        found.update(detached(s.node) for s in plan.schedule.steps if s.node.op.name in SLICED)
    return found


@dataclass
class Layer:
    """What was found for a convolution under a limit."""

    undivided: str
    undivided_s: float
    divided: str
    divided_s: float


def under(node: Node, limit: int) -> Layer:
    """Both ways to run a convolution within so many bytes."""
    with at_most_workspace(limit):
        able = TABLE.candidates(node, "cpu")
        fits = [each for each in able if each.workspace(node) <= limit]
        rivals = [each for each in fits if each.name != ORACLE] or fits
        chosen = choices.verdict(node, "cpu").kernel
        named = {each.name: each for each in (*rivals, chosen)}
        outcome = measure(node, list(named.values()), SECONDS, thorough=True)
    whole = min(rivals, key=lambda each: outcome.times.get(each.name, float("inf")))
    return Layer(whole.name, outcome.times[whole.name], chosen.name, outcome.times[chosen.name])


def compare(network: str, batch: int, limits: list[int]) -> None:
    """One network or set of layers under every limit."""
    found = convolutions(network, batch)
    most = max(
        min(k.workspace(node) for k in TABLE.candidates(node, "cpu") if k.name != ORACLE)
        for node in found
    )
    print(f"\n{network}, batch {batch}: {sum(found.values())} convolutions, {len(found)} kinds; "
          f"the hungriest needs {most / MIB:.1f} MiB at least\n")  # fmt: skip
    print("| limit | undivided | divided | times | NumPy's undivided | in slices | best layer |")
    print("|---|---|---|---|---|---|---|")
    for limit in limits:
        rows = {node: under(node, limit) for node in found}
        before = sum(rows[node].undivided_s * count for node, count in found.items())
        after = sum(rows[node].divided_s * count for node, count in found.items())
        oracle = sum(n for node, n in found.items() if rows[node].undivided == ORACLE)
        cut = sum(n for node, n in found.items() if " by " in rows[node].divided)
        best = max(rows.values(), key=lambda each: each.undivided_s / each.divided_s)
        print(
            f"| {limit / MIB:g} MiB | {before * 1e3:,.1f} ms | {after * 1e3:,.1f} ms "
            f"| {before / after:.2f} | {oracle} | {cut} | {best.undivided_s / best.divided_s:.2f}: "
            f"{best.divided} beside {best.undivided} |", flush=True,
        )  # fmt: skip


def shared(network: str, batch: int, limits: list[int]) -> None:
    """The sum of all workspaces within each limit, shared out and in equal parts."""
    found = convolutions(network, batch)
    nodes = list(found)
    print(f"\n{network}, batch {batch}, one limit for all of its {len(nodes)} kinds\n")
    print("| limit for the sum | equal parts | shared out | times | used |")
    print("|---|---|---|---|---|")
    for limit in limits:
        equal = {node: limit // len(nodes) for node in nodes}
        best = shared_limits(choices, nodes, "cpu", limit)
        rows = [in_turns(node, equal[node], best[node]) for node in nodes]
        before, after = sum(row[0] for row in rows), sum(row[1] for row in rows)
        used = sum(row[2] for row in rows)
        print(f"| {limit / MIB:g} MiB | {before * 1e3:,.1f} ms | {after * 1e3:,.1f} ms "
              f"| {before / after:.2f} | {used / MIB:.1f} MiB |", flush=True)  # fmt: skip


def in_turns(node: Node, one: int, other: int) -> tuple[float, float, int]:
    """Seconds of a layer under two limits, and the workspace under the second."""
    kernels: list[Kernel] = [
        choices.kernel(node, "cpu", limit=one), choices.kernel(node, "cpu", limit=other)
    ]  # fmt: skip
    first, second = kernels
    if first.name == second.name and first.workspace(node) == second.workspace(node):
        seconds = measure(node, [first], SECONDS, thorough=True).times[first.name]
        return seconds, seconds, second.workspace(node)
    renamed = [replace(first, name="one"), replace(second, name="other")]
    times = measure(node, renamed, SECONDS, thorough=True).times
    return times["one"], times["other"], second.workspace(node)


def main() -> None:
    """Read the command line, and print a table for each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--limits", default="8,64,512", help="MiB, with commas")
    parser.add_argument("--accuracy", default="strict")
    parser.add_argument("--shared", action="store_true", help="one limit for all layers")
    options = parser.parse_args()
    limits = [int(float(each) * MIB) for each in options.limits.split(",")]
    with (
        tempfile.TemporaryDirectory() as folder,
        settings.override(cache_dir=folder, tune_budget_s=1e6, accuracy=options.accuracy),
    ):
        for network in options.networks:
            (shared if options.shared else compare)(network, options.batch, limits)


if __name__ == "__main__":
    main()
