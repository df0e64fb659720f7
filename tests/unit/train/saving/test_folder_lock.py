"""One run at a time saves to a folder; the error names the process that does."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import caldera as cd
from caldera import nn
from caldera.base import file_lock
from caldera.errors import CheckpointError
from caldera.train.saving import folder_lock
from caldera.train.saving.folder_lock import FolderLock

X = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")

HOLDER = """
import os, sys
from pathlib import Path
from caldera.train.saving.folder_lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
lock.acquire()
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def fit(folder: Path, resume: bool = False, callbacks: tuple[cd.Callback, ...] = ()) -> None:
    model = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(1)], loss="mse")
    model.fit(X, X[:, :1], checkpoint=folder, resume=resume, callbacks=callbacks, verbose=0)


@pytest.mark.parametrize("resume", [False, True])
def test_another_process_is_named_and_its_end_frees_the_folder(
    tmp_path: Path, resume: bool
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    number = holder.stdout.readline().strip()
    with pytest.raises(CheckpointError, match=rf"the lock of process {number} on .*, since "):
        fit(tmp_path, resume)
    holder.kill()
    holder.wait()
    fit(tmp_path, resume)
    fit(tmp_path, resume=True)


def test_two_runs_of_one_process(tmp_path: Path) -> None:
    found: list[str] = []

    class Second(cd.Callback):
        def epoch_ends(self, run: cd.Run) -> None:
            def try_it() -> None:
                with pytest.raises(CheckpointError, match="another run of this process"):
                    fit(tmp_path, resume=True)
                found.append("refused")

            thread = threading.Thread(target=try_it)
            thread.start()
            thread.join()

    fit(tmp_path, callbacks=(Second(),))
    assert found == ["refused"]
    fit(tmp_path, resume=True)


def test_a_run_that_fails_frees_the_folder(tmp_path: Path) -> None:
    class Broken(cd.Callback):
        def batch_ends(self, run: cd.Run) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, callbacks=(Broken(),))
    fit(tmp_path)
    with pytest.raises(CheckpointError, match="none from another run"):
        fit(tmp_path)
    other = cd.NeuralNetwork([nn.Input((2,)), nn.Dense(3)], loss="mse")
    with pytest.raises(CheckpointError):
        other.fit(X, np.zeros((16, 3)), checkpoint=tmp_path, resume=True, verbose=0)
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    lock = FolderLock(tmp_path)
    with pytest.warns(UserWarning, match=r"cannot lock files \(No locks available\)"):
        lock.acquire()
    lock.release()


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "odd" / folder_lock.NAME).mkdir(parents=True)
    for path, problem in (("file/checkpoints", "Not a directory"), ("odd", "Is a directory")):
        with pytest.raises(CheckpointError, match=f"can be written, got .*{problem}"):
            FolderLock(tmp_path / path).acquire()
