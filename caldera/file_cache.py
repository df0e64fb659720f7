"""Files that are written whole or not at all, and caches of files that are believed only if whole.

A file is written under another name in its own folder and renamed when it is complete: readers see
all of it or nothing, and two processes that write at once cannot spoil each other's work. An entry
of a cache begins with a digest of what follows. Caches are private: their folders and files are for
this user alone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from caldera.config import settings

_MAGIC = b"caldera cache 1 "
_DIGEST_BYTES = 16
_HEAD = len(_MAGIC) + 2 * _DIGEST_BYTES + 1
_TEMPORARY = ".tmp"


@contextmanager
def atomic_write(path: Path, *, durable: bool = False, private: bool = False) -> Iterator[Path]:
    """A name to write to; the file takes the place of `path` if all went well, and else is removed.

    With `durable` it is on the disk before it gets its name; with `private` nobody else may read
    the file, nor look into the folders that had to be made for it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "notes.txt") as unfinished:
    ...         _ = unfinished.write_text("whole")
    ...     [(path.name, path.read_text()) for path in Path(folder).iterdir()]
    [('notes.txt', 'whole')]
    """
    _make_folder(path.parent, 0o700 if private else 0o777)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}{_TEMPORARY}")
    try:
        # Opened for writing it keeps the mode that it is made with here.
        mode = 0o600 if private else 0o666
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path, mode: int) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)


class FileCache:
    """The entries of one folder in `settings.cache_dir`, by key. A key must be fit for a file name.

    Whatever cannot be read, or is not what was written, counts as not there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, settings.override(cache_dir=folder):
    ...     cache = FileCache("examples")
    ...     cache.write("a", b"content")
    ...     cache.read("a"), cache.read("b"), list(cache)
    (b'content', None, ['a'])
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def folder(self) -> Path:
        """Where the entries are."""
        return settings.cache_dir / self.name

    def path(self, key: str) -> Path:
        """The file of an entry."""
        return self.folder / key

    def read(self, key: str) -> bytes | None:
        """What was written; None if there is nothing, or it is damaged."""
        try:
            found = self.path(key).read_bytes()
        except OSError:
            return None
        content = found[_HEAD:]
        return content if found[:_HEAD] == _head(content) else None

    def write(self, key: str, content: bytes) -> None:
        """Keep something. Raises OSError where the folder cannot be written."""
        with atomic_write(self.path(key), private=True) as unfinished:
            unfinished.write_bytes(_head(content) + content)

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """What is kept, or is made now. A cache that cannot be written only costs time."""
        content = self.read(key)
        if content is None:
            content = make()
            with suppress(OSError):
                self.write(key, content)
        return content

    def read_json(self, key: str) -> Any:
        """What `write_json` wrote; None if there is nothing, or it is damaged."""
        content = self.read(key)
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError):
            return None

    def write_json(self, key: str, content: Any) -> None:
        """Keep what JSON can hold. Raises OSError where the folder cannot be written."""
        self.write(key, json.dumps(content).encode())

    def __iter__(self) -> Iterator[str]:
        """The keys of all files, in order; not all need be entries."""
        names = sorted(path.name for path in self.folder.glob("*"))
        return (name for name in names if not name.startswith("."))

    def clear(self) -> None:
        """Delete everything, also what a process that was killed has left unfinished."""
        for path in self.folder.glob("*"):
            with suppress(OSError):
                path.unlink()


def _head(content: bytes) -> bytes:
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
    return _MAGIC + digest.encode() + b"\n"
