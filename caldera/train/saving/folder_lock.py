"""A lock on a folder that one run saves to, with the name of the process that has it."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from datetime import datetime
from pathlib import Path
from typing import IO

from caldera.errors import CheckpointError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
LONGEST_NAME = 400
# A lock of POSIX keeps out other processes, but no thread of this one; and it is lost as soon as
# any other handle of the file is closed here.
_held: set[str] = set()
_guard = threading.Lock()


class FolderLock:
    """Keeps other runs from saving to a folder, until `release` or the end of this process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FolderLock(Path(folder)), FolderLock(Path(folder))
    ...     first.acquire()
    ...     try:
    ...         second.acquire()
    ...     except CheckpointError as error:
    ...         print(str(error).partition("got ")[2])
    ...     first.release()
    another run of this process; wait until it ends, or name another folder
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock, unless this one has it; a CheckpointError if another has."""
        if self._file is not None:
            return
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._file = file = self._taken(str(self._path.resolve()))
            now = datetime.now().astimezone().isoformat(" ", "seconds")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {now}\n")
            file.flush()
        except OSError as problem:
            self.release()
            raise CheckpointError.build(
                f"checkpoints in {self._path}",
                expected="a folder that can be written to",
                got=f"{problem.strerror or problem}",
                hint="name another folder, or free space and grant write access",
            ) from problem

    def _taken(self, name: str) -> IO[str]:
        """Open the file and lock it."""
        with _guard:
            if name in _held:
                raise self._refusal("another run of this process")
            file = (self._path / NAME).open("a+", encoding="utf-8")
            try:
                if fcntl is not None:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                file.seek(0)
                holder = file.read(LONGEST_NAME).strip()
                file.close()
                raise self._refusal(f"the lock of {holder or 'another process'}") from None
            except OSError as problem:
                # Some network file systems have no locks: training goes on without one.
                warnings.warn(
                    f"checkpoints in {self._path}: its file system cannot lock files "
                    f"({problem.strerror or problem}); let no other run save there",
                    stacklevel=2,
                )
            _held.add(name)
        return file

    def release(self) -> None:
        """Let other runs save to the folder."""
        if self._file is not None:
            with _guard:
                _held.discard(str(self._path.resolve()))
                self._file.close()
            self._file = None

    def _refusal(self, holder: str) -> CheckpointError:
        return CheckpointError.build(
            f"checkpoints in {self._path}",
            expected="a folder to which no other run saves",
            got=holder,
            hint="wait until it ends, or name another folder",
        )
