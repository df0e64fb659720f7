"""MagmaDNN, table 1 and figure 4: time of training an MLP on MNIST against its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from caldera.bench.frameworks.base import BenchTask
from caldera.bench.levels.learner import framework_here, frameworks
from caldera.bench.reproduce.experiment import (
    BESIDE,
    LEAST_TURNS,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.bench.workloads import WORKLOADS, TrainingCase

SEED = {"MagmaDNN": 0.6197, "TensorFlow": 1.7524, "Theano (GPU)": 1.5271, "Theano (CPU)": 12.5071}
"""Seconds of five epochs more for each layer more."""
STEPS = 5 * 600
"""Five epochs of MNIST in batches of 100."""


@claim(
    "mlp-layers",
    "MagmaDNN, table 1",
    "The time of training an MLP grows linearly with its layers, and more slowly than in "
    "other frameworks",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """Steps of the same networks in Caldera and in the peers that are here, in turns."""
    work = WORKLOADS["mlp-depth"]
    cases = work.quick if context.quick else work.cases
    names = [name for name in frameworks() if name != "reference"]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    turns = max(LEAST_TURNS, context.repeats)
    samples = {}
    for case in cases:
        assert isinstance(case, TrainingCase)
        context.tell(f"{case.name}")
        calls: dict[str, Callable[[], object]] = {}
        for name in names:
            with framework_here(name) as framework:
                calls[name] = _stepping(framework.trainer(case, "float32"))
        for name, found in in_turns(calls, turns, least=0.05).items():
            times[name].append((float(case.depth), STEPS * min(found)))
            samples[f"{name}, {case.depth} layers: s a step"] = found
    slopes = {name: _slope(points) for name, points in times.items()}
    rows = [
        ComparisonRow(f"{name}, s a layer", f"{seconds:.4f}", "", BESIDE)
        for name, seconds in SEED.items()
    ]
    rows += [
        ComparisonRow(f"{name}, s a layer", "", f"{slopes[name]:.3f}", BESIDE) for name in names
    ]
    straight = _residual(times["caldera"])
    rows.append(
        ComparisonRow(
            "time grows linearly with layers",
            "yes",
            f"{straight:.1%} off a line",
            holds(straight < 0.15),
        )
    )
    depths = [depth for depth, _ in times["caldera"]]
    by_turn = {name: _slopes(name, depths, samples) for name in names}
    for name in names[1:]:
        ratio, verdict = faster(by_turn["caldera"], by_turn[name])
        rows.append(ComparisonRow(f"slope of {name} over ours", "above 1", ratio, verdict))
    plot = Plot("Five epochs of MNIST", "layers", "s", times)
    return ExperimentResult(rows, [plot], samples, context.skipped("depths 3 and 6"))


def _stepping(task: BenchTask) -> Callable[[], object]:
    def step() -> None:
        task.call()
        task.wait()

    return step


def _slope(points: list[tuple[float, float]]) -> float:
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def _slopes(name: str, depths: list[float], samples: Mapping[str, list[float]]) -> list[float]:
    """One of every turn."""
    taken = [samples[f"{name}, {depth:.0f} layers: s a step"] for depth in depths]
    return [_slope(list(zip(depths, turn, strict=True))) for turn in zip(*taken, strict=False)]


def _residual(points: list[tuple[float, float]]) -> float:
    """The largest distance to a straight line, relative to the largest time."""
    x, y = np.array(points).T
    return float(np.abs(y - np.polyval(np.polyfit(x, y, 1), x)).max() / y.max())
