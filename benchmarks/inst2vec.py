"""Vectors of statements of LLVM IR, after inst2vec: its table 2, and what a function is for.

    python benchmarks/inst2vec.py FOLDER --save vectors.safetensors

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from code_corpus import HEADINGS, corpus

import caldera as cd
from caldera import code, nn

LONGEST = 128
"""Statements of a function that a network reads, from its beginning."""
LEAST, MOST = 8, 300
"""Statements that a function must have; functions of a purpose, evenly out of all."""
MOST_PAIRS = 4_000_000
"""Of an epoch, drawn from all there are: so each context sees as many."""
SHARES = {1: 1.0, 2: 0.1, 3: 0.025}
"""Statements whose pairs are found, by context: larger ones have far more than can be taken."""
Modules = list[list[code.Function]]


@dataclass
class Data:
    """What was compiled."""

    training: Modules = field(default_factory=list)
    purposes: list[str] = field(default_factory=list)
    functions: dict[str, list[tuple[int, code.Function]]] = field(
        default_factory=lambda: {"train": [], "test": []}
    )

    @classmethod
    def of(cls, folder: Path) -> Data:
        """Compile what is there, or read what was compiled before."""
        data = cls()
        by_purpose: dict[tuple[str, int], list[code.Function]] = {}
        print(HEADINGS)
        for found in corpus(folder):
            print(found, flush=True)
            package = found.package
            if package.part == "train":
                data.training += [*found.modules, *found.others]
            if package.purpose is not None:
                if package.purpose not in data.purposes:
                    data.purposes.append(package.purpose)
                label = data.purposes.index(package.purpose)
                row = by_purpose.setdefault((package.part, label), [])
                row += [f for each in found.modules for f in each if len(f.statements) >= LEAST]
        for (part, label), row in by_purpose.items():
            places = np.linspace(0, len(row) - 1, min(MOST, len(row))).astype(int)
            data.functions[part] += [(label, row[place]) for place in places]
        return data


# --- table 2


def embedded(data: Data, context: int, width: int, epochs: int) -> tuple[code.Embedding, int]:
    """Vectors, and how many pairs were found, of which about MOST_PAIRS were taken: from each file
    as many as it has of all statements."""
    words = (word for functions in data.training for f in functions for word in f.words)
    vocabulary = code.Vocabulary.of(words)
    share = MOST_PAIRS / sum(vocabulary.counts)
    random = np.random.default_rng(0)
    taken, count = [], 0
    for functions in data.training:
        pairs = code.pairs_of([functions], vocabulary, context, SHARES[context])
        count += len(pairs)
        most = int(share * sum(len(f.statements) for f in functions))
        if len(pairs) > most:
            pairs = pairs[random.choice(len(pairs), most, replace=False)]
        taken.append(pairs)
    model = nn.SkipGram(vocabulary.counts, width)
    model.fit(np.concatenate(taken), epochs)
    return code.Embedding(vocabulary, model.vectors), count


def table_2(data: Data, width: int, epochs: int) -> dict[int, code.Embedding]:
    """For each context its vectors, and its row, which is printed: answers among the five nearest,
    of how many questions; and those that are the nearest."""
    print("\n| context | pairs | types | options | conversions | data structures | distance | s |")
    print("|---|---|---|---|---|---|---|---|")
    found = {}
    for context in (1, 2, 3):
        start = time.perf_counter()
        embedding, count = embedded(data, context, width, epochs)
        five, one = code.analogy_scores(embedding), code.analogy_scores(embedding, among=1)
        scores = [f"{each}; {one[kind].right}" for kind, each in five.items()]
        distance = code.distance_score(embedding)
        cells = [f"{count:,}", *scores, f"{100 * distance.right / distance.asked:.2f}%"]
        took = time.perf_counter() - start
        print(f"| {context} | " + " | ".join(map(str, cells)) + f" | {took:.0f} |", flush=True)
        found[context] = embedding
    return found


# --- table 3


def as_sequences(functions: Sequence[code.Function], vocabulary: code.Vocabulary) -> np.ndarray:
    """Statements as numbers, 0 before the first."""
    rows = np.zeros((len(functions), LONGEST), np.int32)
    for row, function in zip(rows, functions, strict=True):
        numbers = vocabulary.numbers(function.words[:LONGEST])
        row[len(row) - len(numbers) :] = numbers
    return rows


def opcode_counts(functions: Sequence[code.Function], opcodes: list[str]) -> np.ndarray:
    """How often each instruction occurs, as a share: what was counted by hand before."""
    places = {name: i for i, name in enumerate(opcodes)}
    counts = np.zeros((len(functions), len(opcodes)), np.float32)
    for row, function in zip(counts, functions, strict=True):
        for word in function.words:
            place = places.get(opcode(word))
            if place is not None:
                row[place] += 1 / len(function.words)
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


def table_3(data: Data, embedding: code.Embedding, seeds: range, epochs: int) -> None:
    """Accuracy by what a network is given, once for each seed."""
    for part, rows in data.functions.items():
        numbers = Counter(label for label, _ in rows)
        print(f"\n{part}: " + ", ".join(f"{numbers[k]} {n}" for k, n in enumerate(data.purposes)))
    functions = {part: [f for _, f in rows] for part, rows in data.functions.items()}
    labels = {part: np.array([k for k, _ in rows]) for part, rows in data.functions.items()}
    tokens = {part: as_sequences(rows, embedding.vocabulary) for part, rows in functions.items()}
    known = {part: float((rows != 0).sum()) for part, rows in tokens.items()}
    length = {p: sum(min(LONGEST, len(f.words)) for f in rows) for p, rows in functions.items()}
    print("\nstatements in the vocabulary: " + ", ".join(
        f"{part} {100 * known[part] / length[part]:.1f}%" for part in known
    ))  # fmt: skip
    seen = Counter(opcode(word) for f in functions["train"] for word in f.words)
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
            tokens, lambda: recurrent(words, nn.Embedding(len(vectors), width)), epochs,
        ),
        "vectors, LSTM": (given, lambda: recurrent(nn.Input((LONGEST, width))), epochs),
    }  # fmt: skip
    print("\n| a network is given | accuracy, % (each seed) | mean over purposes, % | s |")
    print("|---|---|---|---|")
    for name, (inputs, layers, rounds) in rivals.items():
        start = time.perf_counter()
        parts = [(inputs[part], labels[part]) for part in ("train", "test")]
        scores = [accuracy(layers(), *parts, rounds, seed) for seed in seeds]
        columns = zip(*scores, strict=True)
        cells = [", ".join(f"{100 * each:.1f}" for each in column) for column in columns]
        print(f"| {name} | {' | '.join(cells)} | {time.perf_counter() - start:.0f} |", flush=True)


# --- pairs a second


@dataclass
class Speed:
    """Pairs a second, on the clock and of the time that all cores spent: the best round counts."""

    clock: float = 0.0
    processor: float = 0.0

    def measure(self, train: Callable[[], object], pairs: int) -> None:
        """One round."""
        begin, spent = time.perf_counter(), time.process_time()
        train()
        self.clock = max(self.clock, pairs / (time.perf_counter() - begin))
        self.processor = max(self.processor, pairs / (time.process_time() - spent))


def speeds(data: Data, vocabulary: code.Vocabulary, width: int, rounds: int = 3) -> None:
    """Caldera and gensim on the same pairs, taking turns, on two threads and on one.

    gensim makes pairs of sentences, each word with those around it: so functions are cut into
    pieces of 50 statements, of which each is paired with the five before it and after it. It gets
    the pieces, Caldera the pairs. No word is left out by chance.
    """
    pieces = []
    for functions in data.training:
        numbers = vocabulary.numbers(word for f in functions for word in f.words)
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
    print("\n| threads | who | pairs a second | of processor time |\n|---|---|---|---|")
    usual = cd.settings.threads
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
                vector_size=width, sg=1, hs=0, negative=5, window=5, min_count=1, sample=0,
                workers=threads, shrink_windows=False,
            )  # fmt: skip
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
                f"| {threads} | {name} | {speed.clock:,.0f} | {speed.processor:,.0f} |", flush=True
            )
    cd.settings.threads = usual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=5, help="of the vectors")
    parser.add_argument("--rounds", type=int, default=12, help="epochs of the networks")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--save", type=Path, help="a file for the vectors of context 2")
    options = parser.parse_args()
    begin = time.perf_counter()
    data = Data.of(options.folder)
    words = sum(len(f.statements) for functions in data.training for f in functions)
    took = time.perf_counter() - begin
    spent = sum(os.times()[:4])
    print(f"\n{words:,} statements to train on, read in {took:.0f} s ({spent:.0f} s of "
          "processor time)")  # fmt: skip
    embedding = table_2(data, options.width, options.epochs)[2]
    if options.save is not None:
        embedding.save(options.save)
    speeds(data, embedding.vocabulary, options.width)
    table_3(data, embedding, range(options.seeds), options.rounds)
    spent = sum(os.times()[:4])
    print(f"\n{time.perf_counter() - begin:.0f} s in all, {spent:.0f} s of processor time")


if __name__ == "__main__":
    main()
