"""Calibration of the planner on the papers' tables: each row is predicted from other rows.

A system has constants that its paper does not report. They are fitted to all rows of a table except
the rows of one network, which are then predicted. Twice the error on the fitted rows is the error
bar.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from caldera import nn
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.bench.reproduce.experiments.dmath_table import FIRST_BATCH, RANKS, SEED
from caldera.bench.reproduce.experiments.scaling import TABLE, TABLE_NETWORKS
from caldera.bench.reproduce.ranks import NETWORKS, guess_way
from caldera.parallel.planner import Cluster, Compute, Setting, Wire, workload_of
from caldera.parallel.planner.compression_cost import CodecCost, CodecSeconds, default_codecs
from caldera.train.neural_network import NeuralNetwork

RING, HIERARCHICAL = "DataParallel, ring", "DataParallel, hierarchical"
STEP_S = (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.12)
"""Seconds of a step that do not depend on its samples."""
BANDWIDTHS = (2e8, 5e8, 1e9, 1.5e9, 2e9, 3e9, 4e9, 7e9)
"""Bytes a second of each rank."""
ENCODING = (0.0, 1e-10, 2e-10, 4e-10, 8e-10, 1.6e-9, 3.2e-9)
"""Seconds to encode and decode a value."""
SPEEDS = (2.5e11, 5e11, 1e12, 2e12, 4e12, 8e12)
"""Operations a second of a GPU."""
SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Share of the link's bandwidth that a dense allreduce reaches."""
EFFICIENCY, IMAGES_PER_SECOND = 0.9, 139.0
"""Efficiency of 256 P100 GPUs relative to 8 (Goyal et al., 2017), and images per second of a GPU.

The rate follows from 90 epochs in an hour.
"""
ETHERNET, NVLINK = Wire(5e-6, 6.25e9), Wire(2e-6, 40e9)
"""50 Gbit/s between machines of 8 GPUs, and the link within a machine."""


def _dmath_rows() -> Iterator[tuple[str, int, float]]:
    for column, rates in SEED.items():
        yield from ((column, ranks, rate) for ranks, rate in zip(RANKS[1:], rates[1:], strict=True))


def _dmath_rate(workload: Any, column: str, ranks: int, step: float, bandwidth: float) -> float:
    """Predict images/s from the paper's rate on one GPU and the two constants."""
    sizes = FIRST_BATCH.get(column, {})
    usual = int(column.split()[1])
    first = sizes.get(1, usual)
    each = 1.0 / SEED[column][0] - step / first
    compute = Compute(((1.0, step + each), (float(first), step + first * each)))
    cluster = Cluster(ranks, Wire(3e-6, bandwidth))
    return guess_way(Setting(workload, compute, cluster, sizes.get(ranks, usual)), RING).rate


def _sparcml_speedups(
    workload: Any, place: int, encoding: float, speed: float, share: float
) -> tuple[float, float]:
    """Predict the speedups of communication and training of a line of the table."""
    line = TABLE[place]
    wire = replace(line.wire, bandwidth=share * line.wire.bandwidth)
    code = default_codecs(wire)[line.way].compressor
    codes = {line.way: CodecCost(code, CodecSeconds(2, encoding), CodecSeconds(8, encoding))}
    compute = Compute.at_speed(workload, speed)
    setting = Setting(workload, compute, Cluster(line.nodes, wire), line.batch, codes)
    dense, packed = (guess_way(setting, name) for name in (RING, f"DataParallel, {line.way}"))
    return dense.exchange / packed.exchange, dense.seconds / packed.seconds


def held_out(
    predicted: np.ndarray[Any, Any], reported: Sequence[float], groups: Sequence[str]
) -> list[tuple[float, float]]:
    """Return the prediction of each row by the constants that best fit the remaining groups.

    `predicted` has a row for each choice of constants. The error of a prediction is a factor: the
    exponential of twice the root mean square of the logarithmic errors.

    >>> held_out(np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 9.0]]), [2.0, 4.0, 6.0], ["a", "b", "c"])
    [(2.0, 1.774...), (4.0, 1.774...), (9.0, 1.0)]
    """
    errors = np.log(predicted / np.array(reported))
    found = []
    for place, group in enumerate(groups):
        others = errors[:, [each != group for each in groups]]
        best = int(np.square(others).sum(1).argmin())
        deviation = float(np.sqrt(np.square(others[best]).mean()))
        found.append((float(predicted[best, place]), math.exp(2.0 * deviation)))
    return found


def calibration_findings(samples: Samples) -> Findings:
    """Compare predictions of held-out rows with the papers' rows."""
    found: dict[str, dict[str, Quantity]] = {"dmath": {}, "sparcml": {}, "resnet": {}}
    for case, row in samples.items():
        system, _, name = case.partition(": ")
        (ours,), (paper,), (factor,) = row["predicted"], row["reported"], row["factor"]
        ratio = ours / paper
        note = f"{ours:.4g} against {paper:g}"
        if not 0.5 < ratio < 2.0:
            note += ", off by more than 2"
        found[system][name] = Quantity(ratio, ratio / factor, ratio * factor, note, predicted=True)
    return found


@experiment("calibration", calibration_findings)
def calibration(context: ExperimentContext) -> Measurement:
    """Predict rows of three papers from their other rows."""
    context.tell("dMath, table 1")
    rows = list(_dmath_rows())
    works = {column: _workload(NETWORKS[column.split()[0].lower()][0]) for column in SEED}
    names = [f"dmath: {column}, {ranks} GPUs" for column, ranks, _ in rows]
    grid = [
        [_dmath_rate(works[column], column, ranks, *each) for column, ranks, _ in rows]
        for each in product(STEP_S, BANDWIDTHS)
    ]
    samples = _samples(names, grid, [row[2] for row in rows], [row[0] for row in rows])
    context.tell("SparCML")
    works = {line.network: _workload(TABLE_NETWORKS[line.network]) for line in TABLE}
    grid = [
        [
            speedup
            for place, line in enumerate(TABLE)
            for speedup in _sparcml_speedups(works[line.network], place, *each)
        ]
        for each in product(ENCODING, SPEEDS, SHARES)
    ]
    lines = [f"{line.system}, {line.network}" for line in TABLE]
    names = [f"sparcml: {line}, {what}" for line in lines for what in ("communication", "training")]
    reported = [value for line in TABLE for value in (line.exchange, line.training)]
    samples |= _samples(names, grid, reported, [line for line in lines for _ in range(2)])
    samples["resnet: 256 GPUs"] = _resnet()
    plots = [_plot(column, samples) for column in SEED]
    return Measurement(samples, plots, ["systems whose papers have no other rows"])


def _workload(make: Any) -> Any:
    return workload_of(NeuralNetwork(make(), batch_size=256))


def _samples(
    names: Sequence[str],
    grid: Sequence[Sequence[float]],
    reported: Sequence[float],
    groups: Sequence[str],
) -> dict[str, Mapping[str, list[float]]]:
    found = held_out(np.array(grid), reported, groups)
    return {
        name: {"predicted": [ours], "reported": [paper], "factor": [factor]}
        for name, (ours, factor), paper in zip(names, found, reported, strict=True)
    }


def _resnet() -> dict[str, list[float]]:
    """Predict large-batch ResNet-50 by the links' nominal rates and the algorithm of its paper."""
    work = _workload(nn.models.resnet50)
    rates = {}
    for ranks in (8, 256):
        cluster = Cluster(ranks, ETHERNET, inside=NVLINK, per_node=8)
        compute = Compute(((1.0, 1.0 / IMAGES_PER_SECOND),))
        rates[ranks] = (
            guess_way(Setting(work, compute, cluster, 32 * ranks), HIERARCHICAL).rate / ranks
        )
    return {"predicted": [rates[256] / rates[8]], "reported": [EFFICIENCY], "factor": [1.0]}


def _plot(column: str, samples: Mapping[str, Mapping[str, list[float]]]) -> Plot:
    lines = {
        label: [
            (float(ranks), samples[f"dmath: {column}, {ranks} GPUs"][key][0]) for ranks in RANKS[1:]
        ]
        for label, key in (("paper", "reported"), ("predicted", "predicted"))
    }
    return Plot(f"{column}, predicted from the remaining columns", "GPUs", "images/s", lines)
