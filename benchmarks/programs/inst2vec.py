"""Vectors of statements of LLVM IR, after inst2vec: its table 2, and what a function is for.

    python benchmarks/programs/inst2vec.py FOLDER --save vectors.safetensors

FOLDER has the C of Debian's source packages, or will have it (see `code_corpus.py`). Statements of
the packages for training give the vocabulary and the vectors, for contexts 1, 2 and 3, and the
questions of table 2 are asked. Then functions are told apart by what they are for, in packages that
were never seen (table 3): an LSTM over the vectors, the same over vectors that learn with it, and
linear models over counts of instructions and over means of vectors. Beside gensim, if it is
installed: pairs a second.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

import caldera as cd
from benchmarks.programs.code_corpus import HEADINGS, Module, corpus
from caldera import code, nn
from caldera.bench.timing import Stopwatch

LONGEST = 128
"""Statements of a function that a network reads, from its beginning."""
LEAST, MOST = 8, 300
"""Statements that a function must have; functions of a purpose, evenly out of all."""
MOST_PAIRS = 4_000_000
"""Of an epoch, drawn from all there are: so each context sees as many."""
SHARES = {1: 1.0, 2: 0.1, 3: 0.025}
"""Statements whose pairs are found, by context: larger ones have far more than can be taken."""
Rows = list[dict[str, Any]]
"""What was measured, a line of a table each."""


@dataclass
class Data:
    """What was compiled."""

    packages: Rows = field(default_factory=list)
    training: list[Module] = field(default_factory=list)
    purposes: list[str] = field(default_factory=list)
    functions: dict[str, list[tuple[int, list[str]]]] = field(
        default_factory=lambda: {"train": [], "test": []}
    )

    @classmethod
    def of(cls, folder: Path) -> Data:
        """Compile what is there, or read what was compiled before."""
        data = cls()
        by_purpose: dict[tuple[str, int], list[list[str]]] = {}
        print(HEADINGS)
        for found in corpus(folder):
            print(found, flush=True)
            package = found.package
            data.packages.append(
                {
                    "archive": found.archive or package.source,
                    "purpose": package.purpose,
                    "part": package.part,
                    "files": found.files,
                    "failed": found.failed,
                    "statements": found.statements,
                }
            )
            if package.part == "train":
                data.training += [*found.modules, *found.others]
            if package.purpose is not None:
                if package.purpose not in data.purposes:
                    data.purposes.append(package.purpose)
                label = data.purposes.index(package.purpose)
                row = by_purpose.setdefault((package.part, label), [])
                row += [f for each in found.modules for f in each.functions if len(f) >= LEAST]
        for (part, label), row in by_purpose.items():
            places = np.linspace(0, len(row) - 1, min(MOST, len(row))).astype(int)
            data.functions[part] += [(label, row[place]) for place in places]
        return data


# --- on all cores

Item, Result = TypeVar("Item"), TypeVar("Result")
_running: Callable[[Any], Any] | None = None


def side_by_side(
    run: Callable[[Item], Result], items: Iterable[Item], workers: int = 2, at_once: int = 1
) -> list[Result]:
    """What `run` gives for each item, in processes of one thread: small networks gain more by it
    than by sharing a step. Processes begin with all that is known here; items and results are
    sent."""
    global _running
    _running = run
    with ProcessPoolExecutor(workers, get_context("fork"), initializer=_on_one_thread) as pool:
        return list(pool.map(_run, items, chunksize=at_once))


def _on_one_thread() -> None:
    cd.settings.threads = 1


def _run(item: Any) -> Any:
    assert _running is not None
    return _running(item)


# --- table 2


@dataclass
class Pairs:
    """Which statements stand together: found by all cores, a file at a time."""

    modules: list[Module]
    vocabulary: code.Vocabulary
    share: float
    """How many are taken for each statement of a file."""

    @classmethod
    def of(cls, modules: list[Module]) -> Pairs:
        vocabulary = code.Vocabulary.of(word for module in modules for word in module.words)
        return cls(modules, vocabulary, MOST_PAIRS / max(1, sum(vocabulary.counts)))

    def of_module(self, place: int, context: int) -> tuple[int, np.ndarray]:
        """How many pairs a file has, and those that are taken."""
        module = self.modules[place]
        numbers = self.vocabulary.numbers(module.words)
        near = code.context_pairs(module.edges, len(numbers), context, SHARES[context])
        pairs = numbers[near].reshape(-1, 2)
        pairs = pairs[(pairs != 0).all(axis=1)]
        most = int(self.share * len(numbers))
        if len(pairs) > most:
            random = np.random.default_rng((context, place))
            return len(pairs), pairs[random.choice(len(pairs), most, replace=False)]
        return len(pairs), pairs

    def of_context(self, context: int) -> tuple[int, np.ndarray]:
        """All of them."""
        places = range(len(self.modules))
        found = side_by_side(lambda place: self.of_module(place, context), places, at_once=32)
        return sum(count for count, _ in found), np.concatenate([each for _, each in found])


def table_2(data: Data, width: int, epochs: int) -> tuple[dict[int, code.Embedding], Rows]:
    """For each context its vectors, and its row, which is printed: answers among the five nearest,
    of how many questions; and those that are the nearest."""
    print("\n| context | pairs | types | options | conversions | data structures | distance | s |")
    print("|---|---|---|---|---|---|---|---|")
    pairs = Pairs.of(data.training)
    found, rows = {}, []
    for context in (1, 2, 3):
        start = Stopwatch()
        count, taken = pairs.of_context(context)
        model = nn.SkipGram(pairs.vocabulary.counts, width)
        losses = model.fit(taken, epochs)
        embedding = code.Embedding(pairs.vocabulary, model.vectors)
        five, one = code.analogy_scores(embedding), code.analogy_scores(embedding, among=1)
        scores = [f"{each}; {one[kind].right}" for kind, each in five.items()]
        distance = code.distance_score(embedding)
        cells = [f"{count:,}", *scores, f"{100 * distance.right / distance.asked:.2f}%"]
        took = start.wall
        print(f"| {context} | " + " | ".join(map(str, cells)) + f" | {took:.0f} |", flush=True)
        found[context] = embedding
        rows.append(
            {
                "context": context,
                "words": len(pairs.vocabulary),
                "pairs": count,
                "taken": len(taken),
                "losses": losses,
                "seconds": took,
                "asked": {kind: each.asked for kind, each in five.items()},
                "right among five": {kind: each.right for kind, each in five.items()},
                "right": {kind: each.right for kind, each in one.items()},
                "distance": [distance.right, distance.asked],
            }
        )
    return found, rows


# --- table 3


def as_sequences(functions: Sequence[list[str]], vocabulary: code.Vocabulary) -> np.ndarray:
    """Statements as numbers, 0 before the first."""
    rows = np.zeros((len(functions), LONGEST), np.int32)
    for row, words in zip(rows, functions, strict=True):
        numbers = vocabulary.numbers(words[:LONGEST])
        row[len(row) - len(numbers) :] = numbers
    return rows


def opcode_counts(functions: Sequence[list[str]], opcodes: list[str]) -> np.ndarray:
    """How often each instruction occurs, as a share: what was counted by hand before."""
    places = {name: i for i, name in enumerate(opcodes)}
    counts = np.zeros((len(functions), len(opcodes)), np.float32)
    for row, words in zip(counts, functions, strict=True):
        for word in words:
            place = places.get(opcode(word))
            if place is not None:
                row[place] += 1 / len(words)
    return counts


def opcode(word: str) -> str:
    """The instruction of a statement."""
    return word.removeprefix("<%ID> = ").removeprefix("tail ").split(" ")[0]


def accuracy(layers: list[nn.Layer], train, test, epochs: int, seed: int) -> tuple[float, float]:
    """Of a network on functions of packages that it has not seen: of all, and the mean over
    purposes, as some have many more functions than others."""
    model = cd.NeuralNetwork(
        layers, loss="cross_entropy", optimizer="adam", learning_rate=2e-3, batch_size=64, seed=seed
    )
    model.fit(*train, epochs=epochs, verbose=0, class_weights="balanced")
    right = model.predict(test[0]).argmax(axis=1) == test[1]
    return float(right.mean()), float(np.mean([right[test[1] == k].mean() for k in set(test[1])]))


def table_3(data: Data, embedding: code.Embedding, seeds: range, epochs: int) -> dict[str, Any]:
    """Accuracy by what a network is given, once for each seed."""
    samples: dict[str, Any] = {"functions": {}, "accuracy": []}
    for part, rows in data.functions.items():
        numbers = Counter(label for label, _ in rows)
        samples["functions"][part] = {n: numbers[k] for k, n in enumerate(data.purposes)}
        print(f"\n{part}: " + ", ".join(f"{numbers[k]} {n}" for k, n in enumerate(data.purposes)))
    functions = {part: [f for _, f in rows] for part, rows in data.functions.items()}
    labels = {part: np.array([k for k, _ in rows]) for part, rows in data.functions.items()}
    tokens = {part: as_sequences(rows, embedding.vocabulary) for part, rows in functions.items()}
    known = {part: float((rows != 0).sum()) for part, rows in tokens.items()}
    length = {p: sum(min(LONGEST, len(words)) for words in rows) for p, rows in functions.items()}
    samples["known"] = {part: known[part] / length[part] for part in known}
    print(
        "\nstatements in the vocabulary: "
        + ", ".join(f"{part} {100 * share:.1f}%" for part, share in samples["known"].items())
    )
    seen = Counter(opcode(word) for words in functions["train"] for word in words)
    opcodes = [name for name, _ in seen.most_common(60)]
    counts = {part: opcode_counts(rows, opcodes) for part, rows in functions.items()}
    vectors = embedding.vectors / max(float(embedding.vectors[1:].std()), 1e-9)
    vectors[0] = 0
    given = {part: vectors[rows].astype(np.float32) for part, rows in tokens.items()}
    means = {
        part: rows.sum(axis=1) / np.maximum((tokens[part] != 0).sum(axis=1, keepdims=True), 1)
        for part, rows in given.items()
    }
    width, classes = vectors.shape[1], len(data.purposes)

    def linear(size: int) -> list[nn.Layer]:
        return [nn.Input((size,)), nn.BatchNorm(), nn.Dense(classes)]

    def recurrent(*first: nn.Layer) -> list[nn.Layer]:
        return [*first, nn.LSTM(64), nn.Dropout(0.3), nn.Dense(classes)]

    words = nn.Input((LONGEST,), dtype="int32")
    rivals: dict[str, tuple[dict, Callable[[], list[nn.Layer]], int]] = {
        "counts of instructions, linear": (counts, lambda: linear(len(opcodes)), 100),
        "mean of vectors, linear": (means, lambda: linear(width), 30),
        "raw tokens, LSTM": (
            tokens,
            lambda: recurrent(words, nn.Embedding(len(vectors), width)),
            epochs,
        ),
        "vectors, LSTM": (given, lambda: recurrent(nn.Input((LONGEST, width))), epochs),
    }

    def score(name: str, seed: int) -> tuple[float, float]:
        inputs, layers, rounds = rivals[name]
        parts = [(inputs[part], labels[part]) for part in ("train", "test")]
        return accuracy(layers(), *parts, rounds, seed)

    # Those that take longest first, so that both cores end together.
    work = [(name, seed) for name in reversed(rivals) for seed in seeds]
    scores = dict(zip(work, side_by_side(lambda each: score(*each), work), strict=True))
    print("\n| a network is given | accuracy, % (each seed) | mean over purposes, % |")
    print("|---|---|---|")
    for name in rivals:
        columns = list(zip(*(scores[name, seed] for seed in seeds), strict=True))
        cells = [", ".join(f"{100 * each:.1f}" for each in column) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        samples["accuracy"].append(
            {"given": name, "of all": columns[0], "over purposes": columns[1]}
        )
    return samples


# --- pairs a second


@dataclass
class Speed:
    """Pairs a second, on the clock and of the time that all cores spent, in each round."""

    clock: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def measure(self, train: Callable[[], object], pairs: int) -> None:
        """One round."""
        begin, spent = time.perf_counter(), time.process_time()
        train()
        self.clock.append(pairs / (time.perf_counter() - begin))
        self.processor.append(pairs / (time.process_time() - spent))


def speeds(data: Data, vocabulary: code.Vocabulary, width: int, rounds: int = 5) -> Rows:
    """Caldera and gensim on the same pairs, taking turns, on two threads and on one.

    gensim makes pairs of sentences, each word with those around it: so functions are cut into
    pieces of 50 statements, of which each is paired with the five before it and after it. It gets
    the pieces, Caldera the pairs. No word is left out by chance.
    """
    pieces = []
    for module in data.training:
        numbers = vocabulary.numbers(module.words)
        numbers = numbers[numbers != 0]
        pieces += [numbers[i : i + 50] for i in range(0, len(numbers) - 49, 50)]
    pieces = pieces[:1200]
    near = [(i, j) for i in range(50) for j in range(50) if 0 < abs(i - j) <= 5]
    pairs = np.concatenate([piece[np.array(near)] for piece in pieces])
    try:
        from gensim.models import Word2Vec
    except ImportError:
        Word2Vec = None
    print(f"\n{len(pairs):,} pairs of {len(vocabulary):,} words, width {width}, 5 negatives")
    print("\n| threads | who | pairs a second: best | median | best of processor time |")
    print("|---|---|---|---|---|")
    usual, rows = cd.settings.threads, []
    for threads in sorted({2, 1}, reverse=True):
        cd.settings.threads = threads
        ours = nn.SkipGram(vocabulary.counts, width, sample=0)
        ours.fit(pairs[: 1 << 17])
        runs: dict[str, tuple[Speed, Callable[[], object]]] = {
            "Caldera": (Speed(), lambda ours=ours: ours.fit(pairs)),
        }
        if Word2Vec is not None:
            sentences = [[str(number) for number in piece] for piece in pieces]
            theirs = Word2Vec(
                vector_size=width,
                sg=1,
                hs=0,
                negative=5,
                window=5,
                min_count=1,
                sample=0,
                workers=threads,
                shrink_windows=False,
            )
            theirs.build_vocab(sentences)
            count = len(sentences)

            def train(theirs=theirs, sentences=sentences, count=count) -> None:
                theirs.train(sentences, total_examples=count, epochs=1)

            runs["gensim"] = (Speed(), train)
        for _ in range(rounds):
            for speed, run in runs.values():
                speed.measure(run, len(pairs))
        for name, (speed, _) in runs.items():
            print(
                f"| {threads} | {name} | {max(speed.clock):,.0f} | {median(speed.clock):,.0f} "
                f"| {max(speed.processor):,.0f} |",
                flush=True,
            )
            rows.append(
                {
                    "threads": threads,
                    "who": name,
                    "pairs": len(pairs),
                    "pairs a second": speed.clock,
                    "pairs a second of processor time": speed.processor,
                }
            )
    cd.settings.threads = usual
    return rows


def measured(
    folder: Path, width: int, epochs: int, rounds: int, seeds: int, save: Path | None = None
) -> dict[str, Any]:
    """Everything here, one thing after the other: tables are printed, samples given back."""
    begin = Stopwatch()
    data = Data.of(folder)
    took, spent = begin.wall, sum(os.times()[:4])
    statements = sum(map(len, data.training))
    print(
        f"\n{statements:,} statements to train on, read in {took:.0f} s ({spent:.0f} s of "
        "processor time)"
    )
    embeddings, rows = table_2(data, width, epochs)
    if save is not None:
        embeddings[2].save(save)
    return {
        "packages": data.packages,
        "statements to train on": statements,
        "seconds to read": took,
        "table 2": rows,
        "pairs a second": speeds(data, embeddings[2].vocabulary, width),
        "table 3": table_3(data, embeddings[2], range(seeds), rounds),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    """Those of `measured`."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=5, help="of the vectors")
    parser.add_argument("--rounds", type=int, default=12, help="epochs of the networks")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--save", type=Path, help="a file for the vectors of context 2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser)
    options = parser.parse_args()
    begin = Stopwatch()
    measured(**vars(options))
    spent = sum(os.times()[:4])
    print(f"\n{begin.wall:.0f} s in all, {spent:.0f} s of processor time")


if __name__ == "__main__":
    main()
