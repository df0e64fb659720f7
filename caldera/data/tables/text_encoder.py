"""Free text in a column of a table: which words of a vocabulary it has; rare ones count more.

A dense layer on these features adds the vectors of a text's words, and so does
`nn.ColumnEmbedding`: an embedding bag.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from caldera.data.tables.table import Table, Values
from caldera.data.text.tokenizer import FIRST, LONGEST_CHOSEN, Tokenizer

MOST_WORDS = 500
"""Maximum number of words with a feature: the most frequent ones."""
_SHOWN = 6
_LEAST_WORDS = 4
"""Texts of fewer words, in the mean, are names or codes."""
_LENGTH = 2.0
"""Norm of the features of a text; a number has norm 1 and is less informative."""


@dataclass(frozen=True)
class TextEncoder:
    """Tf-idf features: one for each word of a vocabulary, with the same norm for all texts.

    A word that few texts contain has a larger weight. Missing texts have a feature if some training
    texts were missing.
    """

    kind = "text"
    detail = ""
    tokenizer: Tokenizer
    weights: tuple[float, ...]
    """Weight of each word."""
    marks_missing: bool = False

    @staticmethod
    def parse(table: Table, column: int, detail: str = "") -> Values:
        """Return the texts of a column; None for missing texts."""
        return table.texts(column)

    @classmethod
    def fit(cls, values: Values, detail: str = "") -> Self:
        """Learn the vocabulary of texts, without words that occur in a single text."""
        texts = [each for each in values if each is not None]
        counts: Counter[str] = Counter()
        if texts:
            every = Tokenizer.fit(texts, size=1 << 20, length=1)
            for row in every.encode(texts):
                counts.update({every.vocabulary[number - FIRST] for number in row})
        ordered = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [word for word in ordered if counts[word] > 1 and word[0].isalnum()][:MOST_WORDS]
        rareness = [float(np.log((1 + len(texts)) / (1 + counts[word])) + 1) for word in kept]
        tokenizer = Tokenizer("words", LONGEST_CHOSEN["words"], tuple(kept))
        return cls(tokenizer, tuple(rareness), any(each is None for each in values))

    @property
    def width(self) -> int:
        """Number of features per text."""
        return len(self.weights) + self.marks_missing

    def features(self, name: str) -> list[str]:
        """Return the names of the features."""
        words = (f"{name}: {word}" for word in self.tokenizer.vocabulary)
        return [*words, f"{name} is missing"][: self.width]

    def transform(self, values: Values) -> Values:
        """Return features of texts."""
        # As the network takes them: there may be many rows, and all have all words.
        found = np.zeros((len(values), self.width), np.float32)
        encoded = self.tokenizer.encode(["" if each is None else each for each in values])
        rows = np.repeat(np.arange(len(values)), [len(each) for each in encoded])
        numbers = np.array([number for each in encoded for number in each], np.int64)
        known = numbers >= FIRST
        np.add.at(found, (rows[known], numbers[known] - FIRST), 1)
        words = found[:, : len(self.weights)]
        np.log1p(words, out=words)
        words *= np.array(self.weights, np.float32)
        words *= _LENGTH / np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1e-6)
        if self.marks_missing:
            found[:, -1] = [each is None for each in values]
        return found

    def measure(self, values: Values) -> Values:
        """Return the number of words of each text, to compare with the training range."""
        lengths = [len(each) for each in self.tokenizer.encode([each or "" for each in values])]
        return np.array(lengths, np.float64)

    def shown(self, measure: float) -> str:
        """Return the text of a length that `measure` returned."""
        return f"{measure:.0f} words"

    def notes(self, values: Values) -> str:
        """Return a note about texts without known words and missing texts."""
        texts = [each for each in values if each is not None]
        strange = sum(
            not any(number >= FIRST for number in row) for row in self.tokenizer.encode(texts)
        )
        parts = [f"{strange} texts without a known word"] if strange else []
        return " and ".join([*parts, *strangely_missing(values, self.marks_missing)])

    def describe(self) -> str:
        """Return a description of the learnt values."""
        words = ", ".join(self.tokenizer.vocabulary[:_SHOWN])
        said = f"{len(self.weights)} words: {words}" if words else "no word that two texts have"
        said += ", ..." if len(self.weights) > _SHOWN else ""
        return said + ("; missing values have an indicator" if self.marks_missing else "")

    def example(self) -> Any:
        """Return an example of a value in a row."""
        return " ".join(self.tokenizer.vocabulary[:3])

    def problem(self) -> str:
        """Return the fault of an encoder that was read from a file; "" if it is valid."""
        if len(self.weights) != len(self.tokenizer.vocabulary):
            return f"{len(self.weights)} weights for {len(self.tokenizer.vocabulary)} words"
        if self.tokenizer.kind != "words" or not np.isfinite(self.weights).all():
            return "texts without words or weights"
        return "" if all(each > 0 for each in self.weights) else "a word of no weight"


def strangely_missing(values: Values, is_known: bool) -> list[str]:
    """Return the note about missing texts.

    None if texts were missing from the training rows as well.
    """
    missing = sum(each is None for each in values)
    return [f"{missing} missing, which no training row was"] if missing and not is_known else []


def is_free_text(texts: Sequence[str]) -> bool:
    """Return True if texts are sentences rather than names: varied, and of several words.

    >>> is_free_text(["the heating is broken again", "a very quiet flat, near the river"])
    True
    >>> is_free_text(["flat 1", "flat 2"])
    False
    """
    different = len(set(texts))
    words = sum(len(each.split()) for each in texts)
    return different > len(texts) // 2 and words >= _LEAST_WORDS * len(texts)
