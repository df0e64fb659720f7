"""Files of each format with damage: every one is refused in words, or read."""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bad_calls.good_files import Format, write_formats
from tests.bad_calls.outcome import raw_exception

EACH = 27
"""Damaged copies of each format."""
MOST_BYTES = 256 << 20
"""Memory that reading a damaged file of a few kilobytes may take."""

Damage = Callable[[bytes, random.Random], bytes]


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))] if content else b""


def _flipped(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _start_flipped(content: bytes, draw: random.Random) -> bytes:
    """Damage where formats have their numbers: sizes, counts, types."""
    head = bytearray(content[:128])
    head[draw.randrange(len(head))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(head) + content[128:]


def _digit_changed(content: bytes, draw: random.Random) -> bytes:
    """Other numbers in headers that are text."""
    digits = [place for place, byte in enumerate(content[:4096]) if chr(byte).isdigit()]
    if not digits:
        return _flipped(content, draw)
    place = draw.choice(digits)
    other = draw.choice((b"-1", b"9" * 12, b"1e999", b"null", b'"a"', b"[]", b"{}"))
    return content[:place] + other + content[place + 1 :]


def _wrong_magic(content: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(8) + content[8:]


def _longer(content: bytes, draw: random.Random) -> bytes:
    return content + draw.randbytes(draw.choice((1, 100)))


def _empty(content: bytes, draw: random.Random) -> bytes:
    return b""


def _noise(content: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(len(content))


def _repeated(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content))
    return content[:start] + content[start : start + 64] * 2 + content[start + 64 :]


DAMAGES: tuple[Damage, ...] = (
    _cut,
    _cut,
    _flipped,
    _flipped,
    _start_flipped,
    _start_flipped,
    _digit_changed,
    _digit_changed,
    _wrong_magic,
    _longer,
    _empty,
    _noise,
    _repeated,
)


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Format]:
    return write_formats(tmp_path_factory.mktemp("formats"))


def damaged_files(form: Format, others: list[Path], folder: Path, draw: random.Random) -> str:
    """A copy in `folder` of which one file is damaged; says how."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(form.folder, folder)
    path = folder / draw.choice(form.files).relative_to(form.folder)
    kind = draw.randrange(len(DAMAGES) + 3)
    if kind < len(DAMAGES):
        damage = DAMAGES[kind]
        path.write_bytes(damage(path.read_bytes(), draw))
        return f"{path.name} {damage.__name__}"
    path.unlink()
    if kind == len(DAMAGES):
        path.mkdir()
        return f"{path.name} is a folder"
    if kind == len(DAMAGES) + 1:
        return f"{path.name} is missing"
    other = draw.choice(others)
    shutil.copy(other, path)
    return f"{path.name} is {other.name}"


def test_valid_files_are_read(formats: dict[str, Format]) -> None:
    for form in formats.values():
        assert form.files
        form.read(form.folder)


@pytest.mark.filterwarnings("ignore:checkpoint")
def testdamaged_files_are_refused_in_words(formats: dict[str, Format], tmp_path: Path) -> None:
    draw = random.Random(7)
    others = [path for form in formats.values() for path in form.files]
    raw: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = 0
    for name, form in formats.items():
        for _ in range(EACH):
            how = damaged_files(form, others, tmp_path / "damaged", draw)
            error = raw_exception(lambda form=form: form.read(tmp_path / "damaged"))
            count += 1
            if error is not None:
                raw.append(f"{name}, {how}: {type(error).__name__}: {error}")
    assert count >= 500
    assert not raw, "\n".join(raw)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert grown < MOST_BYTES
