"""A file of lines that Optuna's journal storage reads and writes.

Optuna's own backend locks with a file that a killed process leaves behind, so that the next one
waits half a minute, and syncs the disk for every line. Here the kernel holds the lock, which ends
with its process; a line that a killed process left unfinished is cut off; and the disk is synced
about once a second. What was written outlives its process in any case.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from caldera.errors import DataError

try:
    import fcntl
except ImportError:  # no such locks on Windows, where one process writes all the same
    fcntl = None  # type: ignore[assignment]

_SYNC_EVERY_S = 1.0
_held: set[int] = set()
"""Files whose locks this process holds."""
_MOST_BYTES = 1 << 32


class Journal:
    """What `optuna.storages.JournalStorage` takes as its backend.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     journal = Journal(Path(folder) / "journal.log")
    ...     journal.append_logs([{"op": 1}, {"op": 2}])
    ...     list(Journal(Path(folder) / "journal.log").read_logs(1))
    [{'op': 2}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = [0]
        """Where each line begins, and where the last one ends."""
        self._own: tuple[int, int, list[bytes]] = (0, 0, [])
        """The last lines that were written here: the number of the first, where the last ends."""
        self._last_sync = 0.0
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with open(path, "r+b") as file, _held_by(file):
            _cut_unfinished_line(file)

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The lines from this number on; one that is still being written is left for later."""
        size = os.stat(self.path).st_size
        if size > _MOST_BYTES:
            raise DataError.build(
                str(self.path), expected="a journal of a study", got="a huge file"
            )
        number, end, lines = self._own
        if (number, end) == (log_number_from, size):
            # As Optuna asks after each line that it has written, if nobody else has written any.
            for line in lines:
                yield self._parsed(line, number)
            return
        number = min(log_number_from, len(self._offsets) - 1)
        with open(self.path, "rb") as file:
            file.seek(self._offsets[number])
            for line in file:
                if not line.endswith(b"\n"):
                    return
                if number + 1 == len(self._offsets):
                    self._offsets.append(self._offsets[number] + len(line))
                if number >= log_number_from:
                    yield self._parsed(line, number)
                number += 1

    def _parsed(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise DataError.build(
                f"{self.path}, line {number + 1}",
                expected="an entry of a study's journal",
                got=repr(line[:60]),
                hint="the file is damaged",
            )
        return found

    def append_logs(self, logs: Sequence[dict[str, Any]]) -> None:
        """Write lines at the end, all of them or none."""
        lines = _lines(logs)
        with open(self.path, "ab") as file, _held_by(file):
            begin = os.fstat(file.fileno()).st_size
            # At once: who is killed between two writes would leave a part.
            file.write(b"".join(lines))
            file.flush()
            if begin == self._offsets[-1]:
                number = len(self._offsets) - 1
                self._offsets += [*accumulate(map(len, lines), initial=begin)][1:]
                self._own = (number, self._offsets[-1], lines)
            if time.monotonic() - self._last_sync > _SYNC_EVERY_S:
                os.fsync(file.fileno())
                self._last_sync = time.monotonic()


def _lines(logs: Iterable[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs]


def _cut_unfinished_line(file: BinaryIO) -> None:
    end = file.seek(0, os.SEEK_END)
    size = end
    while size > 0:
        start = max(size - 65536, 0)
        file.seek(start)
        found = file.read(size - start).rfind(b"\n")
        if found >= 0:
            size = start + found + 1
            break
        size = start
    if size < end:
        file.truncate(size)


@contextmanager
def held_lock(path: Path, within_s: float | None = None) -> Iterator[bool]:
    """Hold a lock that ends with this process; False if another still has it after so long."""
    with open(path, "ab") as file, _held_by(file, within_s) as is_held:
        yield is_held


@contextmanager
def _held_by(file: BinaryIO, within_s: float | None = None) -> Iterator[bool]:
    """The same with the lock of an open file."""
    if fcntl is None:
        yield True
        return
    if within_s is None:
        fcntl.flock(file, fcntl.LOCK_EX)
    elif not _locked_within(file.fileno(), within_s):
        yield False
        return
    _held.add(file.fileno())
    try:
        yield True
    finally:
        _held.discard(file.fileno())
        fcntl.flock(file, fcntl.LOCK_UN)


def _locked_within(file: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)


def _close_held() -> None:
    """In a child after a fork: a lock lasts as long as any process has its file open, and a worker
    may outlive its master by a moment."""
    for file in _held:
        os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_held)
