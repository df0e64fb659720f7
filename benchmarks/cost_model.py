"""Tuning with the learnt cost model beside measuring every kernel: how long, and how well chosen.

    python benchmarks/cost_model.py resnet50 inception3 --batch 4

Each network is tuned from an empty cache: exhaustively, and by the model, which learns while it
goes and leaves out what has no chance. What the model's choices take is looked up in the exhaustive
times, and so is what a second exhaustive run would choose: that is the noise. At the end the model
that has seen one network predicts the kernels of the other.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from contextlib import nullcontext
from functools import reduce
from math import exp, log
from operator import add
from pathlib import Path
from statistics import median
from time import perf_counter

import caldera as cd
from caldera import nn, op
from caldera.config import settings
from caldera.graph.node import Node
from caldera.graph.opdef import detached
from caldera.kernels import tuning_cache
from caldera.kernels.choose import Choices, Verdict
from caldera.kernels.learned_cost import CostModel
from caldera.kernels.thread_counts import name_on_all_threads


def nodes_of(name: str, batch: int) -> list[Node]:
    """What a training step of a network is made of, each kind once."""
    side = {"inception3": 299, "resnet20": 32}.get(name, 224)
    network = nn.Sequential(getattr(nn.models, name)())
    with nn.trace(training=True, random=op.random_state()):
        result = network(op.input("x", (batch, 3, side, side)))
    outputs = list(result.values()) if isinstance(result, dict) else [result]
    loss = reduce(add, (op.mean(each * each) for each in outputs))
    with settings.override(tune_budget_s=0.0):
        plan = cd.compile([op.grad(loss, each) for each in network.parameters()])
    return list({detached(step.node): None for step in plan.schedule.steps})


def tuned(nodes: list[Node], folder: Path, *, all_kernels: bool) -> tuple[float, list[Verdict]]:
    """Seconds from an empty cache, and what was chosen."""
    choices = Choices()
    with settings.override(cache_dir=folder, tune_budget_s=1e6):
        start = perf_counter()
        with choices.exhaustive() if all_kernels else nullcontext():
            found = [choices.verdict(node, "cpu") for node in nodes]
        return perf_counter() - start, found


def quality(exhaustive: list[Verdict], modelled: list[Verdict]) -> tuple[float, int]:
    """What the model's choices take beside the best, and how many are others than those."""
    best = taken = 0.0
    others = 0
    for right, found in zip(exhaustive, modelled, strict=True):
        times = right.times or {}
        name = found.kernel.name
        own = times.get(name, times.get(name_on_all_threads(name)))
        if own is not None and right.kernel.name in times:
            best += times[right.kernel.name]
            taken += own
            others += own > 1.03 * times[right.kernel.name]
    return taken / best, others


def unseen_error(trained: Path, unseen: Path) -> tuple[float, int]:
    """The median error of predictions for shapes of another network, and how many there are."""
    model = CostModel()
    with settings.override(cache_dir=trained):
        seen = list(tuning_cache.all_records())
    for record in seen:
        model.learn(*_group(record, "")[:3], record.times, record.features)
    known = {str(record.key) for record in seen}
    with settings.override(cache_dir=unseen):
        fresh = [each for each in tuning_cache.all_records() if str(each.key) not in known]
    errors = []
    for record in fresh:
        for name, row in record.features.items():
            found = model.seconds(_group(record, name), row)
            if found is not None:
                errors.append(exp(abs(log(found.seconds / record.times[name]))) - 1)
    return median(errors), len(errors)


def _group(record: tuning_cache.Record, name: str) -> tuple[str, str, str, str]:
    return record.key["family"], record.key["op"], record.key["outputs"][0][1], name


def main() -> None:
    """Read the command line, tune, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    print("| network | nodes measured | exhaustive | with the model | times shorter | measured, "
          "predicted | chosen to the best | more than 3% off |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.networks:
            nodes = nodes_of(name, options.batch)
            # Compiling what is compared belongs to neither.
            tuned(nodes, Path(folder) / f"{name}-warm", all_kernels=False)
            modelled_s, modelled = tuned(nodes, Path(folder) / f"{name}-model", all_kernels=False)
            whole_s, whole = tuned(nodes, Path(folder) / name, all_kernels=True)
            _, again = tuned(nodes, Path(folder) / f"{name}-again", all_kernels=True)
            noise, others_again = quality(whole, again)
            ratio, others = quality(whole, modelled)
            count = sum(each.source == "measured" for each in whole)
            sources = Counter(each.source for each in modelled)
            print(f"{name}: a second exhaustive run by the times of the first: {noise:.3f}, "
                  f"{others_again} more than 3% off")  # fmt: skip
            print(f"| {name} | {count} | {whole_s:.1f} s | {modelled_s:.1f} s "
                  f"| {whole_s / modelled_s:.2f} | {sources['measured']}, "
                  f"{sources['predicted']} | {ratio:.3f} | {others} |", flush=True)  # fmt: skip
        for name in options.networks:
            for other in options.networks:
                if name != other:
                    error, count = unseen_error(Path(folder) / name, Path(folder) / other)
                    print(f"\ntrained on {name}, {count} times of {other}: "
                          f"median error {error:.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
