"""Count marks of unclear English in docstrings, comments, messages and Markdown files.

    python -m tools.prose                      totals by package, and the files with most marks
    python -m tools.prose --places FILE ...    every mark of these files
    python -m tools.prose --record             write tests/prose.json, after files have got better

Four kinds of marks are counted:

1. openings: first lines of docstrings that begin with a relative clause (What, Whether, Where).
2. phrases: expressions of `PHRASES`, which are vague or need their context.
3. long: sentences of more than `LONGEST` words.
4. unclear: messages (errors, warnings, help, printed text) with an opening or phrase of this kind.

Messages are all strings of two words or more that are not docstrings. Code does not count: fenced
blocks, doctests, inline code, tables, targets of links.
`tests/test_prose.py` fails where a file has more marks than recorded, unless its rates are below
`LIMITS`. A mark is removed by rewriting the sentence, not by exchanging a word.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "tests" / "prose.json"
TEXTS = ("caldera", "docs", "README.md", "CONTRIBUTING.md")
LONGEST = 35
LIMITS = {"openings": 4.0, "phrases": 25.0, "long": 14.0, "unclear": 8.0}
"""Openings per 1,000 docstrings, phrases per 10,000 words, long sentences per 1,000 sentences,
unclear messages per 1,000 messages.

Keras, Optuna, Equinox, NumPy and scikit-learn stay below these rates."""

_OPENINGS = re.compile(
    r"(what|whether|where|how|who|whoever|whatever|that|those|as)\b(?! [`\[])", re.I
)
PHRASES = (
    r"\b(?:nobody|somebody|anybody|everybody|someone|everyone|whoever|whatever|wherever)\b",
    r"\b(?:wishes|wants|asks|tells|says|knows|likes|minds|meets|lets go|gives up)\b",
    r"\b(?:is|are|was|were|be|been) (?:asked|told)\b",
    r"\bwhat (?:is|are|was|were|has|have|had|it|they|a|an|the|comes|goes|stands)\b(?![^.?!]*\?)",
    r"\b(?:and|of|to|with|from|by|for|than) what\b",
    r"\bhow (?:many|much|long|often|far|few|large)\b",
    r"\b(?:that|those) of\b",
    r"\b(?:those (?:that|who|which|with|without|to)"
    r"|the ones? (?:that|which|who|of|before|after))\b",
    r"\bof (?:it|them|one)\b",
    r"\bof (?:its|their|his|her|one's|your|a person's) own\b",
    r"\bwhere (?:it|they|there)\b",
    r"\b(?:the others?|all others|another's|other's|others')\b(?! (?:hand|way))",
    r"\bso (?:many|few)\b|\bas (?:many|much|few|little) (?!as\b)\w+",
    r"\bnothing\b",
    r"\b(?:lies?|lay|lying|stands?|stood) "
    r"(?:in|on|at|there|below|above|by|beside|next|behind|for|one|together|where)\b",
    r"\b(?:goes|comes|came|gone|go) "
    r"(?:to|through|into|from|with|on|in|out|back|before|after|there)\b",
    r"\bgives\b",
    r"\b(?:is|are|was|were|be) (?:made of|cut)\b|\bmade of\b",
    r"\b(?:is|are|was|were|be) held\b|\bhand(?:ed|s)? (?:over|out|on)\b|\bhanded\b",
    r"\b(?:is|are|was|were|be|been) looked (?:at|up|for)\b",
    r"\bneeds? not\b|\bneed be\b",
    r"\b(?:anew|for good|meanwhile)\b",
    r"\bbeside\b",
    r"\bat once\b",
    r"\bone after (?:another|the other)\b",
    r"\b(?:by itself|by themselves|for itself|alone|apart)\b",
    r"\b(?:the|a|one|each|on) cards?\b",
    r"\bthe seeds?'s?\b|\bthe seeds\b",
)
_PHRASE = re.compile("|".join(f"(?:{pattern})" for pattern in PHRASES), re.IGNORECASE)
_DIRECTIVE = re.compile(r"(fmt|type|noqa|pragma|ruff|mypy|!|-\*-)\b")
_COMMENT = re.compile(
    r"(?P<long>\"{3}|'{3})(?:\\.|[^\\])*?(?P=long)|(?P<quote>[\"'])(?:\\.|[^\\\n])*?(?P=quote)"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
"""A comment, or a string, in which `#` begins none. `tokenize` takes fifteen times as long."""
_NO_MESSAGES = (ROOT / "caldera" / "kernels" / "cuda").as_posix()
"""Folder whose strings are source code."""
_WORD = re.compile(r"(?<![\w.])[A-Za-z][a-z'-]*(?![\w(])")
_HEADING = r"^\s*(?:Args|Returns|Raises|Examples?|Notes?|Yields|Attributes|Parameters):?\s*$"


@dataclass
class Counts:
    """Marks and sizes of one file or of several."""

    docstrings: int = 0
    words: int = 0
    sentences: int = 0
    openings: int = 0
    phrases: int = 0
    long: int = 0
    messages: int = 0
    unclear: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Add the counts of another file, without its places."""
        for name, value in vars(other).items():
            if name != "places":
                setattr(self, name, getattr(self, name) + value)

    @property
    def marks(self) -> int:
        """Number of marks of all kinds."""
        return self.openings + self.phrases + self.long + self.unclear

    def rates(self) -> dict[str, float]:
        """Return the rates that `LIMITS` limits."""
        return {
            "openings": 1_000 * self.openings / max(1, self.docstrings),
            "phrases": 10_000 * self.phrases / max(1, self.words),
            "long": 1_000 * self.long / max(1, self.sentences),
            "unclear": 1_000 * self.unclear / max(1, self.messages),
        }

    def is_within_limits(self) -> bool:
        """Return True if no rate is above its limit."""
        return all(rate <= LIMITS[name] for name, rate in self.rates().items())


def prose_of(text: str) -> str:
    """Return a text without code, tables, markup and targets of links."""
    text = re.sub(r"^( *)(```|~~~).*?^\1?\2.*?$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->|<[a-zA-Z/][^>\n]*>", " ", text, flags=re.DOTALL)
    text = re.sub(r"``[^`]+``|`[^`]*`|\$[^$\n]+\$", "CODE", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    kept, example = [], False
    for line in text.splitlines():
        stripped = line.strip()
        example = bool(stripped) and (example or stripped.startswith((">>>", "...")))
        skipped = stripped.startswith(("|", "+-", "#!", "---", "===", "!!!", ":::"))
        kept.append("" if example or skipped else line)
    return "\n".join(kept)


def sentences(prose: str) -> Iterator[str]:
    """Yield sentences; list items, headings and descriptions of arguments begin new ones."""
    prose = re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "\n\n", prose, flags=re.MULTILINE)
    prose = re.sub(rf"^\s*#+ .*$|{_HEADING}", "\n\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"^\s*(?:CODE|\*{0,2}\w+)(?: \([^)]*\))?:\s", "\n\n", prose, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", prose):
        flat = " ".join(paragraph.split())
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z\"'(*_]|$)", flat):
            if re.search(r"[a-z]{2}", sentence):
                yield sentence


def _text_of(node: ast.stmt) -> str | None:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return None
    return node.value.value if isinstance(node.value.value, str) else None


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of docstrings of definitions and attributes."""
    body = getattr(tree, "body", [])
    before: ast.AST = tree
    for node in body if isinstance(body, list) else []:
        text = _text_of(node)
        is_described = before is tree or (
            isinstance(before, ast.Assign | ast.AnnAssign)
            and isinstance(tree, ast.Module | ast.ClassDef)
        )
        if text is not None and is_described:
            yield node.lineno, inspect.cleandoc(text)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            yield from docstrings(node)
        before = node


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and text of comments; consecutive lines are one comment."""
    block: list[str] = []
    start = last = -1
    line, counted = 1, 0
    for found in _COMMENT.finditer(source):
        words = (found["comment"] or "").lstrip("#: ").strip()
        if not found["comment"] or _DIRECTIVE.match(words):
            continue
        line, counted = line + source.count("\n", counted, found.start()), found.start()
        if line != last + 1 and block:
            yield start, "\n".join(block)
            block = []
        start = line if not block else start
        last = line
        block.append(re.sub(r"\s*#?\s*(noqa|type: ignore|pragma).*$", "", words))
    if block:
        yield start, "\n".join(block)


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of strings of two words or more that are not docstrings.

    Replacement fields of f-strings become CODE.
    """
    skipped: set[int] = set()
    kinds = (ast.Expr, ast.JoinedStr, ast.Constant)
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for node in nodes:
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            specs = [
                part.format_spec for part in node.values if isinstance(part, ast.FormattedValue)
            ]
            skipped.update(id(part) for spec in specs if spec for part in ast.walk(spec))
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [getattr(part, "value", "") for part in node.values]
            text = "".join(part if isinstance(part, str) else "CODE" for part in parts)
        else:
            continue
        if " " in text and len(_WORD.findall(text)) > 1:
            yield node.lineno, text


def measure(path: Path) -> Counts:
    """Count the marks of one file."""
    counts, source = Counts(), path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        found = [(1, source)]
    else:
        tree = ast.parse(source)
        texts = list(docstrings(tree))
        counts.docstrings = len(texts)
        for line, text in texts:
            if _OPENINGS.match(text.strip()):
                counts.openings += 1
                counts.places.append(f"{path}:{line}: opening: {text.strip().splitlines()[0]}")
        found = [*texts, *comments(source)]
        if not path.resolve().as_posix().startswith(_NO_MESSAGES):
            _measure_messages(tree, path, counts)
    for line, text in found:
        for sentence in sentences(prose_of(text)):
            number = len(re.findall(r"[A-Za-z][\w'-]*", sentence))
            phrases = [match.group(0) for match in _PHRASE.finditer(sentence)]
            counts.sentences += 1
            counts.words += number
            counts.phrases += len(phrases)
            counts.places += [f"{path}:{line}: {phrase}: {sentence}" for phrase in phrases]
            if number > LONGEST:
                counts.long += 1
                counts.places.append(f"{path}:{line}: {number} words: {sentence}")
    return counts


def _measure_messages(tree: ast.AST, path: Path, counts: Counts) -> None:
    for line, text in messages(tree):
        prose = prose_of(text)
        counts.messages += 1
        marks = [match.group(0) for match in _PHRASE.finditer(prose)]
        if _OPENINGS.match(prose.strip()):
            marks.append("opening")
        if marks:
            counts.unclear += 1
            counts.places.append(f"{path}:{line}: message: {', '.join(marks)}: {text}")


@cache
def measure_all() -> dict[str, Counts]:
    """Return the counts of every file of `TEXTS`, by its path in the repository."""
    found: dict[str, Counts] = {}
    for name in TEXTS:
        root = ROOT / name
        paths = [root] if root.is_file() else [*root.rglob("*.py"), *root.rglob("*.md")]
        for path in sorted(paths):
            found[path.relative_to(ROOT).as_posix()] = measure(path)
    return found


def main() -> int:
    """Print counts, or record them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--places", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if options.places:
        for path in options.places:
            print(*measure(path).places, sep="\n")
        return 0
    found = measure_all()
    if options.record:
        marks = {name: counts.marks for name, counts in found.items() if counts.marks}
        RECORD.write_text(json.dumps(marks, indent=0) + "\n")
    by_part: dict[str, Counts] = {}
    for name, counts in found.items():
        part = "/".join(name.split("/")[:2]) if name.startswith("caldera/") else name.split("/")[0]
        for key in (part, "total"):
            by_part.setdefault(key, Counts()).add(counts)
    print("openings  phrases     long  unclear   words  part")
    for part, counts in sorted(by_part.items()):
        rates = "  ".join(f"{rate:7.1f}" for rate in counts.rates().values())
        print(f"{rates}  {counts.words:6}  {part}")
    print("\nmarks  file")
    for name in sorted(found, key=lambda each: found[each].marks, reverse=True)[:20]:
        print(f"{found[name].marks:5}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
