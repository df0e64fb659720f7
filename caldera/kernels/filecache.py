"""Compiled code on disk: written whole or not at all, and read back only if nothing was damaged."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

_MAGIC = b"caldera object 1\n"
_HEAD = len(_MAGIC) + 16


def read_kept(file: Path) -> bytes | None:
    """The code kept in a file; None if there is none or the file is damaged."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    code = content[_HEAD:]
    if content[: len(_MAGIC)] != _MAGIC or _checksum(code) != content[len(_MAGIC) : _HEAD]:
        return None
    return code


def write_kept(file: Path, code: bytes) -> None:
    """Keep code. A cache that cannot be written only costs time, so failures are ignored."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, suffix=".tmp")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(_MAGIC + _checksum(code) + code)
        os.replace(temporary, file)
    except OSError:
        return


def _checksum(code: bytes) -> bytes:
    return hashlib.blake2b(code, digest_size=16).digest()
