"""Training steps of whole networks on a card: Caldera beside its peers in one process.

    python benchmarks/training/card_training.py resnet50 --settings "caldera step,torch compiled"

The identical network with the same initial weights and the same batches, which lie on the card. The
losses of the first steps are printed beside each other: they must agree as far as the precision
goes. Then all take turns, and the best turn of each counts. `caldera bench` does the same in a
process for each, with all gradients checked against float64; that takes minutes for a large
network, and time on a card is scarce. Memory is what each framework's own allocator says, with the
samples that it holds for the measurement: an epoch of them in Caldera, the different batches in the
others. The time of the first step is that of a process in which the framework has been imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

from caldera.bench.contestants import card_contestants
from caldera.bench.frameworks import FRAMEWORKS
from caldera.bench.frameworks.base import Framework, Restartable
from caldera.bench.timing import CARD_SHORTEST, Stopwatch, first_call, timed
from caldera.bench.workloads import TrainingCase
from caldera.bench.workloads.training import networks

STEPS = 3
"""Whose losses are compared."""
TURNS = 5
SECONDS = 0.4
"""Of a turn."""


@dataclass
class Entry:
    """One framework in one setting."""

    label: str
    framework: Framework
    task: Restartable
    first_s: float
    losses: list[float]
    peak: int
    samples: int
    """Bytes."""
    times: list[float] = field(default_factory=list)


def cases(names: list[str]) -> Iterator[TrainingCase]:
    """The networks of these names."""
    found = [case for work in networks() for case in work.cases]
    known = {case.name: case for case in found if isinstance(case, TrainingCase)}
    for name in names:
        if name not in known:
            sys.exit(f"expected networks among {', '.join(known)}; got {name}")
        yield known[name].on("cuda")


def entered(case: TrainingCase, contestant: Any, batches: Any, steps: int) -> Entry:
    """Build a contestant, and make its first steps."""
    framework = FRAMEWORKS[contestant.framework](contestant.options, os.cpu_count() or 1)
    framework.batches = lambda *_: batches  # type: ignore[method-assign]
    # What others of this process hold is not its own.
    framework.reset_card_peak()
    held = framework.card_peak()
    begin = Stopwatch()
    task = framework.trainer(case, "float32")
    assert isinstance(task, Restartable)
    first_call(task)
    first = begin.wall
    task.restart()
    losses = task.losses(steps)
    framework.reset_card_peak()
    for _ in range(2):
        first_call(task)
    peak = framework.card_peak() - held
    of_batch = sum(array.nbytes for array in batches[0])
    samples = of_batch * (case.card_epoch if contestant.framework == "caldera" else len(batches))
    return Entry(contestant.label, framework, task, first, losses, peak, samples)


def measure(
    case: TrainingCase, precision: str, words: list[str], steps: int = STEPS, *, whole: bool = False
) -> None:
    """All contestants on one network, one line for each.

    Losses of so many `steps` are compared with those of the first contestant; the first few are
    printed. `whole` says that `words` are whole settings.
    """
    batches = case.data("float32", None)
    entries: list[Entry] = []
    peers = ["torch", "jax"]
    for contestant in card_contestants(
        case, peers, [precision], compiler=True, words=words, device="cuda"
    ):
        setting = f"{contestant.framework} {contestant.setting}"
        if not contestant.is_measured or (whole and setting not in words):
            continue
        try:
            entries.append(entered(case, contestant, batches, steps))
            print(f"  {contestant.label}: {entries[-1].first_s:.1f} s", flush=True)
        except Exception as error:
            # One that cannot take part must not cost the others their turn.
            print(f"  {contestant.label}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    for turn in range(TURNS):
        for entry in entries[turn % len(entries) :] + entries[: turn % len(entries)]:
            times = timed(entry.task, SECONDS, shortest=CARD_SHORTEST).wall
            entry.times.append(min(times))
    ours = min((min(each.times) for each in entries if "caldera" in each.label), default=0.0)
    samples = len(batches[0][0])
    print(f"\n{case.name}, batch {samples}, {precision}")
    print(
        "| setting | time a step | samples/s | to Caldera | first step "
        f"| memory | of it samples | losses | farthest apart in {steps} steps |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for entry in entries:
        best = min(entry.times)
        losses = " ".join(f"{loss:.4f}" for loss in entry.losses[:STEPS])
        apart = max(
            abs(one - other) for one, other in zip(entry.losses, entries[0].losses, strict=True)
        )
        print(
            f"| {entry.label} | {best * 1e6:,.1f} us | {samples / best:,.0f} | {best / ours:.2f} "
            f"| {entry.first_s:.1f} s | {entry.peak / 2**20:,.0f} MiB "
            f"| {entry.samples / 2**20:,.0f} MiB | {losses} | {apart:.2g} |",
            flush=True,
        )
    if steps > STEPS:
        # Where curves are steep, one that is a step behind is far apart.
        shown = range(0, steps, max(1, steps // 20))
        print(f"losses of steps {', '.join(map(str, shown))}")
        for entry in entries:
            print(entry.label, " ".join(f"{entry.losses[step]:.4f}" for step in shown), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--precision", help="default: the first that each network is measured in")
    parser.add_argument("--settings", default="", help="only contestants with one of these words")
    options = parser.parse_args()
    for case in cases(options.networks):
        measure(
            case,
            options.precision or case.precisions[0],
            [word.strip() for word in options.settings.split(",") if word.strip()],
        )


if __name__ == "__main__":
    main()
