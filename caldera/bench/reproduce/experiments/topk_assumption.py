"""The keynote's Assumption 1: how far top-k of a sum is from the sum of top-ks, in training."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from caldera import data
from caldera.bench.levels.learner import Perceptron
from caldera.bench.levels.schemes import joined, parted
from caldera.bench.parts import Array
from caldera.bench.reproduce.experiment import (
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    holds,
)

RANKS, RATE, BATCH = 8, 0.1, 16
"""The batch is that of each rank."""
SHARES = (0.01, 0.05, 0.2)
WIDTHS = (64, 128, 128, 10)
"""26,122 numbers: of a few hundred, 1% would be three, and say nothing about networks."""


@claim(
    "topk-assumption",
    "Keynote, Assumption 1",
    "The error of top-k on each rank is a small constant times the gradient, at every step",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """The constant xi over the steps of training with error feedback on eight ranks."""
    steps = 60 if context.quick else 400
    lines, rows = {}, []
    for share in SHARES:
        context.tell(f"top {share:.0%}")
        found = constants(share, steps)
        lines[f"top {share:.0%}"] = [(float(step), value) for step, value in enumerate(found, 1)]
        late = max(found[steps // 2 :])
        early = max(found[: steps // 2])
        rows.append(
            ComparisonRow(
                f"largest xi, top {share:.0%}",
                "a small constant",
                f"{max(found):.2f}",
                holds(max(found) < RANKS),
            )
        )
        rows.append(
            ComparisonRow(
                f"xi does not grow, top {share:.0%}",
                "bounded",
                f"{early:.2f}, then {late:.2f}",
                holds(late < 3.0 * early),
            )
        )
    samples = {name: [value for _, value in points] for name, points in lines.items()}
    return ExperimentResult(
        rows,
        [Plot("xi over steps", "step", "xi", lines)],
        samples,
        context.skipped(f"steps after {steps}"),
    )


def constants(share: float, steps: int) -> list[float]:
    """xi of each step: the left side of the assumption over the norm on its right side."""
    digits = data.digits().train
    y = np.asarray(digits.y)
    x = np.asarray(digits.x, np.float64).reshape(len(y), -1)
    draw = np.random.default_rng(0)
    weights: list[Array] = []
    for inputs, outputs in pairwise(WIDTHS):
        weights += [draw.normal(size=(inputs, outputs)) / inputs**0.5, np.zeros(outputs)]
    network = Perceptron(weights)
    left = [np.zeros(sum(each.size for each in weights)) for _ in range(RANKS)]
    found = []
    for _ in range(steps):
        batches = draw.integers(0, len(y), (RANKS, BATCH))
        network.load(weights)
        slopes = [RATE * joined(network.gradients_at(x[each], y[each])[1]) for each in batches]
        given = [slope + rest for slope, rest in zip(slopes, left, strict=True)]
        sent = [top(each, share) for each in given]
        left = [each - gone for each, gone in zip(given, sent, strict=True)]
        whole = top(np.mean(given, axis=0), share)
        apart = float(np.linalg.norm(whole - np.mean(sent, axis=0)))
        size = float(np.linalg.norm(np.mean(slopes, axis=0)))
        found.append(apart / max(size, 1e-30))
        weights = parted(joined(weights) - np.mean(sent, axis=0), weights)
    return found


def top(values: Array, share: float) -> Array:
    """The largest numbers, zeros elsewhere.

    >>> top(np.array([1.0, -3.0]), 0.5)
    array([ 0., -3.])
    """
    kept = max(1, round(share * values.size))
    found = np.zeros_like(values)
    places = np.argpartition(np.abs(values), values.size - kept)[-kept:]
    found[places] = values[places]
    return found
