"""Tuning with the learnt cost model beside measuring every kernel: how long, and how well chosen.

    python benchmarks/kernels/cost_model.py resnet50 inception3 --batch 4
    python benchmarks/kernels/cost_model.py resnet50 inception3 --batch 2 --cpu-time

Each network is tuned from an empty cache, in a process of its own: exhaustively, and by the model,
which learns while it goes. Cold, kernels are compiled as they are tried; then each process tunes
again with an empty cache of choices, when all kernels are compiled. Beside it stands what any
plan has to compile, for the kernels that would be guessed. What the model's choices take is looked
up in the exhaustive times, the better of the two runs; what the second exhaustive run would choose
by the times of the first, and how far the two are apart, is the noise.

Then the model is trained on the first exhaustive run and predicts shapes that it has not seen, left
out one at a time, those of each network by the others, and by them and the rest of its own; an
error is that from the mean of the two runs. A machine may be twice as fast in one run as in the
other, which says nothing about predictions: so times are compared as they would be at the usual
pace of the yardstick beside them, and as they were.

`--cpu-time` is for busy machines: one thread, and the seconds that it computed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from math import exp, log
from operator import add
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn, op
from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import detached
from caldera.kernels.table import Call, Runner
from caldera.kernels.tuning import database, measure
from caldera.kernels.tuning.choose import Choices
from caldera.kernels.tuning.cost_model import CostModel, following
from caldera.kernels.tuning.database import TuningRecord

WAYS = ("exhaustive", "model")
PLAN = "plan"
COLUMNS = (
    "network",
    "nodes",
    "exhaustive, cold",
    "with the model, cold",
    "times shorter",
    "compiled in any case",
    "times shorter without that",
    "compiled before",
    "measured, predicted",
    "chosen to the best",
    "more than 3% off",
    "noise",
)


# --- tuning, in a process of its own


def nodes_of(name: str, batch: int) -> list[Node]:
    """What a training step of a network is made of, each kind once."""
    side = {"inception3": 299, "resnet20": 32, "resnet56": 32}.get(name, 224)
    network = nn.Sequential(getattr(nn.models, name)())
    with nn.trace(training=True, random=op.random_state()):
        result = network(op.input("x", (batch, 3, side, side)))
    outputs = list(result.values()) if isinstance(result, dict) else [result]
    loss = reduce(add, (op.mean(each * each) for each in outputs))
    with settings.override(tune_budget_s=0.0):
        plan = cd.compile(op.grad(loss, network.parameters()))
    return list({detached(step.node): None for step in plan.schedule.steps})


def tuned(
    nodes: list[Node], folder: Path, *, all_kernels: bool, clock: Callable[[], float] = perf_counter
) -> dict[str, Any]:
    """Seconds from an empty cache, and what was chosen: kernel, source, times and features."""
    choices = Choices()
    with settings.override(cache_dir=folder, tune_budget_s=1e6):
        start = clock()
        with choices.exhaustive() if all_kernels else nullcontext():
            found = [choices.choose(node, "cpu") for node in nodes]
        seconds = clock() - start
        records = [[r.key, r.chosen, r.times, r.features, r.pace] for r in database.all_records()]
    return {
        "seconds": seconds,
        "verdicts": [[each.kernel.name, each.source, each.times] for each in found],
        "records": records,
    }


def bound(nodes: list[Node], folder: Path, clock: Callable[[], float]) -> float:
    """Seconds to compile one kernel for each node among several, the one that would be guessed."""
    choices = Choices()
    total = 0.0
    with settings.override(cache_dir=folder):
        for node in nodes:
            choice = choices.choose(node, "cpu", measure=False)
            if choice.source == "only":
                continue
            specs = [given.outputs[0] for given in node.inputs]
            nbytes = max(1, choice.kernel.workspace(node))
            arrays, (workspace,) = (
                tuple(measure._aligned(spec) for spec in each)
                for each in ((*node.outputs, *specs), [Spec((nbytes,), np.dtype(np.uint8))])
            )
            made = len(node.outputs)
            start = clock()
            choice.kernel.bind(Call(node, arrays[:made], arrays[made:], workspace))
            total += clock() - start
    return total


def _thread_seconds(runner: Runner, count: int) -> float:
    start = thread_time()
    for _ in range(count):
        runner()
    return (thread_time() - start) / count


def tune_here(name: str, way: str, options: argparse.Namespace) -> None:
    """Tune twice in this process, and print what was found."""
    if options.cpu_time:
        settings.update(threads=1)
        measure._seconds = _thread_seconds
    clock = process_time if options.cpu_time else perf_counter
    with tempfile.TemporaryDirectory() as folder:
        with settings.override(cache_dir=Path(folder) / "plan"):
            nodes = nodes_of(name, options.batch)
        if way == PLAN:
            print(json.dumps(bound(nodes, Path(folder) / "cold", clock)))
            return
        runs = []
        for each in ("cold", "warm"):
            runs.append(tuned(nodes, Path(folder) / each, all_kernels=way != "model", clock=clock))
            if way == "model":
                # What it leaves out now it may try in the second run.
                tuned(nodes, Path(folder) / f"all after {each}", all_kernels=True, clock=clock)
    print(json.dumps(runs))


# --- what came of it


def in_a_process(name: str, way: str, options: argparse.Namespace) -> Any:
    """What `tune_here` prints there."""
    command = [sys.executable, __file__, name, "--batch", str(options.batch), "--way", way]
    command += ["--cpu-time"] if options.cpu_time else []
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@dataclass(frozen=True)
class Tuned:
    """The two runs, cold and warm, of a way to tune."""

    runs: list[dict[str, Any]]

    @classmethod
    def of(cls, name: str, way: str, options: argparse.Namespace) -> Tuned:
        """Tune a network in a process of its own."""
        return cls(in_a_process(name, way, options))

    def records(self, run: int) -> list[TuningRecord]:
        """What a run has left on disk."""
        return [TuningRecord(*each) for each in self.runs[run]["records"]]

    def sources(self, run: int) -> list[str]:
        """Where the choices among several kernels come from."""
        return [source for _, source, times in self.runs[run]["verdicts"] if times]


def quality(times: Sequence[dict[str, float]], chosen: Sequence[str]) -> tuple[float, int]:
    """What these choices take beside the best, and how many are more than 3% off."""
    best = taken = 0.0
    others = 0
    for known, name in zip(times, chosen, strict=True):
        whole = (known[each] for each in known if name.startswith(f"{each} on "))
        own = known.get(name, next(whole, None))
        if own is not None:
            best += min(known.values())
            taken += own
            others += own > 1.03 * min(known.values())
    return taken / best, others


def better_of_two(exhaustive: Tuned) -> list[dict[str, float]]:
    """The times of each kernel for each node."""
    found = []
    for verdicts in zip(*(run["verdicts"] for run in exhaustive.runs), strict=True):
        known: dict[str, float] = {}
        for _, _, times in verdicts:
            for name, seconds in (times or {}).items():
                known[name] = min(seconds, known.get(name, seconds))
        found.append(known)
    return found


def _group(record: TuningRecord, name: str) -> tuple[str, str, str, str]:
    return record.key["family"], record.key["op"], record.key["outputs"][0][1], name


def model_of(records: Sequence[TuningRecord]) -> CostModel:
    """One that has learnt these."""
    model = CostModel()
    for each in records:
        model.learn(*_group(each, "")[:3], each.times, each.features, each.pace)
    return model


Pair = tuple[TuningRecord, TuningRecord]
"""What was measured for a node in the first run, and in the second."""


@dataclass(frozen=True)
class Pace:
    """Times as they would be when the yardstick takes `usual` seconds; as they were with none."""

    usual: float | None

    def log_time(self, record: TuningRecord, name: str) -> float:
        """The logarithm of a kernel's seconds."""
        if self.usual is None:
            return log(record.times[name])
        off = following(record.features[name]) * log(record.pace / self.usual)
        return log(record.times[name]) - off

    def apart(self, pair: Pair) -> list[float]:
        """How far the times of two runs are apart."""
        first, again = pair
        return [
            abs(self.log_time(first, name) - self.log_time(again, name)) for name in _timed(pair)
        ]

    def errors(self, model: CostModel, pair: Pair) -> list[float]:
        """How far predictions for a node are off the mean of the two runs."""
        first, again = pair
        found = []
        for name in _timed(pair):
            predicted = model.seconds(_group(first, name), first.features[name])
            if predicted is not None:
                mean = (self.log_time(first, name) + self.log_time(again, name)) / 2
                found.append(abs(log(predicted.seconds) - mean))
        return found


def _timed(pair: Pair) -> list[str]:
    return [name for name in pair[0].features if name in pair[1].features and " on " not in name]


def _shown(errors: Sequence[float]) -> str:
    return f"{exp(median(errors)) - 1:.1%} ({len(errors)})" if errors else "none"


def report_predictions(found: dict[str, Tuned]) -> None:
    """Print the errors for shapes never seen, and the noise beside them: medians of how many."""
    print(
        "\n| network | times | measured again | left out one at a time | by the others | by the "
        "others and the rest of its own |\n|---|---|---|---|---|---|"
    )
    for name, exhaustive in found.items():
        first = exhaustive.records(0)
        again = {str(each.key): each for each in exhaustive.records(1)}
        pairs = [(each, again[str(each.key)]) for each in first if str(each.key) in again]
        others = [
            each for other, tuned in found.items() if other != name for each in tuned.records(0)
        ]
        for words in ("at the usual pace", "as they were"):
            cells: list[list[float]] = [[], [], [], []]
            for pair in pairs:
                rest = [each for each in first if each is not pair[0]]
                elsewhere = [each for each in others if each.key != pair[0].key]
                # As busy as the machine usually was for whoever is asked.
                for cell, known in zip(cells[1:], (rest, elsewhere, elsewhere + rest), strict=True):
                    if known:
                        usual = sorted(each.pace for each in known)[len(known) // 2]
                        pace = Pace(usual if words == "at the usual pace" else None)
                        cell += pace.errors(model_of(known), pair)
                cells[0] += Pace(1.0 if words == "at the usual pace" else None).apart(pair)
            print(f"| {name} | {words} | " + " | ".join(map(_shown, cells)) + " |", flush=True)


def main() -> None:
    """Read the command line, tune, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--out", help="a file for all times, as JSON")
    parser.add_argument("--way", choices=(*WAYS, PLAN), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        tune_here(options.networks[0], options.way, options)
        return
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    found: dict[str, Tuned] = {}
    samples: dict[str, Any] = {}
    for name in options.networks:
        whole, modelled = (Tuned.of(name, way, options) for way in WAYS)
        found[name] = whole
        cold, warm = (
            a["seconds"] / b["seconds"] for a, b in zip(whole.runs, modelled.runs, strict=True)
        )
        ratio, others = quality(better_of_two(whole), [v[0] for v in modelled.runs[0]["verdicts"]])
        noise, _ = quality(
            [v[2] or {} for v in whole.runs[0]["verdicts"]],
            [v[0] for v in whole.runs[1]["verdicts"]],
        )
        base = in_a_process(name, PLAN, options)
        beyond = (whole.runs[0]["seconds"] - base) / (modelled.runs[0]["seconds"] - base)
        sources = modelled.sources(0)
        print(
            f"| {name} | {len(sources)} | {whole.runs[0]['seconds']:.1f} s "
            f"| {modelled.runs[0]['seconds']:.1f} s | {cold:.2f} "
            f"| {base:.1f} s | {beyond:.2f} | {warm:.2f} "
            f"| {sources.count('measured')}, {sources.count('predicted')} "
            f"| {ratio:.3f} | {others} | {noise:.3f} |",
            flush=True,
        )
        samples[name] = {
            way: [
                [
                    [r.key["op"], [spec[0] for spec in r.key["inputs"]], r.times, r.pace]
                    for r in tuned.records(run)
                ]
                for run in range(len(tuned.runs))
            ]
            for way, tuned in zip(WAYS, (whole, modelled), strict=True)
        }
    report_predictions(found)
    if options.out:
        Path(options.out).write_text(json.dumps(samples))


if __name__ == "__main__":
    main()
