"""Choosing kernels and threads from generated IR and shapes, after inst2vec's tables 4 and 5.

    python benchmarks/programs/inst2vec_kernels.py

On this CPU, measured in turns: which kernel of the table is the fastest for convolutions, products
and reductions of random sizes; and whether one thread or two are the faster for fused loops of
random length and size; how far their loops are unrolled; and which tiles a product keeps in
registers. A network is given the vectors of the statements that a kernel's code
consists of (an LSTM reads them) and the shapes; beside it the same network with counts of
instructions, with shapes alone, and Caldera's own model of times. On the H200: the kernels whose
times are recorded in `results/kernels-h200.md`, from shapes alone, as CUDA's libraries show no
code; and which device is the faster, by both files of results.

Problems are cut into five parts, each predicted by a network that has seen the other four.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import caldera as cd
from benchmarks.programs.code_problems import (
    CODE,
    RESULTS,
    Problem,
    card_problems,
    kernel_problems,
    recorded,
    thread_problems,
    tile_problems,
    unroll_problems,
)
from benchmarks.programs.inst2vec import opcode, side_by_side
from caldera import code, nn, op
from caldera.bench.timing import Stopwatch
from caldera.compiler.lazy import Expr
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.cost_model import CostModel

LONGEST, WIDTH, FOLDS = 96, 48, 5
Found = dict[str, Any]
"""What was measured and chosen, by the title of its table."""


# --- predicting


class Numbers(cd.Model):
    """A small network over numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__(
            loss="mean_squared", optimizer="adam", learning_rate=3e-3, batch_size=32, seed=seed
        )
        self.first, self.second, self.last = nn.Dense(48), nn.Dense(32), nn.Dense(1)

    def forward(self, numbers: Expr) -> Expr:
        hidden = op.relu(self.second(op.relu(self.first(numbers))))
        return op.reshape(self.last(hidden), (hidden.shape[0],))


class Statements(Numbers):
    """The same, with what an LSTM makes of statements among the numbers."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.recurrent = nn.LSTM(32)

    def forward(self, numbers: Expr, statements: Expr) -> Expr:
        return super().forward(op.concat([numbers, self.recurrent(statements)], axis=1))


@dataclass
class Samples:
    """One row for each way of each problem."""

    owner: np.ndarray
    names: list[str]
    numbers: np.ndarray
    statements: np.ndarray
    counts: np.ndarray
    target: np.ndarray
    """The logarithm of the time, less the mean over the ways of its problem."""

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Samples:
        rows = [
            (i, name, way) for i, each in enumerate(problems) for name, way in each.ways.items()
        ]
        words = Counter(word for _, _, way in rows for word in way.words)
        vectors, vocabulary = np.zeros((1, WIDTH)), None
        if words:
            modules = list(CODE.values())
            embedding = code.train_embedding(modules, width=WIDTH, epochs=10, least=1, seed=0)
            vocabulary = embedding.vocabulary
            vectors = embedding.vectors / embedding.vectors[1:].std()
            vectors[0] = 0
        numbered = np.zeros((len(rows), LONGEST), np.int32)
        for row, (_, _, way) in zip(numbered, rows, strict=True):
            if vocabulary is not None and way.words:
                found = vocabulary.numbers(way.words[-LONGEST:])
                row[LONGEST - len(found) :] = found
        opcodes = [
            name for name, _ in Counter(opcode(word) for word in words.elements()).most_common(40)
        ]
        counts = np.zeros((len(rows), len(opcodes) + 1), np.float32)
        for row, (_, _, way) in zip(counts, rows, strict=True):
            for word in way.words:
                if opcode(word) in opcodes:
                    row[opcodes.index(opcode(word))] += 1
            row[-1] = len(way.words)
        logs = np.array([np.log(way.seconds) for _, _, way in rows])
        owner = np.array([i for i, _, _ in rows])
        means = np.bincount(owner, logs) / np.bincount(owner)
        return cls(
            owner,
            [name for _, name, _ in rows],
            standard([way.numbers for _, _, way in rows]),
            vectors[numbered].astype(np.float32),
            standard(np.log1p(counts)),
            (logs - means[owner]).astype(np.float32),
        )


def standard(rows: Any) -> np.ndarray:
    """Columns with mean 0 and variance 1."""
    given = np.array(rows, np.float64)
    spread = given.std(axis=0)
    return ((given - given.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)).astype(np.float32)


def folds_of(problems: Sequence[Problem]) -> np.ndarray:
    groups = sorted({each.group for each in problems})
    order = np.random.default_rng(0).permutation(len(groups))
    part = {group: int(place) % FOLDS for group, place in zip(groups, order, strict=True)}
    return np.array([part[each.group] for each in problems])


def predicted(
    problems: Sequence[Problem], samples: Samples, form: str, epochs: int, seed: int
) -> list[str]:
    """The way that is chosen for each problem by a network that has not seen it."""
    folds = folds_of(problems)
    given = [samples.numbers]
    if form == "counts":
        given = [np.concatenate([samples.numbers, samples.counts], axis=1)]
    if form == "vectors":
        given = [samples.numbers, samples.statements]
    said = np.zeros(len(samples.owner))
    for fold in range(FOLDS):
        test = folds[samples.owner] == fold
        if not test.any():
            continue
        model = Statements(seed) if form == "vectors" else Numbers(seed)
        train = [np.ascontiguousarray(each[~test]) for each in given]
        model.fit((*train, samples.target[~test]), epochs=epochs, verbose=0)
        shown = tuple(np.ascontiguousarray(each[test]) for each in given)
        said[test] = np.asarray(model.predict(*shown)).ravel()
    return _lowest(problems, samples, said)


def _lowest(problems: Sequence[Problem], samples: Samples, said: np.ndarray) -> list[str]:
    found = []
    for i in range(len(problems)):
        rows = np.flatnonzero(samples.owner == i)
        found.append(samples.names[rows[said[rows].argmin()]])
    return found


def always(problems: Sequence[Problem]) -> list[str]:
    """For all problems of an op the kernel that is the fastest for most of the others' parts."""
    folds = folds_of(problems)
    found = []
    for i, problem in enumerate(problems):
        others = [
            p for j, p in enumerate(problems) if folds[j] != folds[i] and p.kind == problem.kind
        ]
        total: Counter[str] = Counter(
            min(p.ways, key=lambda n, p=p: p.ways[n].seconds) for p in others
        )
        known = [name for name, _ in total.most_common() if name in problem.ways]
        found.append(known[0] if known else problem.usual)
    return found


def by_cost_model(problems: Sequence[Problem]) -> list[str]:
    """What Caldera's own model of times says."""
    folds = folds_of(problems)
    found = []
    for fold in range(FOLDS):
        model = CostModel()
        for problem, its in zip(problems, folds, strict=True):
            if its != fold and problem.node is not None:
                model.learn(
                    "cpu",
                    problem.kind,
                    problem.node.dtype.name,
                    {name: way.seconds for name, way in problem.ways.items()},
                    {name: way.numbers for name, way in problem.ways.items()},
                )
        found.append(model)
    chosen = []
    for problem, its in zip(problems, folds, strict=True):
        assert problem.node is not None
        kernels = [
            each for each in TABLE.candidates(problem.node, "cpu") if each.name in problem.ways
        ]
        chosen.append(found[its].promising(problem.node, kernels)[0].name)
    return chosen


# --- the tables


def report(title: str, problems: Sequence[Problem], rivals: dict[str, list[list[str]]]) -> Found:
    """Accuracy, and speed beside always the same and beside the best; one list for each seed."""
    base = rivals["always the same"][0]
    first = [p.ways[name].seconds for p, name in zip(problems, base, strict=True)]
    best = [p.best for p in problems]
    print(f"\n## {title}: {len(problems)} problems\n")
    print("| chosen by | right, % | within 3%, % | speed, always the same: 1 | of the oracle's |")
    print("|---|---|---|---|---|")
    for name, runs in {
        **rivals,
        "oracle": [[min(p.ways, key=lambda n, p=p: p.ways[n].seconds) for p in problems]],
    }.items():
        rows = []
        for run in runs:
            took = np.array([p.ways[each].seconds for p, each in zip(problems, run, strict=True)])
            rows.append(
                (
                    100 * np.mean(took <= best),
                    100 * np.mean(took <= 1.03 * np.array(best)),
                    np.exp(np.mean(np.log(first) - np.log(took))),
                    np.exp(np.mean(np.log(best / took))),
                )
            )
        cells = [f"{row[0]:.1f}" for row in rows], [f"{row[1]:.1f}" for row in rows]
        speeds = [f"{row[2]:.3f}" for row in rows], [f"{row[3]:.3f}" for row in rows]
        print(
            f"| {name} | " + " | ".join(", ".join(each) for each in (*cells, *speeds)) + " |",
            flush=True,
        )
    times = [
        {"kind": p.kind, "group": p.group, "seconds": {n: way.seconds for n, way in p.ways.items()}}
        for p in problems
    ]
    return {title: {"problems": times, "chosen": rivals}}


def compared(
    title: str,
    problems: list[Problem],
    forms: dict[str, str],
    epochs: int,
    seeds: int,
    **others: list[str],
) -> Found:
    samples = Samples.of(problems)
    rivals = {"always the same": [always(problems)]}
    rivals |= {name.replace("_", " "): [run] for name, run in others.items()}
    work = [(form, seed) for form in reversed(forms.values()) for seed in range(seeds)]
    runs = side_by_side(lambda each: predicted(problems, samples, each[0], epochs, each[1]), work)
    chosen = dict(zip(work, runs, strict=True))
    for name, form in forms.items():
        rivals[name] = [chosen[form, seed] for seed in range(seeds)]
    return report(title, problems, rivals)


def devices() -> Found:
    """Which device is the faster, by what is recorded."""
    best: list[dict[tuple[str, str], float]] = []
    for name in ("kernels-x86_64.md", "kernels-h200.md"):
        rows = recorded(RESULTS / name)
        best.append(
            {(op, what.rsplit(" ", 1)[0]): min(v.values()) for (op, what), v in rows.items()}
        )
    common = sorted(best[0].keys() & best[1].keys())
    ratios = np.array([best[0][each] / best[1][each] for each in common])
    print(f"\n## CPU or card: {len(common)} problems of both files\n")
    slower = [" ".join(e) for e, r in zip(common, ratios, strict=True) if r <= 1]
    print(
        f"the card is the faster at {np.mean(ratios > 1) * 100:.1f}%, "
        f"{np.exp(np.log(ratios).mean()):.0f} times in the geometric mean; the CPU at: {slower}"
    )
    named = [" ".join(each) for each in common]
    return {"CPU or card": dict(zip(named, ratios.tolist(), strict=True))}


FORMS = {
    "shapes": "shapes",
    "counts of instructions, shapes": "counts",
    "vectors, shapes": "vectors",
}


def card(options: argparse.Namespace) -> Found:
    """CPU or card, and kernels of the card."""
    found, problems = devices(), list(card_problems())
    return found | compared(
        "Which kernel, H200", problems, {"shapes": "shapes"}, 2 * options.epochs, options.seeds
    )


def unrolling(options: argparse.Namespace) -> Found:
    """How far loops are unrolled."""
    problems = list(unroll_problems(options.bodies, 15))
    return compared("Unrolled by 1, 2, 4 or 8, CPU", problems, FORMS, options.epochs, options.seeds)


def tiles(options: argparse.Namespace) -> Found:
    """Which tiles products are cut into."""
    problems = list(tile_problems(options.nodes, 15))
    best = Counter(min(p.ways, key=lambda n, p=p: p.ways[n].seconds) for p in problems)
    print(f"\nthe fastest: {dict(best.most_common())}")
    usual = [problem.usual for problem in problems]
    return compared(
        "Tile in registers, CPU",
        problems,
        FORMS,
        options.epochs,
        options.seeds,
        the_present_rule=usual,
    )


def threads(options: argparse.Namespace) -> Found:
    """One thread or two."""
    problems = list(thread_problems(options.bodies, 30))
    usual = [problem.usual for problem in problems]
    return compared(
        "One thread or two, CPU",
        problems,
        FORMS,
        options.epochs,
        options.seeds,
        the_present_rule=usual,
    )


def kernels(options: argparse.Namespace) -> Found:
    """Which kernel of the table."""
    problems = list(kernel_problems(options.nodes, 0.15))
    print(dict(Counter(each.kind for each in problems).most_common()))
    usual = [problem.usual for problem in problems]
    return compared(
        "Which kernel, CPU",
        problems,
        FORMS,
        options.epochs,
        options.seeds,
        the_present_guess=usual,
        a_model_of_times=by_cost_model(problems),
    )


PARTS: dict[str, Callable[[argparse.Namespace], Found]] = {
    "card": card,
    "unrolling": unrolling,
    "tiles": tiles,
    "threads": threads,
    "kernels": kernels,
}


def measured(options: argparse.Namespace, only: str = "") -> Found:
    """All parts: tables are printed, samples given back."""
    found: Found = {}
    for name, part in PARTS.items():
        if only in name:
            begin = Stopwatch()
            CODE.clear()
            found |= part(options)
            print(f"\n{name}: {begin.wall:.0f} s", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--bodies", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help=f"one of {', '.join(PARTS)}")
    options = parser.parse_args()
    measured(options, options.only)


if __name__ == "__main__":
    main()
