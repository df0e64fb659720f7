"""Checkpoints with digests, in a folder that survives a kill at any moment or a flipped bit.

A checkpoint is written as `step-N.tmp`, synced to the disk and renamed to `step-N`, so that a
checkpoint of this name is always complete. The newest ones are kept, and the newest that verifies
is loaded.

Tensors are stored in safetensors, the remaining state in JSON. Neither safetensors nor JSON detects
a flipped bit within a number. Loaded content is therefore compared with the written digests, and is
complete or an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.arguments import require
from caldera.base.file_cache import sync, write_file
from caldera.base.plain_data import decoded, encoded
from caldera.core.tensor.dtype import canonical, little_endian
from caldera.core.tensor.shape import size
from caldera.errors import CalderaError, CheckpointError
from caldera.io import save_safetensors
from caldera.io.files import bytes_of
from caldera.io.safetensors_files import safetensors_arrays

FORMAT = "caldera-checkpoint-1"
TENSORS = "tensors.safetensors"
STATE = "state.json"
LARGEST_STATE = 256 << 20
"""Maximum bytes of JSON that are read."""
_LARGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class Checkpoint:
    """Verified contents of a checkpoint."""

    step: int
    tensors: dict[str, np.ndarray]
    state: dict[str, Any]


def state_text(state: Mapping[str, Any]) -> str:
    """Return the state of a run as JSON, which has to be able to hold it.

    >>> state_text({"best": float("inf")})
    '{"best": {"float": "inf"}}'
    """
    try:
        return json.dumps(encoded(dict(state)), allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise CheckpointError.build(
            "checkpoint", expected="a state that JSON can hold", got=str(problem)
        ) from None


def state_of(text: str) -> dict[str, Any]:
    """Return the state that `state_text` wrote.

    >>> state_of(state_text({"best": float("inf")}))
    {'best': inf}
    """
    return decoded(json.loads(text))


def write_checkpoint(path: Path, step: int, tensors: Mapping[str, np.ndarray], text: str) -> None:
    """Write a checkpoint to a new folder `path`, and wait until it is on the disk."""
    path.mkdir()
    save_safetensors(path / TENSORS, tensors)
    content = {
        "step": step,
        "tensors": {name: described(array) for name, array in tensors.items()},
        "state": json.loads(text),
    }
    whole = {"format": FORMAT, "digest": digest(_canonical(content)), "content": content}
    write_file(path / STATE, json.dumps(whole, allow_nan=False), durable=True)
    sync(path / TENSORS)
    sync(path)


def read_checkpoint(path: Path, step: int) -> Checkpoint:
    """Read and verify the folder `path`; any damage raises an error that describes it."""
    content = _content(path / STATE)
    where = f"checkpoint {path.name}"
    require(content["step"] == step, where, f"step {step}", content["step"], error=CheckpointError)
    wanted = sum(nbytes(each, f"{where}, {name!r}") for name, each in content["tensors"].items())
    there = (path / TENSORS).stat().st_size
    require(
        wanted <= there <= wanted + _LARGEST_HEADER,
        where,
        f"{wanted} bytes of tensors",
        f"a file of {there} bytes",
        error=CheckpointError,
    )
    tensors = safetensors_arrays(path / TENSORS)
    verify(where, content["tensors"], tensors)
    return Checkpoint(step, tensors, decoded(content["state"]))


def _content(path: Path) -> dict[str, Any]:
    where = f"checkpoint {path.parent.name}"
    require(
        path.stat().st_size <= LARGEST_STATE,
        where,
        f"at most {LARGEST_STATE} bytes of JSON",
        path.stat().st_size,
        error=CheckpointError,
    )
    try:
        whole = json.loads(path.read_bytes())
        content: Any = whole["content"]
        intact = (
            whole["format"] == FORMAT
            and whole["digest"] == digest(_canonical(content))
            and set(content) == {"step", "tensors", "state"}
            and isinstance(content["tensors"], dict)
            and isinstance(content["state"], dict)
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        intact = False
    require(
        intact,
        f"{where}, {path.name}",
        f"the JSON of {FORMAT} with its digest",
        "something else",
        "the file is damaged",
        error=CheckpointError,
    )
    return content


def verify(where: str, expected: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
    """Raise if tensors differ from their recorded descriptions."""
    problems = [f"{name!r} missing" for name in expected if name not in tensors]
    problems += [f"{name!r} unexpected" for name in tensors if name not in expected]
    for name in sorted(expected.keys() & tensors.keys()):
        found = described(tensors[name])
        other = [part for part in found if found[part] != expected[name].get(part)]
        problems += [f"{name!r} with another {part}" for part in other[:1]]
    require(
        not problems,
        where,
        "the tensors that were saved",
        "; ".join(problems[:8]),
        "the file is damaged",
        CheckpointError,
    )


def described(array: np.ndarray) -> dict[str, Any]:
    """Return the description of a tensor for later verification."""
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "digest": digest(bytes_of(little_endian(np.ascontiguousarray(array)))),
    }


def nbytes(description: Any, where: str) -> int:
    """Return the size of a tensor in bytes, from its description."""
    try:
        return (
            size(tuple(description["shape"]))
            * canonical(description["dtype"], stored=True).itemsize
        )
    except (CalderaError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError.build(where, expected="shape and dtype", got=str(problem)) from None


def digest(content: str | memoryview) -> str:
    """Return the digest of a text or of bytes."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _canonical(content: Any) -> str:
    """Return a canonical JSON text: equal for equal content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


_NAME = re.compile(r"step-(\d{1,18})(\.old)?")


class CheckpointFolder:
    """Checkpoints of a run, written in the background during training.

    >>> import tempfile
    >>> import numpy as np
    >>> from caldera.train.saving.checkpoint import CheckpointFolder
    >>> with tempfile.TemporaryDirectory() as path:
    ...     folder = CheckpointFolder(path)
    ...     folder.save(7, {"w": np.array([1.0, 2.0])}, {"epoch": 1})
    ...     folder.wait()
    ...     found = folder.latest()
    >>> found.step, found.tensors["w"].tolist(), found.state
    (7, [1.0, 2.0], {'epoch': 1})
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 2) -> None:
        require(keep >= 1, "checkpoints", "keep >= 1", keep, error=CheckpointError)
        self.path = Path(path)
        self.keep = keep
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    # --- writing

    @property
    def busy(self) -> bool:
        """True while a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, step: int, tensors: Mapping[str, np.ndarray], state: Mapping[str, Any]) -> None:
        """Copy the values and write them in the background.

        An error in the previous write is raised now.
        """
        self.wait()
        copies = {name: np.array(value, order="C") for name, value in tensors.items()}
        text = state_text(state)
        # A separate thread: waiting for a disk must not keep a worker of the pool from computing.
        # Not a daemon, so that a program that ends finishes its last checkpoint.
        self._thread = threading.Thread(
            target=self._try_write, args=(step, copies, text), name="caldera-checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is on disk; raise the error of a failed write."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError.build(
                f"checkpoint in {self.path}",
                expected="a folder that can be written",
                got=str(failure)
                if isinstance(failure, CalderaError)
                else f"{type(failure).__name__}: {failure}",
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
        """Remove obsolete folders once the checkpoint of step `newest` is on the disk."""
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
        """Return the steps that have a checkpoint, damaged or not, the newest first."""
        return sorted({step for step, _ in self._found()}, reverse=True)

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, or None if there has never been one.

        A damaged one is left out with a warning; if all are damaged, that is an error.
        """
        damaged = []
        # Of two checkpoints of the same step, the one with the suffix .old is older.
        candidates = sorted(self._found(), key=lambda each: (-each[0], each[1].suffix))
        for step, path in candidates:
            try:
                return read_checkpoint(path, step)
            except (CalderaError, OSError) as problem:
                damaged.append(path.name)
                warnings.warn(
                    f"checkpoint {path} is left out: {problem}", RuntimeWarning, stacklevel=2
                )
        require(
            not damaged,
            f"checkpoints in {self.path}",
            "at least one that verifies",
            "damage in " + ", ".join(damaged),
            "move them away to start again",
            error=CheckpointError,
        )
        return None

    def _found(self) -> list[tuple[int, Path]]:
        """Return folders of checkpoints that were finished; links are not followed."""
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
