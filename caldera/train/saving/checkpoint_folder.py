"""A folder of checkpoints that a kill at any moment, or a flipped bit, cannot spoil.

A checkpoint is written as `step-N.tmp`, synced to the disk and renamed to `step-N`, so that one of
this name is always whole. The newest ones are kept, and the newest that verifies is loaded.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.file_cache import sync
from caldera.errors import CalderaError, CheckpointError
from caldera.train.saving.checkpoint_file import (
    Checkpoint,
    read_checkpoint,
    state_text,
    write_checkpoint,
)

_NAME = re.compile(r"step-(\d{1,18})(\.old)?")


class CheckpointFolder:
    """Checkpoints of one run; they are written in the background while training goes on.

    >>> import tempfile
    >>> import numpy as np
    >>> from caldera.train.saving.checkpoint_folder import CheckpointFolder
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = CheckpointFolder(path)
    ...     folder.save(7, {"w": np.array([1.0, 2.0])}, {"epoch": 1})
    ...     folder.wait()
    ...     found = folder.latest()
    >>> found.step, found.tensors["w"].tolist(), found.state
    (7, [1.0, 2.0], {'epoch': 1})
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise CheckpointError.build("checkpoints", expected="keep >= 1", got=f"{keep}")
        self.path = Path(path)
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # --- writing

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Copy the values and write them in the background.

        What went wrong with the one before is raised now.
        """
        self.wait()
        copies = {name: np.array(value, order="C") for name, value in tensors.items()}
        text = state_text(state)
        # A thread of its own: waiting for a disk must not keep a worker of the pool from computing.
        # Not a daemon, so that a program that ends finishes its last checkpoint.
        self._thread = threading.Thread(
            target=self._try_write, args=(step, copies, text), name="caldera-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Until everything is on the disk; raises what went wrong."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError.build(
                f"checkpoint in {self.path}",
                expected="a folder that can be written",
                got=f"{type(failure).__name__}: {failure}",
            ) from failure

    def _try_write(self, step: int, tensors: dict[str, np.ndarray], text: str) -> None:
        try:
            self._write(step, tensors, text)
        except BaseException as failure:  # raised by the next `wait`
            self._failure = failure

    def _write(self, step: int, tensors: dict[str, np.ndarray], text: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        final = self.path / f"step-{step}"
        unfinished = self.path / f"step-{step}.tmp"
        _remove(unfinished)
        try:
            write_checkpoint(unfinished, step, tensors, text)
        except BaseException:
            # A full disk has no room for half a checkpoint.
            _remove(unfinished)
            raise
        if final.exists():
            # Moved aside, where `latest` still finds it: one of the two is there at any moment.
            _remove(self.path / f"{final.name}.old")
            final.rename(self.path / f"{final.name}.old")
        unfinished.rename(final)
        sync(self.path)
        self._tidy(step)

    def _tidy(self, newest: int) -> None:
        """Remove what is not needed once the checkpoint of step `newest` is on the disk."""
        steps = sorted({step for step, _ in self._found()}, reverse=True)
        # Later steps belong to a future that was given up when an earlier one was resumed.
        kept = [step for step in steps if step <= newest][: self.keep]
        for step, path in self._found():
            if step not in kept or (path.suffix == ".old" and path.with_suffix("").exists()):
                _remove(path)
        for path in self.path.glob("step-*.tmp"):
            _remove(path)

    # --- reading

    def steps(self) -> list[int]:
        """The steps that have a checkpoint, damaged or not, the newest first."""
        return sorted({step for step, _ in self._found()}, reverse=True)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None if there has never been one.

        A damaged one is left out with a warning; if all are damaged, that is an error.
        """
        damaged = []
        # Of the two of one step the one that was moved aside is older.
        candidates = sorted(self._found(), key=lambda each: (-each[0], each[1].suffix))
        for step, path in candidates:
            try:
                return read_checkpoint(path, step)
            except (CalderaError, OSError) as problem:
                damaged.append(path.name)
                warnings.warn(
                    f"checkpoint {path} is left out: {problem}", RuntimeWarning, stacklevel=2
                )
        if damaged:
            raise CheckpointError.build(
                f"checkpoints in {self.path}",
                expected="at least one that verifies",
                got="damage in " + ", ".join(damaged),
                hint="move them away to start anew",
            )
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Folders of checkpoints that were finished; links are not followed."""
        if not self.path.is_dir():
            return []
        found = []
        for path in self.path.iterdir():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir() and not path.is_symlink():
                found.append((int(match[1]), path))
        return found


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
