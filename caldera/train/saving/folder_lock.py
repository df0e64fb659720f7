"""A lock on a folder that one run saves to, with the name of the process that has it."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

from caldera.base.file_lock import file_lock
from caldera.errors import CheckpointError

NAME = ".lock"
LONGEST_NAME = 400


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
        self._held: ExitStack | None = None

    def acquire(self) -> None:
        """Take the lock, unless this one has it; a CheckpointError if another has."""
        if self._held is not None:
            return
        with ExitStack() as stack:
            try:
                self._path.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((self._path / NAME).open("a+", encoding="utf-8"))
                is_held = stack.enter_context(file_lock(file, 0.0))
                file.seek(0)
                holder = file.read(LONGEST_NAME).strip()
                if is_held:
                    now = datetime.now().astimezone().isoformat(" ", "seconds")
                    file.truncate(0)
                    file.write(f"{_this_process()}, since {now}\n")
                    file.flush()
            except (OSError, ValueError) as error:
                raise CheckpointError.build(
                    f"checkpoints in {self._path}",
                    expected="a folder that can be written",
                    got=f"{error}",
                ) from error
            if not is_held:
                is_own = holder.startswith(f"{_this_process()},")
                named = f"the lock of {holder or 'another process'}"
                raise CheckpointError.build(
                    f"checkpoints in {self._path}",
                    expected="a folder to which no other run saves",
                    got="another run of this process" if is_own else named,
                    hint="wait until it ends, or name another folder",
                )
            self._held = stack.pop_all()

    def release(self) -> None:
        """Let other runs save to the folder."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"
