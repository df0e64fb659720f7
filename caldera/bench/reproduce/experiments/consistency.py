"""The keynote's trade-offs in training: consistency, compressed messages, its Assumption 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np

from caldera import data
from caldera.bench.levels.instrumentation import DataSplits, Watch, samples_of, watch_training
from caldera.bench.levels.learner import Perceptron
from caldera.bench.levels.metrics import Curve
from caldera.bench.levels.reference import Quantized, ReferenceSGD, ReferenceTopK, Shuffled
from caldera.bench.levels.schemes import AllReduce, Compressed, joined, parted
from caldera.bench.parts import Array, CompressionPart, Scheme
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    holds,
)
from caldera.bench.reproduce.ranks import CONSISTENCY, run_ranks
from caldera.bench.workloads import WORKLOADS, LearningCase
from caldera.comm import Communicator, run_virtual_ranks

RANKS, BATCH, RATE = 4, 48, 0.2
AT_PAR, RELAXED = 0.02, 0.05
"""Of the test accuracy: less is at par; less is the price of a looser model in a few epochs."""
_STRICT = "synchronous, allreduce"


class ReferenceTernGrad(Quantized):
    """Three values: minus the largest number, nothing, the largest number.

    >>> ReferenceTernGrad().decode(ReferenceTernGrad().encode(np.array([0.0, -2.0])), 2)
    array([ 0., -2.])
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(1, seed)

    def encode(self, values: Array) -> Array:
        most = np.float32(np.abs(values).max())
        chosen = self._random.random(values.shape) < np.abs(values) / max(float(most), 1e-30)
        signed = (np.sign(values) * chosen).astype(np.int8)
        return np.concatenate([np.array([most]).view(np.int8), signed])


MESSAGES: Mapping[str, Callable[[], CompressionPart]] = {
    "QSGD, 4 levels": lambda: Quantized(4),
    "QSGD, 16 levels": lambda: Quantized(16),
    "TernGrad": ReferenceTernGrad,
    "top 1%": lambda: ReferenceTopK(0.01),
    "top 10%": lambda: ReferenceTopK(0.1),
}


def _samples() -> DataSplits:
    case = WORKLOADS["training"].case("digits mlp")
    assert isinstance(case, LearningCase)
    return samples_of(case)


def _network(seed: int) -> Perceptron:
    draw = np.random.default_rng(seed)
    shapes = ((64, 64), (64,), (64, 10), (10,))
    return Perceptron([draw.standard_normal(s) / 8 if len(s) > 1 else np.zeros(s) for s in shapes])


def trained(
    make: Callable[[], Scheme], samples: DataSplits, epochs: int, seed: int, ranks: int = RANKS
) -> tuple[list[tuple[float, float]], float, list[Perceptron]]:
    """Accuracy after each epoch, the bytes that all ranks sent, and the networks of the ranks."""

    def work(communicator: Communicator) -> tuple[list[tuple[float, float]], float, Perceptron]:
        network, curve = _network(seed), Curve()
        watch: Watch = watch_training(
            network,
            samples,
            [curve],
            sampler=Shuffled(seed),
            batch=BATCH,
            epochs=epochs,
            optimizer=ReferenceSGD(RATE),
            scheme=make(),
            communicator=communicator,
        )
        assert watch.watched.epoch == epochs
        return curve.points, float(communicator.traffic.total.bytes_sent), network

    found = run_virtual_ranks(ranks, work)
    return found[0][0], sum(each[1] for each in found), [each[2] for each in found]


@claim(
    "consistency",
    "Keynote, parameter consistency",
    "Parameters may be less consistent, from synchronous to ensembles, and training still "
    "converges",
)
def consistency(context: ExperimentContext) -> ExperimentResult:
    """Every model's accuracy against time on one plot: the strategies of `caldera.parallel`."""
    epochs, seeds = (8, 1) if context.quick else (20, 3)
    context.tell(f"{len(CONSISTENCY)} models on {RANKS} ranks")
    asked = [
        {"model": name, "epochs": epochs, "seed": seed, "batch": BATCH, "rate": RATE}
        for name in CONSISTENCY
        for seed in range(seeds)
    ]
    found, what = run_ranks("consistency", RANKS, asked)
    lines: dict[str, list[tuple[float, float]]] = {}
    raw: dict[str, list[float]] = {}
    for options, each in zip(asked, found, strict=True):
        name = str(options["model"])
        lines.setdefault(name, list(zip(each["seconds"], each["accuracy"], strict=True)))
        raw.setdefault(f"{name}: test accuracy", []).append(each["accuracy"][-1])
        raw.setdefault(f"{name}: s", []).append(each["seconds"][-1])
    last = {name: float(np.mean(raw[f"{name}: test accuracy"])) for name in CONSISTENCY}
    rows = [
        ComparisonRow(
            name,
            "" if name == _STRICT else "converges",
            f"{last[name]:.1%} in {np.median(raw[f'{name}: s']):.1f} s",
            BESIDE if name == _STRICT else holds(last[name] > last[_STRICT] - RELAXED),
        )
        for name in CONSISTENCY
    ]
    left = [*_fewer(context, epochs, seeds), "more ranks than cores, each with a card"]
    plot = Plot(f"Digits on {RANKS} {what}", "seconds", "test accuracy", lines, from_zero=False)
    return ExperimentResult(rows, [plot], raw, left)


@claim(
    "messages",
    "Keynote, QSGD and TernGrad",
    "Gradients may be quantised or made sparse and the accuracy stays",
)
def messages(context: ExperimentContext) -> ExperimentResult:
    """Compressed messages beside whole ones."""
    base = "whole gradients"
    made: dict[str, Callable[[], Scheme]] = {base: AllReduce}
    for name, compression in MESSAGES.items():
        made[name] = lambda each=compression: Compressed(each())  # type: ignore[misc]
    epochs, seeds = (6, 2) if context.quick else (20, 5)
    samples = _samples()
    lines, raw, last, sent = {}, {}, {}, {}
    for name, make in made.items():
        context.tell(name)
        runs = [trained(make, samples, epochs, seed) for seed in range(seeds)]
        lines[name] = runs[0][0]
        raw[f"{name}: test accuracy"] = [curve[-1][1] for curve, _, _ in runs]
        raw[f"{name}: bytes sent"] = [each for _, each, _ in runs]
        last[name] = float(np.mean(raw[f"{name}: test accuracy"]))
        sent[name] = float(np.mean(raw[f"{name}: bytes sent"]))
    rows = [
        ComparisonRow(
            name,
            "at par" if name in MESSAGES else "",
            f"{last[name]:.1%} with {sent[name] / sent[base]:.2f} of the bytes",
            holds(last[name] > last[base] - AT_PAR) if name in MESSAGES else BESIDE,
        )
        for name in made
    ]
    plot = Plot("Digits", "seconds", "test accuracy", lines, from_zero=False)
    return ExperimentResult(rows, [plot], raw, _fewer(context, epochs, seeds))


@claim("ensemble", "Keynote, ensembles", "Networks trained apart are better together than one")
def ensemble(context: ExperimentContext) -> ExperimentResult:
    """Networks trained apart that vote, beside one of them and beside one that had all samples."""
    epochs, seeds = (6, 2) if context.quick else (20, 5)
    samples = _samples()
    rows_of: dict[str, list[float]] = {"one of them": [], "the ensemble": [], "their average": []}
    for seed in range(seeds):
        context.tell(f"seed {seed}")
        # Each begins elsewhere: an ensemble of equal networks would be one.
        members = [
            trained(AllReduce, samples, epochs, 100 * seed + number, ranks=1)[2][0]
            for number in range(RANKS)
        ]
        scores = [each.predict(samples.test_x) for each in members]
        right = [float((each.argmax(1) == samples.test_y).mean()) for each in scores]
        powers = [np.exp(each - each.max(1, keepdims=True)) for each in scores]
        votes = sum(each / each.sum(1, keepdims=True) for each in powers)
        weights = [np.mean(group, 0) for group in zip(*(m.weights() for m in members), strict=True)]
        merged = Perceptron(weights).predict(samples.test_x)
        rows_of["one of them"].append(float(np.mean(right)))
        rows_of["the ensemble"].append(
            float((np.asarray(votes).argmax(1) == samples.test_y).mean())
        )
        rows_of["their average"].append(float((merged.argmax(1) == samples.test_y).mean()))
    means = {name: float(np.mean(values)) for name, values in rows_of.items()}
    rows = [
        ComparisonRow(
            "the ensemble beside one of them",
            "better",
            f"{means['the ensemble']:.1%}, {means['one of them']:.1%}",
            holds(means["the ensemble"] >= means["one of them"]),
        ),
        ComparisonRow(
            "averaged weights of networks that began apart",
            "",
            f"{means['their average']:.1%}",
            "beside",
        ),
    ]
    return ExperimentResult(rows, [], rows_of, _fewer(context, epochs, seeds))


def _fewer(context: ExperimentContext, epochs: int, seeds: int) -> list[str]:
    return context.skipped(f"epochs after {epochs}, seeds after {seeds}")


TOP_K_RANKS, TOP_K_RATE, TOP_K_BATCH = 8, 0.1, 16
"""The batch is that of each rank."""
SHARES = (0.01, 0.05, 0.2)
WIDTHS = (64, 128, 128, 10)
"""26,122 numbers: of a few hundred, 1% would be three, and say nothing about networks."""


@claim(
    "topk-assumption",
    "Keynote, Assumption 1",
    "The error of top-k on each rank is a small constant times the gradient, at every step",
)
def topk_assumption(context: ExperimentContext) -> ExperimentResult:
    """The constant xi over the steps of training with error feedback on eight ranks."""
    steps = 60 if context.quick else 400
    lines, rows = {}, []
    for share in SHARES:
        context.tell(f"top {share:.0%}")
        found = constants(share, steps)
        lines[f"top {share:.0%}"] = [(float(step), value) for step, value in enumerate(found, 1)]
        early, late = max(found[: steps // 2]), max(found[steps // 2 :])
        rows += [
            ComparisonRow(
                f"largest xi, top {share:.0%}",
                "a small constant",
                f"{max(found):.2f}",
                holds(max(found) < TOP_K_RANKS),
            ),
            ComparisonRow(
                f"xi does not grow, top {share:.0%}",
                "bounded",
                f"{early:.2f}, then {late:.2f}",
                holds(late < 3.0 * early),
            ),
        ]
    return ExperimentResult(
        rows,
        [Plot("xi over steps", "step", "xi", lines)],
        {name: [value for _, value in points] for name, points in lines.items()},
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
    left = [np.zeros(sum(each.size for each in weights)) for _ in range(TOP_K_RANKS)]
    found = []
    for _ in range(steps):
        batches = draw.integers(0, len(y), (TOP_K_RANKS, TOP_K_BATCH))
        network.load(weights)
        slopes = [
            TOP_K_RATE * joined(network.gradients_at(x[each], y[each])[1]) for each in batches
        ]
        given = [slope + rest for slope, rest in zip(slopes, left, strict=True)]
        sent = [top(each, share) for each in given]
        left = [each - gone for each, gone in zip(given, sent, strict=True)]
        apart = float(np.linalg.norm(top(np.mean(given, axis=0), share) - np.mean(sent, axis=0)))
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
