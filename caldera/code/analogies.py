"""Questions that vectors of statements should answer, made of the vocabulary itself.

After table 2 of inst2vec: "a is to b as c is to what?" where a and b are one statement with two
types, with and without an option, a conversion and its inverse, or the same members as a vector, an
array and a structure; and whether a statement is
nearer to one that does the same than to one that does something else.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from caldera.code.embedding import Embedding

Question = tuple[str, str, str, str]
TYPES = ("i8", "i16", "i32", "i64", "float", "double")
OPTIONS = ("nsw", "nuw", "inbounds", "nneg", "exact", "disjoint", "tail", "fast")
INVERSES = {
    "sext": "trunc", "zext": "trunc", "fpext": "fptrunc", "sitofp": "fptosi", "uitofp": "fptoui",
    "ptrtoint": "inttoptr",
}  # fmt: skip
_CONVERSION = re.compile(r"= (\w+)(?: nneg| nuw| nsw)* (\S+) <%ID> to (\S+)$")
_MEMBERS = re.compile(r"([<\[])(\d+) x (\w+)[>\]]")
MOST_MEMBERS = 16
MOST = 2000
"""Questions of a kind that are asked, evenly out of all."""


@dataclass(frozen=True)
class Score:
    """How many questions of a kind were answered as they should be.

    >>> from caldera import code
    >>> print(code.Score(right=3, asked=4))
    3 of 4 (75.00%)
    """

    right: int
    asked: int

    def __str__(self) -> str:
        share = f"{100 * self.right / self.asked:.2f}%" if self.asked else "none asked"
        return f"{self.right} of {self.asked} ({share})"


def analogy_scores(embedding: Embedding) -> dict[str, Score]:
    """Types, options, conversions and data structures: how often the nearest statement is the right
    one.

    >>> import numpy as np
    >>> from caldera import code
    >>> words = [f"<%ID> = {name} {kind} <%ID>, <%ID>" for name in ("add", "mul")
    ...          for kind in ("i32", "i64")]
    >>> vectors = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]])
    >>> embedding = code.Embedding(code.Vocabulary(["<unknown>", *words], [1] * 5), vectors)
    >>> print(code.analogy_scores(embedding)["types"])
    1 of 1 (100.00%)
    """
    words = embedding.vocabulary.words[1:]
    return {kind: _asked(embedding, find(words)) for kind, find in _QUESTIONS.items()}


def distance_score(embedding: Embedding) -> Score:
    """How often a statement is nearer to its like of another type than to one that does something
    else with its own type.

    >>> import numpy as np
    >>> from caldera import code
    >>> words = [f"<%ID> = {name} {kind} <%ID>, <%ID>" for name in ("add", "mul")
    ...          for kind in ("i32", "i64")]
    >>> vectors = np.array([[0, 0, 0], [2, 0, 0], [2, 0, 1], [0, 2, 0], [0, 2, 1]])
    >>> embedding = code.Embedding(code.Vocabulary(["<unknown>", *words], [1] * 5), vectors)
    >>> print(code.distance_score(embedding))
    2 of 2 (100.00%)
    """
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for word in embedding.vocabulary.words[1:]:
        match = re.match(r"<%ID> = (\w+) (\S+) <%ID>, <%ID>$", word)
        if match and match.group(2) in TYPES:
            groups[match.group(1)][match.group(2)] = word
    right = asked = 0
    for operation, others in groups.items():
        for kind, other_kind in combinations(others, 2):
            for foreign in groups:
                if foreign != operation and kind in groups[foreign]:
                    alike = embedding.similarity(others[kind], others[other_kind])
                    right += alike > embedding.similarity(others[kind], groups[foreign][kind])
                    asked += 1
    return Score(right, asked)


def _asked(embedding: Embedding, questions: Iterable[Question]) -> Score:
    asked = list(questions)
    if len(asked) > MOST:
        asked = [asked[i] for i in np.linspace(0, len(asked) - 1, MOST).astype(int)]
    right = sum(embedding.analogy(a, b, c)[0][0] == d for a, b, c, d in asked)
    return Score(right, len(asked))


def _types(words: Iterable[str]) -> Iterator[Question]:
    """One statement with two types."""
    by_template: dict[str, dict[str, str]] = defaultdict(dict)
    for word in words:
        used = {kind for kind in TYPES if re.search(rf"\b{kind}\b", word)}
        if len(used) == 1:
            [kind] = used
            by_template[re.sub(rf"\b{kind}\b", "T", word)][kind] = word
    for first, second in combinations(TYPES, 2):
        both = [row for row in by_template.values() if first in row and second in row]
        for one, other in combinations(both, 2):
            yield one[first], one[second], other[first], other[second]


def _options(words: Iterable[str]) -> Iterator[Question]:
    """One statement without and with an option."""
    known = set(words)
    for option in OPTIONS:
        having = [word for word in sorted(known) if f" {option} " in f" {word}"]
        pairs = [(word.replace(f"{option} ", "", 1), word) for word in having]
        pairs = [pair for pair in pairs if pair[0] in known and pair[0] != pair[1]]
        for (a, b), (c, d) in combinations(pairs, 2):
            yield a, b, c, d


def _conversions(words: Iterable[str]) -> Iterator[Question]:
    """A conversion and the one that undoes it."""
    found: dict[tuple[str, str, str], str] = {}
    for word in words:
        match = _CONVERSION.search(word)
        if match:
            found.setdefault((match.group(1), match.group(2), match.group(3)), word)
    pairs = [
        (word, found[INVERSES[name], target, source])
        for (name, source, target), word in sorted(found.items())
        if name in INVERSES and (INVERSES[name], target, source) in found
    ]
    for (a, b), (c, d) in combinations(pairs, 2):
        if len({a, b, c, d}) == 4:
            yield a, b, c, d


def _structures(words: Iterable[str]) -> Iterator[Question]:
    """One statement about the same members in two forms: a vector, an array, a structure."""
    known = set(words)
    forms: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for word in sorted(known):
        for match in _MEMBERS.finditer(word):
            count, kind = int(match.group(2)), match.group(3)
            if count > MOST_MEMBERS:
                continue
            others = {
                "vector": f"<{count} x {kind}>",
                "array": f"[{count} x {kind}]",
                "structure": "{ " + ", ".join([kind] * count) + " }",
            }
            # Each two forms are met from one side alone.
            own, wanted = ("vector", ["structure"]) if match.group(1) == "<" else (
                "array", ["structure", "vector"]
            )  # fmt: skip
            for form in wanted:
                other = word.replace(match.group(), others[form])
                if other in known:
                    forms[own, form].append((word, other))
    for pairs in forms.values():
        for (a, b), (c, d) in combinations(pairs, 2):
            if len({a, b, c, d}) == 4:
                yield a, b, c, d


_QUESTIONS: dict[str, Callable[[Iterable[str]], Iterator[Question]]] = {
    "types": _types,
    "options": _options,
    "conversions": _conversions,
    "data structures": _structures,
}
