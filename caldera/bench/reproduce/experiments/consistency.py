"""The keynote's trade-offs in training: consistency, compressed messages, its Assumption 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from caldera import data
from caldera.bench.levels.instrumentation import DataSplits, Watch, samples_of, watch_training
from caldera.bench.levels.learner import Perceptron
from caldera.bench.levels.metrics import Curve
from caldera.bench.levels.reference import Quantized, ReferenceSGD, ReferenceTopK, Shuffled
from caldera.bench.levels.schemes import AllReduce, Compressed, joined, parted
from caldera.bench.parts import Array, CompressionPart, Scheme
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.bench.reproduce.ranks import CONSISTENCY, run_ranks
from caldera.bench.workloads import WORKLOADS, LearningCase
from caldera.comm import Communicator, run_virtual_ranks

RANKS, BATCH, RATE = 4, 48, 0.2
_STRICT, _WHOLE = "synchronous, allreduce", "whole gradients"


class ReferenceTernGrad(Quantized):
    """Three values: minus the largest value, zero, and the largest value.

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


def _difference(ones: Sequence[float], others: Sequence[float]) -> Quantity:
    """Return the difference of accuracies, seed by seed."""
    return Quantity.over_seeds([one - other for one, other in zip(ones, others, strict=True)])


def consistency_findings(samples: Samples) -> Findings:
    """Compare each consistency model with synchronous training."""
    base = samples[_STRICT]
    others = {name: found for name, found in samples.items() if name != _STRICT}
    return {
        "learned": {"": Quantity.over_seeds(base["accuracy"])},
        "converges": {
            name: _difference(base["accuracy"], each["accuracy"]) for name, each in others.items()
        },
        "seconds": {
            name: Quantity.exact(float(np.median(each["seconds"]) / np.median(base["seconds"])))
            for name, each in others.items()
        },
    }


@experiment("consistency", consistency_findings)
def consistency(context: ExperimentContext) -> Measurement:
    """Train with every consistency model of `caldera.parallel`."""
    epochs, seeds = (5, 2) if context.quick else (20, 3)
    context.tell(f"{len(CONSISTENCY)} models on {RANKS} ranks")
    asked = [
        {"model": name, "epochs": epochs, "seed": seed, "batch": BATCH, "rate": RATE}
        for name in CONSISTENCY
        for seed in range(seeds)
    ]
    found, what = run_ranks("consistency", RANKS, asked)
    lines: dict[str, list[tuple[float, float]]] = {}
    samples: dict[str, dict[str, list[float]]] = {}
    for options, each in zip(asked, found, strict=True):
        name = str(options["model"])
        lines.setdefault(name, list(zip(each["seconds"], each["accuracy"], strict=True)))
        kept = samples.setdefault(name, {"accuracy": [], "seconds": []})
        kept["accuracy"].append(each["accuracy"][-1])
        kept["seconds"].append(each["seconds"][-1])
    left = [*_fewer(context, epochs, seeds), "more ranks than cores, each with a GPU"]
    plot = Plot(f"Digits on {RANKS} {what}", "seconds", "test accuracy", lines, from_zero=False)
    return Measurement(samples, [plot], left)


def message_findings(samples: Samples) -> Findings:
    """Compare compressed messages with whole gradients."""
    base = samples[_WHOLE]
    others = {name: found for name, found in samples.items() if name != _WHOLE}
    return {
        "learned": {"": Quantity.over_seeds(base["accuracy"])},
        "accuracy": {
            name: _difference(base["accuracy"], each["accuracy"]) for name, each in others.items()
        },
        "bytes": {
            name: Quantity.largest(
                [one / whole for one, whole in zip(each["bytes"], base["bytes"], strict=True)]
            )
            for name, each in others.items()
        },
    }


@experiment("messages", message_findings)
def messages(context: ExperimentContext) -> Measurement:
    """Train with compressed messages and with whole gradients."""
    made: dict[str, Callable[[], Scheme]] = {_WHOLE: AllReduce}
    for name, compression in MESSAGES.items():
        made[name] = lambda each=compression: Compressed(each())  # type: ignore[misc]
    epochs, seeds = (6, 2) if context.quick else (20, 3)
    splits = _samples()
    lines, samples = {}, {}
    for name, make in made.items():
        context.tell(name)
        runs = [trained(make, splits, epochs, seed) for seed in range(seeds)]
        lines[name] = runs[0][0]
        samples[name] = {
            "accuracy": [curve[-1][1] for curve, _, _ in runs],
            "bytes": [sent for _, sent, _ in runs],
        }
    plot = Plot("Digits", "seconds", "test accuracy", lines, from_zero=False)
    return Measurement(samples, [plot], _fewer(context, epochs, seeds))


def ensemble_findings(samples: Samples) -> Findings:
    """Compare the ensemble and the averaged weights with the members."""
    found = samples["accuracy"]
    return {
        "learned": {"": Quantity.over_seeds(found["members"])},
        "better": {"": _difference(found["ensemble"], found["members"])},
        "average": {"": _difference(found["averaged weights"], found["members"])},
    }


@experiment("ensemble", ensemble_findings)
def ensemble(context: ExperimentContext) -> Measurement:
    """Train networks independently and let them vote."""
    epochs, seeds = (6, 3) if context.quick else (20, 5)
    splits = _samples()
    accuracy: dict[str, list[float]] = {"members": [], "ensemble": [], "averaged weights": []}
    for seed in range(seeds):
        context.tell(f"seed {seed}")
        # Members with equal initial weights would be one network.
        members = [
            trained(AllReduce, splits, epochs, 100 * seed + number, ranks=1)[2][0]
            for number in range(RANKS)
        ]
        scores = [each.predict(splits.test_x) for each in members]
        right = [float((each.argmax(1) == splits.test_y).mean()) for each in scores]
        powers = [np.exp(each - each.max(1, keepdims=True)) for each in scores]
        votes = np.sum([each / each.sum(1, keepdims=True) for each in powers], axis=0)
        weights = [np.mean(group, 0) for group in zip(*(m.weights() for m in members), strict=True)]
        merged = Perceptron(weights).predict(splits.test_x)
        accuracy["members"].append(float(np.mean(right)))
        accuracy["ensemble"].append(float((votes.argmax(1) == splits.test_y).mean()))
        accuracy["averaged weights"].append(float((merged.argmax(1) == splits.test_y).mean()))
    return Measurement({"accuracy": accuracy}, left_out=_fewer(context, epochs, seeds))


def _fewer(context: ExperimentContext, epochs: int, seeds: int) -> list[str]:
    return context.skipped(f"epochs after {epochs}, seeds after {seeds}")


TOP_K_RANKS, TOP_K_RATE, TOP_K_BATCH = 8, 0.1, 16
"""Number of ranks, learning rate, and batch size of each rank."""
SHARES = (0.01, 0.05, 0.2)
WIDTHS = (64, 128, 128, 10)
"""Widths of 26,122 parameters: 1% of a few hundred would be three, too few to represent networks.
"""


def topk_findings(samples: Samples) -> Findings:
    """Compare xi with the number of ranks, and its second half with its first."""
    findings: dict[str, dict[str, Quantity]] = {"small": {}, "bounded": {}}
    for share, found in samples.items():
        xi = found["xi"]
        early, late = max(xi[: len(xi) // 2]), max(xi[len(xi) // 2 :])
        findings["small"][share] = Quantity.largest(xi)
        findings["bounded"][share] = Quantity.exact(late / early, f"{early:.2f}, then {late:.2f}")
    return findings


@experiment("topk-assumption", topk_findings)
def topk_assumption(context: ExperimentContext) -> Measurement:
    """Compute xi over the steps of training with error feedback on eight ranks."""
    steps = 60 if context.quick else 400
    samples = {}
    for share in SHARES:
        context.tell(f"top {share:.0%}")
        samples[f"top {share:.0%}"] = {"xi": constants(share, steps)}
    lines = {
        name: [(float(step), value) for step, value in enumerate(found["xi"], 1)]
        for name, found in samples.items()
    }
    plot = Plot("xi over steps", "step", "xi", lines)
    return Measurement(samples, [plot], context.skipped(f"steps after {steps}"))


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
    """Return the largest numbers, zeros elsewhere.

    >>> top(np.array([1.0, -3.0]), 0.5)
    array([ 0., -3.])
    """
    kept = max(1, round(share * values.size))
    found = np.zeros_like(values)
    places = np.argpartition(np.abs(values), values.size - kept)[-kept:]
    found[places] = values[places]
    return found
