"""Choices of kernels on disk: a small entry for each, named by a hash of its key.

Entries that cannot be read, or do not match their name, count as missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.base.file_cache import FileCache
from caldera.base.machine import this_machine
from caldera.base.noise import MOST_CORES, QUIET
from caldera.base.plain_data import json_digest
from caldera.core.graph import Body, Node, Spec
from caldera.core.tensor.dtype import NAMES
from caldera.kernels.table import Kernel
from caldera.kernels.workspace import BatchedNode

FORMAT = 2
_NOT_WORK = frozenset({"stream"})
"""Attributes that identify a node without affecting its work."""
_BLAS_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class TuningRecord:
    """A choice: the kernel, and the measured seconds of all kernels.

    `features` has for each kernel the training data of a model of its time, `pace` the seconds of
    the reference kernel measured with it, or 0 if unknown. `noise` is the number of cores that
    others took. A choice predicted by such a model, `is_predicted`, is not stored on
    disk.
    """

    key: dict[str, Any]
    chosen: str
    times: dict[str, float]
    features: dict[str, list[float]] = field(default_factory=dict)
    pace: float = 0.0
    noise: float = 0.0
    is_predicted: bool = False

    @property
    def is_provisional(self) -> bool:
        """True if the machine was busy during the measurement."""
        return self.noise > QUIET

    @property
    def kind(self) -> tuple[str, str, str]:
        """Family of devices, op and dtype, which have a separate model."""
        return str(self.key["family"]), str(self.key["op"]), str(self.key["outputs"][0][1])


class _NoKeyError(Exception):
    """A part of a node has no text form."""


def tuning_key(node: Node, family: str, kernels: Sequence[Kernel]) -> dict[str, Any] | None:
    """Return all that a choice depends on, as plain data; None if it cannot be written down."""
    try:
        attributes = _written_attributes(node)
    except _NoKeyError:
        return None
    # Some kernels use larger blocks if they have more workspace.
    needed = (
        {} if BatchedNode.of(node) is None else {"workspaces": [k.workspace(node) for k in kernels]}
    )
    return {
        "op": node.op.name,
        "attributes": attributes,
        "inputs": [_written(given.outputs[0]) for given in node.inputs],
        "outputs": [_written(spec) for spec in node.outputs],
        "family": family,
        "kernels": [kernel.name for kernel in kernels],
        "machine": machine_key(family),
        **needed,
    }


def _written_attributes(node: Node) -> dict[str, Any]:
    return {name: _written(value) for name, value in node.attrs.items() if name not in _NOT_WORK}


def _written(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    if isinstance(value, np.dtype):
        return NAMES[value]
    if isinstance(value, Spec):
        written = [list(value.shape), NAMES[value.dtype]]
        return written if value.order is None else [*written, list(value.order)]
    if isinstance(value, Body):
        return _written_body(value)
    raise _NoKeyError


def _written_body(body: Body) -> dict[str, Any]:
    order = body.order()
    position = {node: index for index, node in enumerate(order)}
    return {
        "nodes": [
            [node.op.name, _written_attributes(node), [position[given] for given in node.inputs]]
            for node in order
        ],
        "outputs": [position[node] for node in body.outputs],
    }


FACTS: dict[str, Callable[[], dict[str, Any]]] = {}
"""Functions by family that return the properties of its machine, except for the CPU."""


_processor: ContextVar[str] = ContextVar("processor", default="")


@contextmanager
def choosing_for(processor: str) -> Iterator[None]:
    """Context in which kernels are chosen for another processor, without measurements."""
    before = _processor.set(processor)
    try:
        with settings.override(deterministic=bool(processor) or settings.deterministic):
            yield
    finally:
        _processor.reset(before)


def machine_key(family: str = "cpu") -> dict[str, Any]:
    """Return the properties of this machine and process that affect the choice of a kernel."""
    if family in FACTS:
        return FACTS[family]()
    here = this_machine()
    return {
        "cpu": _processor.get() or here.cpu,
        "numpy": here.libraries["numpy"],
        "blas": here.libraries["blas"],
        "threads": settings.threads,
        "blas threads": [os.environ.get(name) for name in _BLAS_THREADS],
    }


# --- files


_CHOICES = FileCache("choices")
_SUMMARY = FileCache("choices-summary")
"""All choices in one entry: to open a thousand files takes seconds where a disk is busy."""
_ALL = "all"
_MANY = 32
"""Number of choices missing from the summary above which it is rewritten."""


def load(key: dict[str, Any]) -> TuningRecord | None:
    """Return the remembered answer, if there is one that can be trusted."""
    return _record(_read(json_digest(key)))


def _read(digest: str) -> Any:
    """Return the content of a file if it matches its name; else None."""
    held = _CHOICES.read_json(digest)
    try:
        return held if json_digest(held["key"]) == digest else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _record(held: Any) -> TuningRecord | None:
    try:
        times = {str(name): float(seconds) for name, seconds in held["times"].items()}
        features = {
            str(name): [float(each) for each in row]
            for name, row in held.get("features", {}).items()
        }
        key, noise = dict(held["key"]), held.get("noise")
        if noise is None and key["family"] == "cpu":
            # Written before noise was recorded: the machine may have been busy.
            noise, features = MOST_CORES, {}
        pace = float(held.get("pace", 0.0))
        record = TuningRecord(key, str(held["chosen"]), times, features, pace, float(noise or 0.0))
        return record if held["format"] == FORMAT and record.kind else None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None


def store(record: TuningRecord) -> None:
    """Keep a choice for the next process. Raises OSError where the folder cannot be written."""
    held = {"format": FORMAT, **asdict(record)}
    del held["is_predicted"]
    _CHOICES.write_json(json_digest(record.key), held)


def all_records() -> Iterator[TuningRecord]:
    """Return all stored choices for the present state of this machine."""
    here = cache(machine_key)
    for record in map(_record, _all_files().values()):
        if record is not None and record.key.get("machine") == here(record.kind[0]):
            yield record


def _all_files() -> dict[str, Any]:
    """Return the contents of all files by name: from the summary, and from newer files."""
    known = _SUMMARY.read_json(_ALL)
    known = known if isinstance(known, dict) else {}
    names = list(_CHOICES)
    found = {name: known.get(name) or _read(name) for name in names}
    if sum(held is not None and name not in known for name, held in found.items()) > _MANY:
        with suppress(OSError):
            _SUMMARY.write_json(_ALL, {name: held for name, held in found.items() if held})
    return found


def forget() -> None:
    """Delete every stored choice, for all machines."""
    _CHOICES.clear()
    _SUMMARY.clear()
