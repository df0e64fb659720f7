"""Tests of statement vectors, with questions built from the vocabulary itself.

The tests follow table 2 of inst2vec. An analogy has the form "a is to b as c is to ...". Here a and
b are the same operation with two types, or with and without an option. They may also be an
operation and its inverse, or a statement about the same members as a vector, an array and a
structure. An answer counts if it is among the five nearest, as in inst2vec. A second test checks
whether statements of the same kind are nearer to each other than to statements of other kinds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from caldera.code.embedding import StatementEmbedding
from caldera.op.arguments import as_count

Question = tuple[str, str, str, str]
_OPERATION = re.compile(
    r"<%ID> = (?P<name>\w+) (?P<options>(?:[a-z]+ )*)(?P<type>i\d+|half|float|double|<\d+ x \w+>) "
    r"(?P<operands><\S+>, <\S+>)$"
)
_CONVERSION = re.compile(r"= (\w+)(?: nneg| nuw| nsw)* (\S+) <%ID> to (\S+)$")
_MEMBERS = re.compile(r"([<\[])(\d+) x (\w+)[>\]]")
INVERSE_OPERATIONS = {"add": "sub", "mul": "sdiv", "fadd": "fsub", "fmul": "fdiv"}
INVERSE_CONVERSIONS = {
    "sext": "trunc",
    "zext": "trunc",
    "fpext": "fptrunc",
    "sitofp": "fptosi",
    "uitofp": "fptoui",
    "ptrtoint": "inttoptr",
    "bitcast": "bitcast",
}
KINDS = (
    "<%ID> = add ",
    "<%ID> = fadd ",
    "<%ID> = sub ",
    "<%ID> = fsub ",
    "<%ID> = mul ",
    "<%ID> = fmul ",
    "<%ID> = fdiv ",
    "<%ID> = udiv ",
    "<%ID> = sdiv ",
    "ret ",
    "<%ID> = (?:shl|lshr|ashr|and|or|xor) ",
)
"""Statements that do the same, for the test of distances."""
MOST_MEMBERS = 16
MOST = 2000
"""Maximum number of questions per kind, evenly selected from all."""


@dataclass(frozen=True)
class Score:
    """Number of correct answers and of questions.

    >>> from caldera import code
    >>> print(code.Score(right=3, asked=4))
    3 of 4 (75.00%)
    """

    right: int
    asked: int

    def __str__(self) -> str:
        share = f"{100 * self.right / self.asked:.2f}%" if self.asked else "none asked"
        return f"{self.right} of {self.asked} ({share})"


def analogy_scores(embedding: StatementEmbedding, among: int = 5) -> dict[str, Score]:
    """Score the analogies: types, options, conversions and data structures.

    An answer is correct if it is `among` the nearest statements.

    >>> import numpy as np
    >>> from caldera import code
    >>> words = [f"<%ID> = {name} {kind} <%ID>, <%ID>" for name in ("add", "mul")
    ...          for kind in ("i32", "i64")]
    >>> vectors = np.array([[0, 0, 0], [1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 1]])
    >>> embedding = code.Embedding(code.Vocabulary(["<unknown>", *words], [1] * 5), vectors)
    >>> print(code.analogy_scores(embedding, among=1)["types"])
    1 of 1 (100.00%)
    """
    among = as_count(among, "among", "code.analogy_scores")
    words = embedding.vocabulary.words[1:]
    return {kind: _asked(embedding, find(words), among) for kind, find in _QUESTIONS.items()}


def distance_score(embedding: StatementEmbedding) -> Score:
    """Score the distances between statements of the same and of different kinds.

    Kinds are additions, divisions, returns, ... The score counts triples of two statements of a
    kind and a third of another kind. A triple is correct if the first two are nearer to each other
    than the first is to the third.

    >>> import numpy as np
    >>> from caldera import code
    >>> words = [f"<%ID> = {name} {kind} <%ID>, <%ID>" for name in ("add", "mul")
    ...          for kind in ("i32", "i64")]
    >>> vectors = np.array([[0, 0, 0], [2, 0, 0], [2, 0, 1], [0, 2, 0], [0, 2, 1]])
    >>> embedding = code.Embedding(code.Vocabulary(["<unknown>", *words], [1] * 5), vectors)
    >>> print(code.distance_score(embedding))
    8 of 8 (100.00%)
    """
    words = embedding.vocabulary.words
    right = asked = 0
    for kind in KINDS:
        alike = np.array([re.match(kind, word) is not None for word in words])
        alike[0] = False
        inside = np.flatnonzero(alike)
        outside = np.flatnonzero(~alike)[1:]
        for number in inside:
            near = embedding.similarities(int(number))
            others = near[inside[inside != number]]
            right += int(np.searchsorted(np.sort(near[outside]), others).sum())
            asked += len(others) * len(outside)
    return Score(right, asked)


def _asked(embedding: StatementEmbedding, questions: Iterable[Question], among: int) -> Score:
    asked = list(questions)
    if len(asked) > MOST:
        asked = [asked[i] for i in np.linspace(0, len(asked) - 1, MOST).astype(int)]
    right = sum(
        any(word == d for word, _ in embedding.analogy(a, b, c, among)) for a, b, c, d in asked
    )
    return Score(right, len(asked))


def _operations(words: Iterable[str]) -> Iterator[re.Match[str]]:
    """Return statements that compute a value from two operands."""
    return (match for word in sorted(words) if (match := _OPERATION.match(word)) is not None)


def _questions(groups: Iterable[list[tuple[str, str]]]) -> Iterator[Question]:
    """Yield two pairs of each group as a question."""
    for pairs in groups:
        for (a, b), (c, d) in combinations(pairs, 2):
            if len({a, b, c, d}) == 4:
                yield a, b, c, d


def _types(words: Iterable[str]) -> Iterator[Question]:
    """Yield two operations with two types, on the same kinds of operands."""
    rows: dict[str, dict[tuple[str, str], dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for each in _operations(words):
        rows[each["operands"]][each["name"], each["options"]][each["type"]] = each.string
    for templates in rows.values():
        for (one, first), (other, second) in combinations(templates.items(), 2):
            if one[0] == other[0]:
                continue
            for kind, another in combinations(sorted(first.keys() & second.keys()), 2):
                yield first[kind], first[another], second[kind], second[another]


def _options(words: Iterable[str]) -> Iterator[Question]:
    """Yield questions about the same operations and types without and with an option."""
    found = {
        each.group("name", "options", "type", "operands"): each.string
        for each in _operations(words)
    }
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for (name, options, *alike), word in found.items():
        without = found.get((name, "", *alike))
        if options and without is not None:
            groups[options, *alike].append((without, word))
    yield from _questions(groups.values())


def _conversions(words: Iterable[str]) -> Iterator[Question]:
    """Yield questions about a conversion or an operation and its inverse."""
    groups: dict[str, list[tuple[str, str]]] = defaultdict(list)
    found: dict[tuple[str, ...], str] = {}
    for word in sorted(words):
        if match := _CONVERSION.search(word):
            found.setdefault(match.group(1, 2, 3), word)
    for (name, source, target), word in found.items():
        undone = INVERSE_CONVERSIONS.get(name)
        if (undone, target, source) in found:
            groups[f"{undone}"].append((word, found[f"{undone}", target, source]))
    known = set(words)
    for each in _operations(words):
        inverse = INVERSE_OPERATIONS.get(each["name"])
        other = each.string.replace(f" {each['name']} ", f" {inverse} ", 1)
        if inverse is not None and other in known:
            groups[each["name"]].append((each.string, other))
    yield from _questions(groups.values())


def _structures(words: Iterable[str]) -> Iterator[Question]:
    """Yield one statement about the same members in two forms: a vector, an array, a structure."""
    known = set(words)
    forms: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for word in sorted(known):
        for match in _MEMBERS.finditer(word):
            count, kind = int(match.group(2)), match.group(3)
            if count > MOST_MEMBERS:
                continue
            own = "vector" if match.group(1) == "<" else "array"
            others = {"structure": "{ " + ", ".join([kind] * count) + " }"}
            # Each pair of forms is generated in one direction only.
            if own == "array":
                others["vector"] = f"<{count} x {kind}>"
            for form, written in others.items():
                other = word.replace(match.group(), written)
                if other in known:
                    forms[own, form].append((word, other))
    yield from _questions(forms.values())


_QUESTIONS: dict[str, Callable[[Iterable[str]], Iterator[Question]]] = {
    "types": _types,
    "options": _options,
    "conversions": _conversions,
    "data structures": _structures,
}
