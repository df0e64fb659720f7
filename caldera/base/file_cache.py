"""Atomic file writes, and caches that use only complete and authentic files.

A file is written under another name in the same folder and renamed when it is complete. Readers see
either the complete file or no file, and simultaneous writers cannot corrupt each other's work. An
entry of a cache starts with a code computed from its key, its content and a secret in each folder,
so that only this user can create entries. Caches are private: their folders and files are
accessible only to this user, and files that other users could have written are not used.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from caldera.base.config import settings
from caldera.base.file_access import checked_file_name, read_own_file, why_folder_is_unsafe
from caldera.errors import CalderaError, FileWriteError

_MAGIC = b"caldera cache 2 "
_FORMAT = ".2"
"""At the end of each entry's name: other versions of Caldera may use the same folder."""
_CODE_BYTES = 16
_HEAD = len(_MAGIC) + 2 * _CODE_BYTES + 1
_SECRET = ".secret"
_SECRET_BYTES = 32
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_STALE_S = 3600.0
"""A temporary file that has not been written to for this time was left by a process that is gone.
"""
_swept: set[Path] = set()
_warned: set[Path] = set()


@contextmanager
def atomic_write(
    path: Path, *, durable: bool = False, private: bool = False, replace: bool = True
) -> Iterator[Path]:
    """Yield a temporary path; the file replaces `path` on success, and is removed on failure.

    With `durable` it is flushed to disk before it is renamed. With `private` no other user can read
    the file, or enter the folders created for it. Without `replace` an existing file is kept. Links
    are followed, and special files (a pipe, a terminal) are written to directly, except with
    `private`, which allows neither.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "notes.txt") as unfinished:
    ...         _ = unfinished.write_text("whole")
    ...     [(path.name, path.read_text()) for path in Path(folder).iterdir()]
    [('notes.txt', 'whole')]
    """
    if not private:
        path = path.resolve()
        unfinished_already = _TEMPORARY.fullmatch(path.name) and path.exists()
        if unfinished_already or (path.exists() and not path.is_file()):
            yield path
            return
    _make_folder(path.parent, 0o700 if private else 0o777)
    _sweep(path.parent)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.tmp")
    try:
        # Opened for writing it keeps the mode that it is made with here.
        mode = 0o600 if private else 0o666
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        if not private and path.exists():
            shutil.copymode(path, temporary)
        yield temporary
        if durable:
            sync(temporary)
        if replace:
            temporary.replace(path)
        else:
            _rename_unless_there(temporary, path)
        if durable:
            sync(path.parent)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_file(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a file completely, or leave the existing one; its folder is created if it is missing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "new" / "notes.txt", "whole")
    ...     (Path(folder) / "new" / "notes.txt").read_text()
    'whole'
    """
    with atomic_write(path, durable=durable) as unfinished:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)


_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
"""NumPy's message for a full disk."""


def write_error(path: Path, error: OSError) -> OSError:
    """Return the error to raise for a disk that is full or refuses a file; any other as it is."""
    refused = error.errno in _REFUSED or _CUT_SHORT.fullmatch(str(error))
    if isinstance(error, CalderaError) or not refused:
        return error
    return FileWriteError.build(
        str(path),
        expected="a disk with enough free space for the file",
        got=(error.strerror or str(error)).lower(),
        hint="earlier files are unchanged; free space, or use another folder",
    )


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove unfinished files of killed processes; once per process and folder."""
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_S:
                    os.unlink(entry)


def _rename_unless_there(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        return
    except OSError:
        # A file system without links: simultaneous writers replace each other's file.
        if not path.exists():
            temporary.replace(path)


def _make_folder(folder: Path, mode: int) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent, mode)
        folder.mkdir(mode, exist_ok=True)


class FileCache:
    """The entries of a folder in `settings.cache_dir`, by key. A key must be a valid file name.

    An entry that cannot be read, or has been changed, counts as missing.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, settings.override(cache_dir=folder):
    ...     cache = FileCache("examples")
    ...     cache.write("a", b"content")
    ...     cache.read("a"), cache.read("b"), list(cache)
    (b'content', None, ['a'])
    """

    def __init__(self, name: str) -> None:
        self.name = checked_file_name(name, "cache")

    @property
    def folder(self) -> Path:
        """Folder of the entries."""
        return settings.cache_dir / self.name

    def path(self, key: str) -> Path:
        """Return the file of an entry."""
        return self.folder / f"{checked_file_name(key, self.name)}{_FORMAT}"

    def read(self, key: str) -> bytes | None:
        """Return an entry; None if it is missing, damaged or possibly written by others."""
        if not self.path(key).exists() or not self._is_safe():
            return None
        try:
            found = read_own_file(self.path(key))
            secret = self._secret()
        except OSError as problem:
            if isinstance(problem, PermissionError):
                self._warn(str(problem.strerror))
            return None
        content = found[_HEAD:]
        return content if hmac.compare_digest(found[:_HEAD], _head(secret, key, content)) else None

    def write(self, key: str, content: bytes) -> None:
        """Keep something. Raises OSError where the folder cannot be written, or is not safe."""
        secret = self.secret()
        with atomic_write(self.path(key), private=True) as unfinished:
            unfinished.write_bytes(_head(secret, key, content) + content)

    def secret(self) -> bytes:
        """Return 32 random bytes that only this user can read, made by the first caller.

        Raises OSError where the folder cannot be written, or is not safe.
        """
        if not self._is_safe():
            raise PermissionError(errno.EPERM, "other users can write there", str(self.folder))
        try:
            return self._secret()
        except OSError as problem:
            if not isinstance(problem, FileNotFoundError):
                # Damaged, or others may know it.
                (self.folder / _SECRET).unlink(missing_ok=True)
            # Of several simultaneous writers the first one counts.
            with atomic_write(self.folder / _SECRET, private=True, replace=False) as unfinished:
                unfinished.write_bytes(os.urandom(_SECRET_BYTES))
            return self._secret()

    def _secret(self) -> bytes:
        found = read_own_file(self.folder / _SECRET)
        if len(found) != _SECRET_BYTES:
            raise OSError(errno.EINVAL, "a secret of another length", str(self.folder))
        return found

    def _is_safe(self) -> bool:
        reason = why_folder_is_unsafe(self.folder)
        if reason:
            self._warn(reason)
        return not reason

    def _warn(self, reason: str) -> None:
        if self.folder not in _warned:
            _warned.add(self.folder)
            warnings.warn(
                f"code in the cache {self.folder} would be run, and {reason}: it is not used; "
                "restrict it to your user (chown, chmod go-w), or set CALDERA_CACHE to such a "
                "folder",
                RuntimeWarning,
                stacklevel=4,
            )

    def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """Return an entry, made now if it is missing. A cache that cannot be written only costs
        time.
        """
        content = self.read(key)
        if content is None:
            content = make()
            with suppress(OSError):
                self.write(key, content)
        return content

    def read_json(self, key: str) -> Any:
        """Return content written by `write_json`; None if it is missing or damaged."""
        content = self.read(key)
        try:
            return None if content is None else json.loads(content)
        except (ValueError, RecursionError):
            return None

    def write_json(self, key: str, content: Any) -> None:
        """Keep what JSON can hold. Raises OSError where the folder cannot be written."""
        self.write(key, json.dumps(content).encode())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys of all entries, in order; some entries may be damaged."""
        names = sorted(path.name for path in self.folder.glob(f"*{_FORMAT}"))
        return (name.removesuffix(_FORMAT) for name in names if not name.startswith("."))

    def clear(self) -> None:
        """Delete everything, including unfinished files of a killed process."""
        for path in self.folder.glob("*"):
            with suppress(OSError):
                path.unlink()


def _head(secret: bytes, key: str, content: bytes) -> bytes:
    # Includes the key: otherwise an entry could be renamed to another key and run in its place.
    code = hashlib.blake2b(key.encode() + b"\0", key=secret, digest_size=_CODE_BYTES)
    code.update(content)
    return _MAGIC + code.hexdigest().encode() + b"\n"
