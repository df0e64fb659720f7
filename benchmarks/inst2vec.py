"""Vectors of statements of LLVM IR, after inst2vec: its table 2, and what a function is for.

    apt-get source --download-only zlib bzip2 lz4 xz-utils gsl musl expat jansson \
        meschach
    python benchmarks/inst2vec.py FOLDER                  # where these archives are, or C files

Every C file of the packages is compiled by clang (those it does not compile are counted and left
out). Statements of the packages for training give the vocabulary and the vectors, for contexts 1, 2
and 3, and the questions of table 2 are asked. Then functions are told apart by what they are for,
in packages that were never seen: an LSTM over the vectors, the same over vectors that learn with
it, and a linear model over counts of instructions. Beside gensim, if it is installed: pairs a
second.
"""

from __future__ import annotations

import argparse
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import caldera as cd
from caldera import code, nn
from caldera.errors import CalderaError

PURPOSES = {
    "compression": (("zlib", "bzip2", "lz4"), ("xz",)),
    "special functions": (("gsl*/specfunc",), ("musl*/src/math",)),
    "parsing": (("expat",), ("jansson",)),
    "linear algebra": (("gsl*/linalg", "gsl*/eigen"), ("meschach",)),
}
"""What functions are for: folders for training, and those for the test."""
FLAGS = ["-D_GNU_SOURCE", "-DHAVE_CONFIG_H", "-DXML_POOR_ENTROPY", "-O1"]
LONGEST = 200
"""Statements of a function that a network reads."""


def unpacked(folder: Path) -> Path:
    """The folder with what its archives hold (nothing leaves it: `data` filter)."""
    target = folder / "unpacked"
    for archive in sorted(folder.glob("*.orig.tar.*")):
        if archive.suffix in (".gz", ".bz2", ".xz") and not list(target.glob(_stem(archive) + "*")):
            with tarfile.open(archive) as opened:
                opened.extractall(target, filter="data")
    return target if target.exists() else folder


def _stem(archive: Path) -> str:
    return archive.name.split("_")[0].split("-")[0]


def headers(package: Path) -> list[str]:
    """Folders of headers; and a config.h, where configure would have made one."""
    config = next(iter(package.rglob("config.h.in")), None)
    if config is not None and not (package / "config.h").exists():
        (package / "config.h").write_text("#define HAVE_STDINT_H 1\n#define HAVE_INTTYPES_H 1\n")
    folders = {path.parent for path in package.rglob("*.h")} | {package}
    return [flag for folder in sorted(folders) for flag in ("-I", str(folder))]


def modules_of(root: Path, patterns: tuple[str, ...], most: int) -> Iterator[list[code.Function]]:
    """The functions of each C file in folders that these name; at most so many files of each."""
    for pattern in patterns:
        for folder in sorted(root.glob(f"{pattern}*")):
            package = root / folder.relative_to(root).parts[0]
            include = headers(package)
            files = [path for path in sorted(folder.rglob("*.c")) if "test" not in path.name]
            tried = failed = 0
            for path in files[:most]:
                tried += 1
                try:
                    yield code.read_ir(code.compile_c(path, [*FLAGS, *include]))
                except CalderaError:
                    failed += 1
            print(f"  {folder.relative_to(root)}: {tried} files, {failed} not compiled", flush=True)


def as_sequences(functions: list[code.Function], vocabulary: code.Vocabulary) -> np.ndarray:
    """Statements as numbers, 0 behind the last."""
    rows = np.zeros((len(functions), LONGEST), np.int32)
    for row, function in zip(rows, functions, strict=True):
        numbers = vocabulary.numbers(function.words[:LONGEST])
        row[: len(numbers)] = numbers
    return rows


def opcode_counts(functions: list[code.Function], opcodes: list[str]) -> np.ndarray:
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


def accuracy(layers: list[nn.Layer], train, test, epochs: int, seed: int) -> float:
    """Of a network on functions of packages that it has not seen."""
    model = cd.NeuralNetwork(
        layers, loss="cross_entropy", optimizer="adam", learning_rate=2e-3, batch_size=64, seed=seed
    )
    model.fit(*train, epochs=epochs, verbose=0, class_weights="balanced")
    found = model.predict(test[0]).argmax(axis=1)
    # The mean over purposes: some have many more functions than others.
    return float(np.mean([(found[test[1] == k] == k).mean() for k in np.unique(test[1])]))


def classify(corpus, embedding: code.Embedding, seeds: range) -> dict[str, list[float]]:
    """Accuracy by what a network is given, once for each seed."""
    functions = {part: [f for _, f in rows] for part, rows in corpus.items()}
    labels = {part: np.array([k for k, _ in rows]) for part, rows in corpus.items()}
    tokens = {part: as_sequences(rows, embedding.vocabulary) for part, rows in functions.items()}
    seen = Counter(opcode(word) for f in functions["train"] for word in f.words)
    opcodes = [name for name, _ in seen.most_common(60)]
    counts = {part: opcode_counts(rows, opcodes) for part, rows in functions.items()}
    vectors = embedding.vectors / max(float(np.abs(embedding.vectors).max()), 1e-9)
    given = {part: vectors[rows].astype(np.float32) for part, rows in tokens.items()}
    width, classes = vectors.shape[1], len(PURPOSES)

    def recurrent(first: list[nn.Layer]) -> list[nn.Layer]:
        return [*first, nn.LSTM(64), nn.Dropout(0.3), nn.Dense(classes)]

    def scored(inputs, layers, epochs, seed) -> float:
        parts = [(inputs[part], labels[part]) for part in ("train", "test")]
        return accuracy(layers, *parts, epochs, seed)

    results: dict[str, list[float]] = {"counts": [], "raw tokens": [], "vectors": []}
    for seed in seeds:
        linear = [nn.Input((len(opcodes),)), nn.Dense(classes)]
        results["counts"].append(scored(counts, linear, 200, seed))
        words = [
            nn.Input((LONGEST,), dtype="int32"),
            nn.Embedding(len(embedding.vocabulary), width),
        ]
        results["raw tokens"].append(scored(tokens, recurrent(words), 12, seed))
        fixed = recurrent([nn.Input((LONGEST, width))])
        results["vectors"].append(scored(given, fixed, 12, seed))
    return results


def pairs_a_second(pairs: np.ndarray, counts, width: int, negatives: int) -> float:
    """Of `nn.SkipGram`, plans and all that comes before left out by a first short run."""
    model = nn.SkipGram(counts, width, negatives)
    model.fit(pairs[: 1 << 17])
    begin = time.perf_counter()
    model.fit(pairs)
    return len(pairs) / (time.perf_counter() - begin)


def gensim_pairs_a_second(pairs: np.ndarray, width: int, negatives: int) -> float | None:
    """Of gensim's Word2Vec with as many threads: each pair as a sentence of two words."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        return None
    sentences = [[str(a), str(b)] for a, b in pairs[: 1 << 20]]
    model = Word2Vec(
        vector_size=width, sg=1, hs=0, negative=negatives, window=1, min_count=1, sample=1e-3,
        workers=cd.settings.threads,
    )  # fmt: skip
    model.build_vocab(sentences)
    begin = time.perf_counter()
    model.train(sentences, total_examples=len(sentences), epochs=1)
    # Both words of a sentence are trained on the other.
    return 2 * len(sentences) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, default=200, help="files of a folder")
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    root = unpacked(options.folder)
    begin = time.perf_counter()
    corpus: dict[str, list] = {"train": [], "test": []}
    training: list[list[code.Function]] = []
    for label, (train, test) in enumerate(PURPOSES.values()):
        for part, patterns in (("train", train), ("test", test)):
            for functions in modules_of(root, patterns, options.most):
                long_enough = [f for f in functions if len(f.words) >= 8]
                corpus[part] += [(label, function) for function in long_enough]
                if part == "train":
                    training.append(functions)
    words = sum(len(f.words) for functions in training for f in functions)
    print(f"{words} statements to train on, {time.perf_counter() - begin:.0f} s")
    for part, rows in corpus.items():
        print(f"  {part}: " + ", ".join(
            f"{sum(k == label for k, _ in rows)} {name}" for label, name in enumerate(PURPOSES)
        ))  # fmt: skip

    print("\n| context | pairs | types | options | conversions | distance | s |")
    print("|---|---|---|---|---|---|---|")
    by_context = {}
    for context in (1, 2, 3):
        start = time.perf_counter()
        embedding = code.train_embedding(
            training, context, width=options.width, epochs=options.epochs
        )
        by_context[context] = embedding
        pairs = code.pairs_of(training, embedding.vocabulary, context)
        scores = code.analogy_scores(embedding)
        cells = [len(pairs), *scores.values(), code.distance_score(embedding)]
        took = time.perf_counter() - start
        print(f"| {context} | " + " | ".join(map(str, cells)) + f" | {took:.0f} |", flush=True)

    embedding = by_context[2]
    pairs = code.pairs_of(training, embedding.vocabulary, 2)
    speed = pairs_a_second(pairs, embedding.vocabulary.counts, options.width, 5)
    other = gensim_pairs_a_second(pairs, options.width, 5)
    beside = "not installed" if other is None else f"{other:,.0f}"
    print(f"\n{len(embedding.vocabulary)} words; pairs a second: {speed:,.0f}, gensim {beside}")

    print("\n| a network is given | accuracy, mean over purposes, of each seed |\n|---|---|")
    for name, found in classify(corpus, embedding, range(options.seeds)).items():
        print(f"| {name} | " + ", ".join(f"{100 * each:.1f}" for each in found) + " |", flush=True)
    print(f"\n{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
