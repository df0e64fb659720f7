"""Which sources compile for a real card: those that NVIDIA's compiler has accepted are listed.

Compiling a source with NVRTC takes longer than all the rest of its test, and gives the same answer
as yesterday unless the source, a header of it or the architecture has changed. So accepted.txt
holds digests of what was accepted; what is not listed is compiled at once, wherever NVRTC is
installed, and a test whose source it refuses fails. `make accept-card-sources` writes the list
anew; if another version of NVRTC is installed by then, it compiles all of them, and so it does with
`--compile-card-sources`.

What a card might lack is an instruction. Which instructions a source has does not depend on the
numbers in it, so of sources that differ in nothing else one is compiled for all cards, and the
others for one of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from caldera.kernels.cuda.runtime import driver
from caldera.kernels.cuda.runtime.driver import headers
from tests.object_cache import CACHE, cached_file

LIST = Path(__file__).parent / "accepted.txt"
ARCHITECTURE = "sm_90"
OTHERS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_100", "sm_120")
"""Cards on which nothing was run: sources have to compile for them."""
QUICKLY = ("-Xptxas=-O0", "-Ofc=max")
"""Nobody runs what is made: it takes a third of the time if it need not be fast."""
_WORD = re.compile(r"[A-Za-z_]\w*")
_NAME = re.compile(r"^(?:template [^\n]*\s)?__device__ __forceinline__ [^(]*?(\w+)\(")
_NUMBER = re.compile(r"(?<!\w)(?:0x[0-9a-fp.+-]+f?|\d+)")
_INCLUDE = re.compile(r'#include "([^"]+)"')

needed: set[str] = set()
"""The digests of all sources that this process has asked for."""
strict = False
"""Whether only what this very compiler has accepted counts."""
anew = False
"""Whether nothing that was accepted before counts."""


@cache
def included(source: str) -> dict[str, str]:
    """The headers that a source includes, directly or not: only a change of these concerns it."""
    found: dict[str, str] = {}
    texts = [source]
    while texts:
        for name in _INCLUDE.findall(texts.pop()):
            if name not in found:
                assert name in headers(), f"there is no header {name}\n{source}"
                found[name] = headers()[name]
                texts.append(found[name])
    return dict(sorted(found.items()))


@cache
def _code(text: str) -> str:
    lines = (line.split("//")[0].strip() for line in text.split("\n"))
    return "\n".join(filter(None, lines))


@cache
def digest_of(source: str) -> str:
    """What a source is, comments and margins apart."""
    return _digest(source, included(source), ARCHITECTURE)


@cache
def kind_of(source: str) -> str:
    """The same of all sources that differ in numbers alone."""
    return _digest(_NUMBER.sub("0", source), included(source), *OTHERS)


def _digest(source: str, headers: Mapping[str, str], *architectures: str) -> str:
    # A source uses little of the headers: what else is there does not matter.
    functions = tuple(each for text in headers.values() for each in _functions(text))
    used = _used(functions, frozenset(_WORD.findall(source)))
    code = "\n".join([_code(source), *used, *architectures])
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


Function = tuple[str, str, frozenset[str]]
"""Its name, its text, and the words in it."""


@cache
def _functions(text: str) -> tuple[Function, ...]:
    """The functions of a header, and what is none without a name, in their order."""
    found, lines, depth = [], list[str](), 0
    for line in [*_code(text.replace("\\\n", " ")).split("\n"), ""]:
        lines.append(line)
        depth += line.count("{") - line.count("}")
        if not line or (depth == 0 and (line[-1] in "};" or line[0] == "#")):
            whole = "\n".join(lines)
            name = _NAME.search(whole)
            found.append((name[1] if name else "", whole, frozenset(_WORD.findall(whole))))
            lines = []
    return tuple(found)


def _used(functions: Sequence[Function], words: frozenset[str]) -> list[str]:
    """The texts that words name of these, and what those name in turn."""
    while True:
        used = [each for each in functions if not each[0] or each[0] in words]
        more = words.union(*(each[2] for each in used))
        if more == words:
            return [text for _, text, _ in used]
        words = more


def check_for_a_card(source: str) -> None:
    """Compile a source for real cards, unless it is known that it compiles."""
    _check(digest_of(source), lambda: _compile(source, ARCHITECTURE))
    _check(kind_of(source), lambda: [_compile(source, each) for each in OTHERS])


def _check(digest: str, compile_: Callable[[], object]) -> None:
    if digest in needed:
        return
    if digest not in listed() and driver.library() is not None:
        folder = CACHE / "accepted" / ".".join(map(str, driver.version()))
        folder.mkdir(parents=True, exist_ok=True)
        if anew:
            (folder / digest).unlink(missing_ok=True)

        def make(file: Path) -> None:
            compile_()
            file.touch()

        cached_file(folder / digest, make)
    needed.add(digest)


def _compile(source: str, architecture: str) -> None:
    options = QUICKLY if driver.version() >= (13, 4) else QUICKLY[:1]
    driver.compile_source(source, included(source), architecture, options)


@cache
def listed() -> frozenset[str]:
    """The digests of what was accepted."""
    heading, *digests = LIST.read_text().split() if LIST.exists() else [""]
    return frozenset() if anew or (strict and heading != _heading()) else frozenset(digests)


def write_list(digests: set[str]) -> None:
    """List these sources as accepted. The first line says by what."""
    LIST.write_text("\n".join([_heading(), *sorted(digests)]) + "\n")


def _heading() -> str:
    return f"NVRTC-{'.'.join(map(str, driver.version()))}-{'-'.join((ARCHITECTURE, *OTHERS))}"
