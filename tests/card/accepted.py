"""Which sources compile for a real card: those that NVIDIA's compiler has accepted are listed.

Compiling a source with NVRTC takes longer than all the rest of its test, and gives the same answer
as yesterday unless the source, a header of it or the architecture has changed. So accepted.txt
holds digests of what was accepted; what is not listed is compiled at once, wherever NVRTC is
installed, and a test whose source it refuses fails. `make accept-card-sources` writes the list
anew; if another version of NVRTC is installed by then, it compiles all of them.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from caldera.kernels.cuda.runtime import nvrtc
from caldera.kernels.cuda.runtime.driver import headers
from tests.object_cache import CACHE, cached_file

LIST = Path(__file__).parent / "accepted.txt"
ARCHITECTURE = "sm_90"
_INCLUDE = re.compile(r'#include "([^"]+)"')

needed: set[str] = set()
"""The digests of all sources that this process has asked for."""
strict = False
"""Whether only what this very compiler has accepted counts."""


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
    texts = [source, *included(source).values(), ARCHITECTURE]
    code = "\n".join(map(_code, texts))
    return hashlib.blake2b(code.encode(), digest_size=6).hexdigest()


def check_for_a_card(source: str) -> None:
    """Compile a source for a real card, unless it is known that it compiles."""
    digest = digest_of(source)
    if digest in needed:
        return
    if digest not in listed() and nvrtc.library() is not None:
        folder = CACHE / "accepted" / ".".join(map(str, nvrtc.version()))
        folder.mkdir(parents=True, exist_ok=True)
        cached_file(folder / digest, lambda file: file.write_bytes(_compiled(source)[:0]))
    needed.add(digest)


def _compiled(source: str) -> bytes:
    return nvrtc.compile_source(source, included(source), ARCHITECTURE)


@cache
def listed() -> frozenset[str]:
    """The digests of what was accepted."""
    heading, *digests = LIST.read_text().split() if LIST.exists() else [""]
    return frozenset() if strict and heading != _heading() else frozenset(digests)


def write_list(digests: set[str]) -> None:
    """List these sources as accepted. The first line says by what."""
    LIST.write_text("\n".join([_heading(), *sorted(digests)]) + "\n")


def _heading() -> str:
    return f"NVRTC-{'.'.join(map(str, nvrtc.version()))}-{ARCHITECTURE}"
