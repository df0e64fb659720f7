"""Sums over ranks by a ring, by recursive doubling and by a master; a 3-D FFT on 1 to 4 ranks."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from caldera import dmath
from caldera.base.config import settings
from caldera.base.machine import usable_cores
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
from caldera.bench.timing import Stopwatch
from caldera.parallel.planner import Cluster
from caldera.parallel.planner.communication_cost import allreduce

RANKS = 4
NODES = (8, 16, 32, 64)
ALGORITHMS = ("ring", "doubling", "master")
GRADIENT = 4 << 20
"""Bytes of a message of gradients."""


def ring_findings(samples: Samples) -> Findings:
    """Compare the times of the same sums by different algorithms."""
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
    turns = context.turns(LEAST_TURNS if context.quick else 3 * LEAST_TURNS)
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


EDGE = 128
COUNTS = (1, 2, 4)
ROUNDS = 3


def fft_findings(samples: Samples) -> Findings:
    """Compare several ranks with one."""
    found: dict[str, dict[str, Quantity]] = {"speedup": {}, "equal": {}, "crowded": {}}
    (cores,) = samples["machine"]["cores"]
    one = samples["1 ranks"]["seconds"]
    for count in COUNTS[1:]:
        case = f"{count} ranks"
        kind = "speedup" if count <= cores else "crowded"
        found[kind][case] = Quantity.speedup(one, samples.get(case, {}).get("seconds", []))
    return {**found, "equal": {"": Quantity.largest(samples["machine"]["difference"])}}


@experiment("fft-scaling", fft_findings)
def fft(context: ExperimentContext) -> Measurement:
    """Time the transform in several rounds, each with all numbers of ranks."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((EDGE,) * 3).astype(np.complex64)
    expected = np.fft.fftn(x)
    seconds: dict[int, list[float]] = {count: [] for count in COUNTS}
    apart = []
    size = float(abs(expected).max())
    for turn in range(context.turns(ROUNDS)):
        for count, taken in seconds.items():
            context.tell(f"{count} ranks, round {turn + 1}")
            with settings.override(threads=1), dmath.connect(count):
                given = dmath.array(x)
                # Kernels are chosen and connections made in the first run.
                _seconds_of_fft(given)
                taken += [_seconds_of_fft(given) for _ in range(3 if context.quick else 5)]
                apart.append(float(abs(dmath.fftn(given).numpy() - expected).max()) / size)
    machine = {"cores": [float(usable_cores())], "difference": apart}
    samples = {f"{count} ranks": {"seconds": taken} for count, taken in seconds.items()}
    points = [(float(count), median(taken)) for count, taken in seconds.items()]
    plot = Plot(f"FFT of {EDGE}^3", "ranks", "s", {"measured": points})
    return Measurement({"machine": machine, **samples}, [plot], ["1024^3", "GPUs"])


def _seconds_of_fft(given: Any) -> float:
    """Time until a value of the result is there: the ranks compute in the background."""
    watch = Stopwatch()
    dmath.fftn(given).eval()[0, 0, 0].item()
    return watch.wall
