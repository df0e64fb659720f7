"""Locks on files, which end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # no such locks on Windows, where one process writes all the same
    fcntl = None  # type: ignore[assignment]

_locked_files: set[int] = set()
"""Files whose locks this process holds."""


@contextmanager
def held_lock(path: Path, within_s: float | None = None) -> Iterator[bool]:
    """Hold a lock that ends with this process; False if another still has it after so long."""
    with open(path, "ab") as file, file_lock(file, within_s) as is_held:
        yield is_held


@contextmanager
def file_lock(file: IO[Any], within_s: float | None = None) -> Iterator[bool]:
    """The same with the lock of an open file; each opened instance of the file locks separately."""
    if fcntl is None:
        yield True
        return
    if within_s is None:
        _lock(file.fileno(), fcntl.LOCK_EX)
    elif not _locked_within(file.fileno(), within_s):
        yield False
        return
    _locked_files.add(file.fileno())
    try:
        yield True
    finally:
        _locked_files.discard(file.fileno())
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _locked_within(file: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if time.monotonic() >= until:
            return False
        time.sleep(0.01)
    return True


def _lock(file: int, flags: int) -> bool:
    """Return False if another process has the lock; warn if the file system has no locks."""
    try:
        fcntl.flock(file, flags)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as problem:
        warnings.warn(
            f"the file system cannot lock files ({problem.strerror or problem}); "
            "let no other program write to them",
            stacklevel=3,
        )
    return True


def _close_locked() -> None:
    """In a child after a fork: a lock lasts as long as any process has its file open, and a worker
    may outlive its master by a moment."""
    for file in _locked_files:
        os.close(file)
    _locked_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locked)
