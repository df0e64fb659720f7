"""Sums over ranks: a ring beside recursive doubling and a master."""

from __future__ import annotations

from statistics import median

from caldera.bench.reproduce.criteria import LEAST_TURNS, Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.bench.reproduce.experiments.scaling import WIRE
from caldera.bench.reproduce.ranks import run_ranks
from caldera.parallel.planner import Cluster
from caldera.parallel.planner.communication_cost import allreduce

RANKS = 4
NODES = (8, 16, 32, 64)
ALGORITHMS = ("ring", "doubling", "master")
GRADIENT = 4 << 20
"""Bytes of a message of gradients."""


def ring_findings(samples: Samples) -> Findings:
    """Compare times of the same sums."""
    found: dict[str, dict[str, Quantity]] = {"margin": {}, "master": {}, "predicted": {}}
    for case, seconds in samples.items():
        if case.endswith(" nodes"):
            ratio = seconds["doubling"][0] / seconds["ring"][0]
            found["predicted"][case] = Quantity.exact(ratio, predicted=True)
        else:
            found["margin"][case] = Quantity.speedup(seconds["doubling"], seconds["ring"])
            found["master"][case] = Quantity.speedup(seconds["master"], seconds["doubling"])
    return found


@experiment("ring", ring_findings)
def ring(context: ExperimentContext) -> Measurement:
    """Time sums on four ranks by turns, and predict them for more."""
    sizes = {f"{mib} MiB": mib << 20 for mib in (1, 16)}
    turns = LEAST_TURNS if context.quick else 3 * LEAST_TURNS
    context.tell(f"{RANKS} ranks")
    asked = [
        {"bytes": nbytes, "turns": turns, "algorithms": ALGORITHMS} for nbytes in sizes.values()
    ]
    answers, _ = run_ranks("sums", RANKS, asked)
    samples = dict(zip(sizes, answers, strict=True))
    for nodes in NODES:
        cluster = Cluster(nodes, WIRE)
        samples[f"{nodes} nodes"] = {
            name: [allreduce(name, GRADIENT, nodes, cluster).seconds] for name in ALGORITHMS
        }
    lines = {
        name: [(float(n), median(samples[f"{n} nodes"][name])) for n in NODES]
        for name in ALGORITHMS
    }
    plot = Plot("4 MiB of gradients, predicted", "nodes", "s", lines, log=True)
    return Measurement(samples, [plot], ["nodes of a network"])
