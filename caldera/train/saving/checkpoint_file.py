"""One checkpoint on the disk: tensors in safetensors, the rest in JSON, and digests of both.

The format safetensors alone accepts a flipped bit, and so does JSON within a number: what is read
here is compared with the digests that were written, and is whole or an error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caldera.base.file_cache import sync, write_file
from caldera.base.plain_data import decoded, encoded
from caldera.core.tensor.convert import little_endian
from caldera.core.tensor.dtype import canonical
from caldera.core.tensor.shape import size
from caldera.errors import CalderaError, CheckpointError
from caldera.io import save_safetensors
from caldera.io.files import bytes_of
from caldera.io.safetensors_files import safetensors_arrays

FORMAT = "caldera-checkpoint-1"
TENSORS = "tensors.safetensors"
STATE = "state.json"
LARGEST_STATE = 256 << 20
"""Bytes of JSON that are still read."""
_LARGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds, verified."""

    step: int
    tensors: dict[str, np.ndarray]
    state: dict[str, Any]


def state_text(state: Mapping[str, Any]) -> str:
    """The state of a run as JSON, which has to be able to hold it.

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
    """The state that `state_text` wrote.

    >>> state_of(state_text({"best": float("inf")}))
    {'best': inf}
    """
    return decoded(json.loads(text))


def write_checkpoint(path: Path, step: int, tensors: Mapping[str, np.ndarray], text: str) -> None:
    """Make the folder `path` with all of it, and wait until it is on the disk."""
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
    """What the folder `path` holds, verified; anything amiss is an error that says what."""
    content = _content(path / STATE)
    where = f"checkpoint {path.name}"
    if content["step"] != step:
        raise CheckpointError.build(where, expected=f"step {step}", got=f"{content['step']}")
    wanted = sum(nbytes(each, f"{where}, {name!r}") for name, each in content["tensors"].items())
    there = (path / TENSORS).stat().st_size
    if not wanted <= there <= wanted + _LARGEST_HEADER:
        raise CheckpointError.build(
            where, expected=f"{wanted} bytes of tensors", got=f"a file of {there} bytes"
        )
    tensors = safetensors_arrays(path / TENSORS)
    problems = differences(content["tensors"], tensors)
    if problems:
        raise CheckpointError.build(
            where,
            expected="the tensors that were saved",
            got="; ".join(problems[:8]),
            hint="the file is damaged",
        )
    return Checkpoint(step, tensors, decoded(content["state"]))


def _content(path: Path) -> dict[str, Any]:
    where = f"checkpoint {path.parent.name}"
    if path.stat().st_size > LARGEST_STATE:
        raise CheckpointError.build(
            where, expected=f"at most {LARGEST_STATE} bytes of JSON", got=f"{path.stat().st_size}"
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
    if not intact:
        raise CheckpointError.build(
            f"{where}, {path.name}",
            expected=f"the JSON of {FORMAT} with its digest",
            got="something else",
            hint="the file is damaged",
        )
    return content


def differences(expected: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> list[str]:
    """How tensors differ from what was written about them, in words."""
    problems = [f"{name!r} missing" for name in expected if name not in tensors]
    problems += [f"{name!r} unexpected" for name in tensors if name not in expected]
    for name in sorted(expected.keys() & tensors.keys()):
        found = described(tensors[name])
        for part in found:
            if found[part] != expected[name].get(part):
                problems.append(f"{name!r} with another {part}")
                break
    return problems


def described(array: np.ndarray) -> dict[str, Any]:
    """What is written about a tensor, to know it again."""
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "digest": digest(bytes_of(little_endian(np.ascontiguousarray(array)))),
    }


def nbytes(description: Any, where: str) -> int:
    """The bytes of a tensor that was described."""
    try:
        return size(tuple(description["shape"])) * canonical(description["dtype"]).itemsize
    except (CalderaError, KeyError, TypeError, ValueError) as problem:
        raise CheckpointError.build(where, expected="shape and dtype", got=str(problem)) from None


def digest(content: str | memoryview) -> str:
    """Of a text or of bytes, as it is written beside them."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _canonical(content: Any) -> str:
    """The same text for the same content, whoever wrote it."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"))
