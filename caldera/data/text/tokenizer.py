"""Conversion between texts and rows of integers.

Number 0 is padding and 1 is unknown; the vocabulary starts at 2. The learnt values of a tokenizer
are plain data, so it is stored in the schema of a model and in the model's file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from caldera.base.arguments import guard_methods, require, within
from caldera.base.plain_data import from_plain, to_plain
from caldera.base.registry import nearest, optional_import
from caldera.errors import ConfigError, DataError

KINDS = ("words", "letters", "byte_pairs")
PADDING, UNKNOWN = 0, 1
FIRST = 2
"""The number of the first token of a vocabulary."""
LONGEST_CHOSEN = {"words": 256, "letters": 1024, "byte_pairs": 256}
"""Default maximum number of tokens of a text."""
_MOST_TOKENS = 1 << 20
_LONGEST = 1 << 16
_LONG_ENOUGH = 0.95
"""The part of the texts that is kept whole, where the length is chosen."""
# Letters and digits with apostrophes inside, or one other character.
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Tokenizer:
    """Converter of texts to rows of `length` integers; see `fit`.

    - `kind`: "words", "letters", or "byte_pairs" of UTF-8, which have no unknown tokens.
    - `vocabulary`: its tokens, from number 2 on, the most frequent first.
    - `merges`: for byte pairs, the pairs to merge, in order.
    - `column`: the column of a table that contains the texts.

    >>> from caldera import data
    >>> words = data.Tokenizer.fit(["The cat sat.", "A cat!"], length=4)
    >>> words.transform(["the cat ran"]).tolist()
    [[7, 2, 1, 0]]
    >>> words.decode([7, 2])
    'the cat'
    """

    kind: str
    length: int
    vocabulary: tuple[str, ...]
    lowercase: bool = True
    merges: tuple[str, ...] = ()
    column: str = ""

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        kind: str = "words",
        *,
        size: int = 20_000,
        length: int | None = None,
        lowercase: bool = True,
        column: str = "",
    ) -> Tokenizer:
        """Learn a vocabulary of at most `size` tokens from texts.

        `length` is the number of tokens of a text to keep. By default, it covers 95% of the texts,
        up to 256 words or byte pairs, or 1024 letters. Byte pairs need the package tokenizers.
        """
        where = "data.Tokenizer.fit"
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError.build(
                where,
                expected="words, letters or byte_pairs",
                got=repr(kind),
                hint=nearest(kind, KINDS),
            )
        within(where, "size", size, 1, _MOST_TOKENS)
        if length is not None:
            within(where, "length", length, 1, _LONGEST)
        found = _checked_texts(texts, where)
        require(found, where, "texts", error=DataError)
        if kind == "byte_pairs":
            vocabulary, merges = _byte_pairs(found, size, lowercase, where)
        else:
            counts = Counter(token for text in found for token in _split(text, kind, lowercase))
            ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            vocabulary, merges = [token for token, _ in ordered[:size]], []
        made = cls(kind, length or 1, tuple(vocabulary), lowercase, tuple(merges), column)
        if length is not None:
            return made
        lengths = [len(each) for each in made.encode(found)]
        usual = int(np.ceil(np.quantile(lengths, _LONG_ENOUGH)))
        chosen = min(max(usual, 1), LONGEST_CHOSEN[kind])
        return replace(made, length=chosen)

    @property
    def size(self) -> int:
        """Number of different tokens, including padding and unknown."""
        return FIRST + len(self.vocabulary)

    def encode(self, texts: str | Sequence[str]) -> list[list[int]]:
        """Return the numbers of each text's tokens, however many there are.

        >>> from caldera import data
        >>> data.Tokenizer.fit(["abc", "a"], "letters").encode(["cab"])
        [[4, 2, 3]]
        """
        found = _checked_texts(texts, "data.Tokenizer.encode")
        if self.kind == "byte_pairs":
            engine = _engine(self.vocabulary, self.merges, "data.Tokenizer.encode")
            lowered = [text.lower() if self.lowercase else text for text in found]
            return [[FIRST + n for n in each.ids] for each in engine.encode_batch(lowered)]
        numbers = self._numbers
        return [
            [numbers.get(token, UNKNOWN) for token in _split(text, self.kind, self.lowercase)]
            for text in found
        ]

    def transform(self, texts: str | Sequence[str]) -> NDArray[np.int64]:
        """Return rows of `length` numbers: longer texts are truncated, shorter padded with 0."""
        encoded = self.encode(texts)
        rows = np.zeros((len(encoded), self.length), np.int64)
        for row, numbers in zip(rows, encoded, strict=True):
            kept = numbers[: self.length]
            row[: len(kept)] = kept
        return rows

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the text of a row of numbers, with words separated by spaces.

        An unknown token becomes �.
        """
        try:
            given = np.asarray(list(numbers))
        except (TypeError, ValueError):
            given = np.zeros(())
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise DataError.build(
                "data.Tokenizer.decode", expected="a row of integers", got=repr(numbers)[:80]
            )
        tokens = [self._token(number) for number in given.tolist() if number != PADDING]
        if self.kind == "byte_pairs":
            decoder = optional_import("tokenizers", "tokenizers", "data.Tokenizer.decode").decoders
            return cast(str, decoder.ByteLevel().decode(tokens))
        return (" " if self.kind == "words" else "").join(tokens)

    def to_plain(self) -> dict[str, Any]:
        """Return a JSON-serialisable value."""
        return cast("dict[str, Any]", to_plain(self))

    @classmethod
    def from_plain(cls, given: Any, where: str) -> Tokenizer:
        """Return the tokenizer from the data of `to_plain`; raise an error for any other data.

        >>> words = Tokenizer.fit(["a b"])
        >>> Tokenizer.from_plain(words.to_plain(), "a file") == words
        True
        """
        found = from_plain(cls, given, where)
        found.check(where)
        return found

    def check(self, where: str) -> None:
        """Raise an error for values that only a damaged file can contain."""
        fine = (
            self.kind in KINDS
            and 1 <= self.length <= _LONGEST
            and len(set(self.vocabulary)) == len(self.vocabulary)
            and (self.kind == "byte_pairs" or not self.merges)
            and all(merge.count(" ") == 1 for merge in self.merges)
        )
        require(
            fine,
            where,
            "a tokenizer",
            f"{self.kind!r} of length {self.length}",
            hint="the file is damaged, or a newer Caldera has written it",
            error=DataError,
        )

    def __str__(self) -> str:
        return f"{self.size - FIRST} {self.kind}, {self.length} a text"

    def _token(self, number: int) -> str:
        if number == UNKNOWN:
            return "�"
        require(
            FIRST <= number < self.size,
            "data.Tokenizer.decode",
            f"numbers below {self.size}",
            number,
            error=DataError,
        )
        return self.vocabulary[number - FIRST]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: FIRST + place for place, token in enumerate(self.vocabulary)}


def _split(text: str, kind: str, lowercase: bool) -> list[str]:
    text = text.lower() if lowercase else text
    return list(text) if kind == "letters" else _WORD.findall(text)


def _checked_texts(texts: Any, where: str) -> list[str]:
    given = [texts] if isinstance(texts, str) else texts
    try:
        found = list(given)
    except TypeError:
        raise DataError.build(where, expected="texts", got=repr(texts)[:80]) from None
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise DataError.build(
                f"{where}, text {number}",
                expected="a text",
                got=repr(text)[:80],
                hint="pass missing values as an empty text, or leave them out",
            )
    return found


# --- byte pairs, by the package tokenizers


def _byte_pairs(
    texts: Sequence[str], size: int, lowercase: bool, where: str
) -> tuple[list[str], list[str]]:
    """Return a vocabulary of byte pairs, by number, and the pairs that make it up."""
    package = optional_import("tokenizers", "'caldera[text]'", where)
    bytes_first = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine = package.Tokenizer(package.models.BPE())
    engine.pre_tokenizer = bytes_first
    trainer = package.trainers.BpeTrainer(
        vocab_size=max(size, 256),
        initial_alphabet=sorted(bytes_first.alphabet()),
        show_progress=False,
    )
    lowered = [text.lower() if lowercase else text for text in texts]
    engine.train_from_iterator(lowered, trainer)
    by_token = engine.get_vocab()
    vocabulary = sorted(by_token, key=lambda token: by_token[token])
    return vocabulary, _merges_of(engine)


def _merges_of(engine: Any) -> list[str]:
    given = json.loads(engine.to_str())["model"]["merges"]
    return [each if isinstance(each, str) else " ".join(each) for each in given]


def _engine(vocabulary: tuple[str, ...], merges: tuple[str, ...], where: str) -> Any:
    """Return the byte-pair encoder, constructed only from data in a model's file."""
    package = optional_import("tokenizers", "'caldera[text]'", where)
    numbers = {token: number for number, token in enumerate(vocabulary)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    for pair in pairs:
        if not {*pair, "".join(pair)} <= numbers.keys():
            raise DataError.build(
                where,
                expected="merges of tokens in the vocabulary",
                got=" ".join(pair)[:40],
                hint="the file is damaged",
            )
    engine = package.Tokenizer(package.models.BPE(vocab=numbers, merges=pairs))
    engine.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return engine


guard_methods(Tokenizer, "decode encode fit transform")
