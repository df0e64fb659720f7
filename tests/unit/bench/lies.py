"""Dishonest reports: each is an honest one changed by one lie, drawn by a seeded generator.

`python -m tests.unit.bench.lies` prints the table of the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from caldera.bench.honesty import Claims, Findings, Hardware, Run, Tuning, check
from caldera.bench.honesty.literature import published_weights, usual_shapes

REPORTS = 60
WORKLOADS = ("ResNet-20 on CIFAR-10", "LeNet-5 on MNIST")
CPU = Hardware("Xeon 8480", 2023, reported="Intel(R) Xeon(R) Platinum 8480+")


def honest(draw: np.random.Generator) -> Claims:
    """Return a report of two systems on two workloads and two numbers of ranks."""
    seeds = tuple(range(int(draw.integers(2, 6))))
    batch, many = int(2 ** draw.integers(5, 9)), int(2 ** draw.integers(1, 6))
    runs = []
    for workload in WORKLOADS:
        shape = usual_shapes(workload)[0]
        for system in ("ours", "theirs"):
            for ranks in (1, many):
                seconds = draw.normal(900.0, 5.0, len(seeds)) / ranks
                runs.append(
                    Run(
                        f"{system}, {ranks} ranks, {workload}",
                        system,
                        workload,
                        "distributed",
                        part="whole",
                        ranks=ranks,
                        batch=batch,
                        samples=600_000,
                        hardware=CPU,
                        options={"precision": "float32"},
                        seconds=tuple(seconds.round(1).tolist()),
                        seconds_of="training",
                        test_accuracy=tuple(draw.normal(0.91, 2e-4, len(seeds)).tolist()),
                        seeds=seeds,
                        reads="storage",
                        input_shape=shape,
                        usual_shape=shape,
                        stopped_by="accuracy",
                        weights=published_weights(workload)[1],
                    )
                )
    tuning = {system: Tuning(int(draw.integers(10, 15)), 9e3) for system in ("ours", "theirs")}
    return Claims("training", tuple(runs), scaling="strong", tuning=tuning)


Change = Callable[[Claims, np.random.Generator], Claims]


@dataclass(frozen=True)
class Lie:
    """A change of an honest report, and the rule that must find it.

    Without a rule, `says` is followed by the reason why no file shows the lie.
    """

    says: str
    rule: str
    change: Change
    reason: str = ""


def on(where: str = "any", **fields: Any) -> Change:
    """Return a change of one run: any, ours or theirs, or one on many ranks."""

    def change(claims: Claims, draw: np.random.Generator) -> Claims:
        able = [
            number
            for number, run in enumerate(claims.runs)
            if where in ("any", run.system) or (where == "many" and run.ranks > 1)
        ]
        place = int(draw.choice(able))
        run = claims.runs[place]
        made = {name: each(run) if callable(each) else each for name, each in fields.items()}
        runs = list(claims.runs)
        runs[place] = replace(run, **made)
        return replace(claims, runs=tuple(runs))

    return change


def everywhere(**fields: Any) -> Change:
    """Return a change of all runs of the first system."""

    def change(claims: Claims, draw: np.random.Generator) -> Claims:
        del draw
        runs = [
            replace(run, **{n: each(run) if callable(each) else each for n, each in fields.items()})
            if run.system == "ours"
            else run
            for run in claims.runs
        ]
        return replace(claims, runs=tuple(runs))

    return change


def whole(**fields: Any) -> Change:
    """Return a change of the report itself."""
    return lambda claims, draw: replace(claims, **fields)


def without(keep: Callable[[Run], bool]) -> Change:
    """Return a change that deletes runs."""
    return lambda claims, draw: replace(claims, runs=tuple(filter(keep, claims.runs)))


def _lower(run: Run) -> tuple[float, ...]:
    return tuple(each - 0.03 for each in run.test_accuracy)


def _scaled(run: Run) -> tuple[float, ...]:
    return tuple(0.8 * each for each in run.seconds)


_BLIND: dict[str, Any] = {"test_accuracy": (), "seeds": ()}
_LARGE, _SMALL = (3, 256, 256), (1, 14, 14)
_OTHER = {"3x3x16x16": 2, "3x3x3x16": 1, "10x16": 1}
LIES = (
    Lie("accuracy lost on many ranks", "scaled accuracy", on("many", test_accuracy=_lower)),
    Lie("accuracy kept back on many ranks", "scaled accuracy", on("many", **_BLIND)),
    Lie("training accuracy alone", "test accuracy", on(train_accuracy=(0.99,), **_BLIND)),
    Lie("no accuracy of any run", "test accuracy", everywhere(**_BLIND)),
    Lie("the best of twelve starts", "tuning", on(attempts=12)),
    Lie("tuned 200 times", "tuning", whole(tuning={"ours": Tuning(200), "theirs": Tuning(2)})),
    Lie("no word on tuning", "tuning", whole(tuning=None)),
    Lie(
        "a chip for networks",
        "hardware",
        on("ours", hardware=Hardware("a chip", 2023, special=True, reported="a chip")),
    ),
    Lie(
        "a card of 2012 for the peer",
        "hardware",
        on("theirs", hardware=Hardware("K20", 2012, reported="Tesla K20")),
    ),
    Lie(
        "a card of 2012, called one of 2023",
        "hardware",
        on("theirs", hardware=Hardware("K20", 2023, reported="Tesla K20")),
    ),
    Lie(
        "hardware named other than measured",
        "hardware",
        everywhere(hardware=Hardware("Xeon 8480", 2023, reported="AMD EPYC 9654")),
    ),
    Lie("a kernel for the training", "whole", on(part="kernel")),
    Lie("a subset for the training", "whole", on(part="subset")),
    Lie("samples in memory", "input", on(reads="memory")),
    Lie("made-up samples", "input", on(reads="synthetic")),
    Lie("a rate without time", "time", on(seconds=(), rate=3e12, rate_unit="FLOP/s")),
    Lie("a rate of nothing known", "time", on(rate=1.0, rate_unit="exaops")),
    Lie("the time of an epoch", "time", on(seconds_of="epoch")),
    Lie("fast in one setting, accurate in another", "options", on(accuracy_options={"p": "f64"})),
    Lie("no options", "options", on(options=None)),
    Lie("inflated samples", "inputs' size", on(input_shape=_LARGE)),
    Lie("shrunken samples", "inputs' size", on(input_shape=_SMALL)),
    Lie("large called usual", "inputs' size", on(input_shape=_LARGE, usual_shape=_LARGE)),
    Lie("ended by the clock", "end", on(stopped_by="wall time")),
    Lie(
        "the same time for more samples",
        "end",
        on("many", samples=9_000_000, seconds=(901.0,), stopped_by="steps"),
    ),
    Lie("a growing batch called strong", "scaling", on("many", batch=4096)),
    Lie("a fixed batch called weak", "scaling", whole(scaling="weak")),
    Lie("faster and less accurate", "both", everywhere(test_accuracy=_lower, seconds=(1.0,))),
    Lie("a peer without accuracy", "both", on("theirs", equal_results=True, **_BLIND)),
    Lie("a peer without time", "both", on("theirs", seconds=())),
    Lie("a peer that crashed", "peers", on("theirs", error="out of memory")),
    Lie("a peer that timed out", "peers", on("theirs", error="longer than 60 s")),
    Lie("a peer never run", "peers", on("theirs", error="left out")),
    Lie(
        "a peer left out of a workload",
        "peers",
        without(lambda run: run.system == "ours" or run.workload == WORKLOADS[0]),
    ),
    Lie("one seed", "seeds", everywhere(test_accuracy=(0.91,), seeds=(0,))),
    Lie("one seed, repeated", "seeds", everywhere(seeds=lambda run: (0,) * len(run.seeds))),
    Lie("another network's name", "workload", on(weights=_OTHER)),
    Lie("no weights", "workload", everywhere(weights=None)),
    Lie("times multiplied by 0.8", "", everywhere(seconds=_scaled), "the file has no other clock"),
    Lie(
        "accuracies raised by 0.004",
        "",
        everywhere(test_accuracy=lambda run: tuple(each + 0.004 for each in run.test_accuracy)),
        "the trained weights are not in the file",
    ),
    Lie(
        "tuning understated",
        "",
        whole(tuning={"ours": Tuning(10), "theirs": Tuning(10)}),
        "runs that were never recorded leave no trace",
    ),
    Lie(
        "name and the machine's report both changed",
        "",
        everywhere(hardware=replace(CPU, name="Xeon 9999", reported="Xeon 9999")),
        "the machine is not there to be read again",
    ),
    Lie(
        "a peer left out of every workload",
        "",
        without(lambda run: run.system == "ours"),
        "a report may contain no comparison (a file of `caldera bench` may not)",
    ),
)


def dishonest(seed: int = 0, count: int = REPORTS) -> list[tuple[Lie, Findings]]:
    """Return lies with the findings: every lie once, the remaining ones drawn."""
    draw = np.random.default_rng(seed)
    drawn = [LIES[int(draw.integers(len(LIES)))] for _ in range(count - len(LIES))]
    return [(lie, check(lie.change(honest(draw), draw))) for lie in (*LIES, *drawn)]


def table(found: list[tuple[Lie, Findings]]) -> str:
    """Return the results in Markdown, by lie."""
    made = Counter(lie.says for lie, _ in found)
    caught = Counter(lie.says for lie, each in found if not each.passes)
    lines = ["| lie | rule | reports | caught |", "|---|---|---|---|"]
    for lie in LIES:
        rule = f"`{lie.rule}`" if lie.rule else f"cannot be caught: {lie.reason}"
        lines.append(f"| {lie.says} | {rule} | {made[lie.says]} | {caught[lie.says]} |")
    able = [lie for lie, _ in found if lie.rule]
    kinds = len({lie.rule for lie in able})
    total = f"{caught.total()} of {len(found)} reports are caught"
    rules = f"{len(able)} of them break one of the {kinds} rules"
    return "\n".join([*lines, "", f"{total}; {rules}."])


if __name__ == "__main__":
    print(table(dishonest()))
