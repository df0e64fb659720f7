"""Vectors of statements: training on code, and queries."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from caldera import io
from caldera.base.arguments import require, within
from caldera.code.flow_graph import context_pairs, flow_edges
from caldera.code.llvm_ir import Function, checked_functions
from caldera.code.skip_gram import SkipGram
from caldera.code.vocabulary import Vocabulary
from caldera.core.tensor.dtype import real_array_of
from caldera.errors import DataError
from caldera.io.safetensors_files import safetensors_arrays


class StatementEmbedding:
    """A vector for each statement of a vocabulary.

    >>> import numpy as np
    >>> from caldera import code
    >>> vocabulary = code.Vocabulary.of(["a", "b", "c"], least=1)
    >>> embedding = code.Embedding(vocabulary, np.array([[0, 0], [1, 0], [0.9, 0.1], [0, 1]]))
    >>> embedding.nearest("a", 1)[0][0]
    'b'
    """

    def __init__(self, vocabulary: Vocabulary, vectors: Any) -> None:
        vectors = real_array_of(vectors, "code.Embedding")
        require(
            vectors.ndim == 2 and len(vectors) == len(vocabulary),
            "code.Embedding",
            f"a vector for each of {len(vocabulary)} words",
            f"shape {vectors.shape}",
            error=DataError,
        )
        self.vocabulary, self.vectors = vocabulary, vectors
        length = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.maximum(length, 1e-12)

    def __repr__(self) -> str:
        return f"Embedding({len(self.vocabulary)} statements, width {self.vectors.shape[1]})"

    def __getitem__(self, statement: str) -> np.ndarray:
        return self.vectors[self._number(statement)]

    def similarity(self, a: str, b: str) -> float:
        """Return the cosine of the angle between two statements."""
        return float(self._directions[self._number(a)] @ self._directions[self._number(b)])

    def similarities(self, number: int) -> np.ndarray:
        """Return the similarities between the statement with this number and all statements."""
        last = len(self._directions) - 1
        return (
            self._directions @ self._directions[within("similarities", "number", number, 0, last)]
        )

    def nearest(self, statement: str, count: int = 5) -> list[tuple[str, float]]:
        """Return the most similar statements with their similarities."""
        number = self._number(statement)
        return self._best(self._directions[number], {number}, count)

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[tuple[str, float]]:
        """Return the statements related to `c` as `b` is to `a`.

        These are the statements nearest to b - a + c, except a, b and c.
        """
        numbers = [self._number(each) for each in (a, b, c)]
        first, second, third = self._directions[numbers]
        return self._best(second - first + third, {0, *numbers}, count)

    def save(self, path: str | PathLike[str]) -> Path:
        """Save vectors and statements in a safetensors file."""
        words = {"words": list(self.vocabulary.words), "counts": list(self.vocabulary.counts)}
        kept = {"vocabulary": json.dumps(words)}
        io.save_safetensors(path, {"vectors": self.vectors.astype(np.float32)}, metadata=kept)
        return Path(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> StatementEmbedding:
        """Return what `save` wrote."""
        found = io.load_safetensors_metadata(path).get("vocabulary")
        try:
            words = json.loads(found or "")
            vocabulary = Vocabulary(words["words"], words["counts"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError.build(
                "code.Embedding.load", expected="a file that Embedding.save wrote", got=str(path)
            ) from error
        return cls(vocabulary, safetensors_arrays(path)["vectors"])

    def _best(self, wanted: np.ndarray, without: set[int], count: int) -> list[tuple[str, float]]:
        scores = self._directions @ (wanted / max(float(np.linalg.norm(wanted)), 1e-12))
        scores[list(without)] = -np.inf
        best = np.argsort(-scores, kind="stable")[:count]
        return [(self.vocabulary.words[i], float(scores[i])) for i in best if scores[i] > -np.inf]

    def _number(self, statement: str) -> int:
        require(
            statement in self.vocabulary,
            "code.Embedding",
            "a statement of the vocabulary",
            repr(statement),
            hint="code.normalised(text) is its form; embedding.vocabulary.words has them all",
            error=DataError,
        )
        return int(self.vocabulary.numbers([statement])[0])


def pairs_of(
    modules: Iterable[Sequence[Function]],
    vocabulary: Vocabulary,
    context: int = 2,
    share: float = 1.0,
) -> np.ndarray:
    """Return pairs of statement numbers at a distance of at most `context` dependences.

    With a `share` below 1 only pairs with a statement from a drawn part of all are returned (see
    `context_pairs`).

    >>> from caldera import code
    >>> module = code.read_ir("define i32 @f(i32 %x) {\\n  %y = add i32 %x, 1\\n  ret i32 %y\\n}")
    >>> words = code.Vocabulary.of(module[0].words, least=1)
    >>> code.pairs_of([module], words).tolist()
    [[1, 2], [2, 1]]
    """
    found = [np.zeros((0, 2), np.int32)]
    for given in modules:
        functions = checked_functions("code.pairs_of", given)
        numbers = vocabulary.numbers(word for function in functions for word in function.words)
        found.append(numbers[context_pairs(flow_edges(functions), len(numbers), context, share)])
    pairs = np.concatenate(found)
    return pairs[(pairs != 0).all(axis=1)]


def train_embedding(
    modules: Sequence[Sequence[Function]],
    context: int = 2,
    width: int = 200,
    epochs: int = 5,
    least: int = 5,
    negatives: int = 5,
    rate: float = 0.025,
    sample: float = 1e-3,
    seed: int = 0,
) -> StatementEmbedding:
    """Return vectors of all statements that occur `least` times in these modules (see `read_ir`).

    >>> from caldera import code
    >>> module = code.read_ir("define i32 @f(i32 %x) {\\n  %y = add i32 %x, 1\\n  ret i32 %y\\n}")
    >>> code.train_embedding([module], width=4, least=1, sample=0)
    Embedding(3 statements, width 4)
    """
    read = [checked_functions("code.train_embedding", each) for each in modules]
    words = (word for functions in read for function in functions for word in function.words)
    vocabulary = Vocabulary.of(words, least)
    pairs = pairs_of(modules, vocabulary, context)
    require(
        len(pairs),
        "code.train_embedding",
        "neighbouring statements that each occur often enough",
        f"{len(vocabulary) - 1} statements that occur {least} times, and no pair",
        hint="give more code, or a lower least=",
        error=DataError,
    )
    model = SkipGram(vocabulary.counts, width, negatives, sample, seed)
    model.fit(pairs, epochs, rate)
    return StatementEmbedding(vocabulary, model.vectors)
