"""The keynote's trade-offs in training: consistency of parameters, and accuracy of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from caldera.bench.levels.instrumentation import DataSplits, Watch, samples_of, watch_training
from caldera.bench.levels.learner import Perceptron
from caldera.bench.levels.metrics import Curve
from caldera.bench.levels.reference import Quantized, ReferenceSGD, ReferenceTopK, Shuffled
from caldera.bench.levels.schemes import AllReduce, Compressed
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
        nbytes = communicator.traffic.total.bytes_sent
        return curve.points, float(nbytes), network

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
    rows = []
    for name in CONSISTENCY:
        seconds = float(np.median(raw[f"{name}: s"]))
        is_base = name == _STRICT
        rows.append(
            ComparisonRow(
                name,
                "" if is_base else "converges",
                f"{last[name]:.1%} in {seconds:.1f} s",
                BESIDE if is_base else holds(last[name] > last[_STRICT] - RELAXED),
            )
        )
    left = [f"epochs after {epochs}, seeds after {seeds}"] if context.quick else []
    left.append("more ranks than cores, each with a card")
    title = f"Digits on {RANKS} {what}"
    plot = Plot(title, "seconds", "test accuracy", lines, from_zero=False)
    return ExperimentResult(rows, [plot], raw, left)


@claim(
    "messages",
    "Keynote, QSGD and TernGrad",
    "Gradients may be quantised or made sparse and the accuracy stays",
)
def messages(context: ExperimentContext) -> ExperimentResult:
    """Compressed messages beside whole ones."""
    made: dict[str, Callable[[], Scheme]] = {"whole gradients": AllReduce}
    for name, compression in MESSAGES.items():
        made[name] = lambda each=compression: Compressed(each())  # type: ignore[misc]
    return _compared(context, made, "whole gradients", judged=tuple(MESSAGES))


def _compared(
    context: ExperimentContext,
    made: Mapping[str, Callable[[], Scheme]],
    base: str,
    judged: tuple[str, ...],
) -> ExperimentResult:
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
    rows = []
    for name in made:
        share = sent[name] / sent[base]
        is_near = last[name] > last[base] - AT_PAR
        rows.append(
            ComparisonRow(
                name,
                "at par" if name in judged else "",
                f"{last[name]:.1%} with {share:.2f} of the bytes",
                holds(is_near) if name in judged else "beside",
            )
        )
    left = [f"epochs after {epochs}, seeds after {seeds}"] if context.quick else []
    plot = Plot("Digits", "seconds", "test accuracy", lines, from_zero=False)
    return ExperimentResult(rows, [plot], raw, left)


@claim("ensemble", "Keynote, ensembles", "Networks trained apart are better together than one")
def ensemble(context: ExperimentContext) -> ExperimentResult:
    """Networks trained apart that vote, beside one of them and beside one that had all samples."""
    epochs, seeds = (6, 2) if context.quick else (20, 5)
    samples = _samples()
    rows_of: dict[str, list[float]] = {"one of them": [], "the ensemble": [], "their average": []}
    for seed in range(seeds):
        context.tell(f"seed {seed}")
        members = []
        for number in range(RANKS):
            # Each begins elsewhere: an ensemble of equal networks would be one.
            members += trained(AllReduce, samples, epochs, 100 * seed + number, ranks=1)[2]
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
    left = [f"epochs after {epochs}, seeds after {seeds}"] if context.quick else []
    return ExperimentResult(rows, [], rows_of, left)
