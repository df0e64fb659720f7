"""Words of a language and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from caldera.errors import DataError

UNKNOWN = "<unknown>"


class Vocabulary:
    """Statements by number, the most frequent first; 0 stands for all that are not among them.

    >>> vocabulary = Vocabulary.of(["a", "b", "a", "c"], least=2)
    >>> vocabulary.words, vocabulary.numbers(["b", "a"]).tolist()
    (('<unknown>', 'a'), [0, 1])
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int]) -> None:
        words, counts = list(words), list(counts)
        if not words or words[0] != UNKNOWN or len(words) != len(counts):
            raise DataError.build(
                "code.Vocabulary",
                expected=f"words that begin with {UNKNOWN!r}, a count for each",
                got=f"{len(words)} words and {len(counts)} counts",
            )
        self.words, self.counts = tuple(words), tuple(int(count) for count in counts)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, statements: Iterable[str], least: int = 5) -> Vocabulary:
        """All statements that occur at least so often."""
        counted = Counter(statements)
        wrong = next((word for word in counted if not isinstance(word, str)), None)
        if wrong is not None:
            raise DataError.build(
                "code.Vocabulary.of", expected="statements: strings", got=repr(wrong)
            )
        kept = [(word, n) for word, n in counted.items() if n >= least]
        kept.sort(key=lambda each: (-each[1], each[0]))
        rest = sum(counted.values()) - sum(n for _, n in kept)
        return cls([UNKNOWN, *(word for word, _ in kept)], [rest, *(n for _, n in kept)])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def numbers(self, words: Iterable[str]) -> np.ndarray:
        """The numbers of words, as int32."""
        return np.array([self._numbers.get(word, 0) for word in words], np.int32)
