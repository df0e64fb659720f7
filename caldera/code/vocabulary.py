"""Normalised LLVM IR statements and their vocabulary (inst2vec, Ben-Nun 2018).

Normalisation removes the names of variables, functions and labels, numbers, and attributes that
matter only to a linker or a debugger. Types, flags and the instruction remain. A named structure
is written as its members.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np

from caldera.base.arguments import require
from caldera.errors import DataError

LOCAL, GLOBAL, INTEGER, FLOAT = "<%ID>", "<@ID>", "<INT>", "<FLOAT>"
_NAME = r'(?:"[^"]*"|[-\w$.]+)'
LOCAL_NAME = re.compile(f"%({_NAME})")
_GLOBAL_NAME = re.compile(f"@(?!llvm\\.){_NAME}")
_METADATA = re.compile(r",? ![\w.]+( !\d+)?|(?<=[\w)]) #\d+|\s*;.*$")
_STRING = re.compile(r'c"[^"]*"')
_CASES = re.compile(r" \[.*\]$")
_ATTRIBUTES = re.compile(
    r"\b(?:noundef|nonnull|noalias|nofree|nocapture|readonly|readnone|writeonly|writable|signext"
    r"|zeroext|returned|immarg|inreg|dead_on_unwind|initializes\(\(.*?\)\)"
    r"|(?:dereferenceable|dereferenceable_or_null|range|captures|sret|byval)\([^()]*\)) "
)
_FLOAT = re.compile(r"(?<![\w.%@])(?:-?\d+\.\d+(?:e[+-]?\d+)?|0x[KLMHR]?[0-9A-F]+)")
_KEPT_NUMBER = r"(?:\b(?:align|addrspace\(|syncscope\()\s*\d+|[\[<]\d+ x |\bvscale x \d+ x )"
_NUMBER = re.compile(_KEPT_NUMBER + r"|(?<![\w.%@<#])-?\d+(?![\w.])")
MOST_CHARACTERS, MOST_LEVELS = 1 << 14, 64
"""Limits for writing a structure as its members: a larger or deeper one keeps its name.

A chain of structures that each contain the preceding one twice would fill any memory.
"""
_PARAMETER_ALIGN = re.compile(r"(?<=ptr) align \d+(?= )")


def normalised(statement: str, structures: Mapping[str, str] | None = None) -> str:
    """Return a statement as a word.

    >>> normalised("%4 = add nsw i32 %3, -16, !dbg !7")
    '<%ID> = add nsw i32 <%ID>, <INT>'
    >>> normalised("%9 = tail call double @sqrt(double noundef %8) #4")
    '<%ID> = tail call double <@ID>(double <%ID>)'
    >>> normalised("%p = getelementptr %s, ptr %0, i64 2", {"%s": "{ i8, [4 x i32] }"})
    '<%ID> = getelementptr { i8, [4 x i32] }, ptr <%ID>, i64 <INT>'
    """
    text = statement.strip()
    if "!" in text or "#" in text or ";" in text:
        text = _METADATA.sub("", text)
    if '"' in text:
        text = _STRING.sub("<STRING>", text)
    known = structures or {}

    def members_or_name(found: re.Match[str]) -> str:
        members = known.get(found.group())
        return LOCAL if members is None else LOCAL_NAME.sub(LOCAL, members)

    return _without_numbers(LOCAL_NAME.sub(members_or_name, text))


@lru_cache(1 << 16)
def _without_numbers(text: str) -> str:
    """Return a statement without names; cached, since few results differ."""
    if text.startswith("switch"):
        text = _CASES.sub("", text)
    text = _PARAMETER_ALIGN.sub("", _ATTRIBUTES.sub("", text))
    text = _FLOAT.sub(FLOAT, _GLOBAL_NAME.sub(GLOBAL, text))
    text = _NUMBER.sub(_kept_or_number, text)
    return re.sub(r"\s+", " ", text)


def _kept_or_number(found: re.Match[str]) -> str:
    text = found.group()
    return INTEGER if text.lstrip("-").isdigit() else text


def structures_of(module: str) -> dict[str, str]:
    """Return the named structures of a module, each written as its members, recursively.

    >>> structures_of("%a = type { i8 }\\n%b = type { %a, i32 }\\n%c = type opaque")
    {'%a': '{ i8 }', '%b': '{ { i8 }, i32 }', '%c': 'opaque'}
    """
    found = dict(re.findall(rf"^(%{_NAME}) = type (.*)$", module, re.MULTILINE))
    done: dict[str, str] = {}

    def members(name: str, depth: int = 0) -> str:
        if name not in done and depth < MOST_LEVELS:
            done[name] = name
            whole = LOCAL_NAME.sub(
                lambda inner: (
                    members(inner.group(), depth + 1) if inner.group() in found else inner.group()
                ),
                found[name],
            )
            done[name] = whole if len(whole) <= MOST_CHARACTERS else name
        return done.get(name, name)

    return {name: members(name) for name in found}


UNKNOWN = "<unknown>"


class Vocabulary:
    """Numbering of statements, most frequent first; 0 represents all unknown statements.

    >>> vocabulary = Vocabulary.of(["a", "b", "a", "c"], least=2)
    >>> vocabulary.words, vocabulary.numbers(["b", "a"]).tolist()
    (('<unknown>', 'a'), [0, 1])
    """

    def __init__(self, words: Sequence[str], counts: Sequence[int]) -> None:
        words, counts = list(words), list(counts)
        require(
            words and words[0] == UNKNOWN and len(words) == len(counts),
            "code.Vocabulary",
            f"words that begin with {UNKNOWN!r}, a count for each",
            f"{len(words)} words and {len(counts)} counts",
            error=DataError,
        )
        self.words, self.counts = tuple(words), tuple(int(count) for count in counts)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, statements: Iterable[str], least: int = 5) -> Vocabulary:
        """Return a vocabulary of all statements with at least `least` occurrences."""
        counted = Counter(statements)
        wrong = next((word for word in counted if not isinstance(word, str)), None)
        require(
            wrong is None, "code.Vocabulary.of", "statements: strings", repr(wrong), error=DataError
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
        """Return the numbers of words, as int32."""
        return np.array([self._numbers.get(word, 0) for word in words], np.int32)
