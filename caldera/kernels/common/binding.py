"""Named arguments of a kernel, and its memory: workspace limit, size and arrays, and overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor import HALVES, DType, Shape, float32
from caldera.kernels.table import Array, Call, Kernel, Runner

Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False, slots=True)
class ArgumentNames(Generic[Kind]):
    """Names of a kernel's arguments in their order, each with its kind.

    The kind is defined by the device: a type of LLVM or of C++, for example.

    >>> copy = ArgumentNames("copy", {"target": "float*", "source": "float*", "count": "long"})
    >>> copy.check({"count": 3, "source": 8, "target": 0})
    >>> copy.check({"count": 3, "source": 8, "goal": 0})
    Traceback (most recent call last):
        ...
    TypeError: kernel copy takes target, source, count: missing target, unknown goal
    """

    kernel: str
    kinds: Mapping[str, Kind]

    def check(self, given: Mapping[str, object]) -> None:
        """Raise unless every name is there, and no other."""
        if given.keys() != self.kinds.keys():
            wrong = [f"missing {name}" for name in self.kinds if name not in given]
            wrong += [f"unknown {name}" for name in given if name not in self.kinds]
            takes = ", ".join(self.kinds)
            raise TypeError(f"kernel {self.kernel} takes {takes}: {', '.join(wrong)}")


ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of any CPU in use."""
_limit: ContextVar[int | None] = ContextVar("workspace limit", default=None)


def workspace_limit() -> int:
    """Return the workspace limit of a kernel in bytes.

    It is the limit of the settings, or of `at_most_workspace`.

    >>> with at_most_workspace(100):
    ...     workspace_limit()
    100
    """
    given = _limit.get()
    return settings.workspace_limit if given is None else given


@contextmanager
def at_most_workspace(limit: int) -> Iterator[None]:
    """Context manager with this workspace limit for kernels inspected or bound in this thread."""
    before = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(before)


def restricted(
    kernel: Kernel, bounds: Callable[[], AbstractContextManager[None]], **fields: Any
) -> Kernel:
    """Return the kernel with all its decisions made within `bounds`, and these fields changed."""

    def bind(call: Call) -> Runner:
        with bounds():
            return kernel.bind(call)

    def workspace(node: Node) -> int:
        with bounds():
            return kernel.workspace(node)

    return replace(kernel, bind=bind, workspace=workspace, source=kernel.origin, **fields)


def may_overwrite(node: Node) -> bool:
    """Return True if x, to which is added at positions, may share memory with the result."""
    x, positions, updates = node.inputs
    return x.spec not in (positions.spec, updates.spec)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def workspace_bytes(*specs: Spec) -> int:
    """Return the bytes of workspace for arrays with these specs."""
    return sum(_aligned(spec.nbytes) for spec in specs)


class Scratch:
    """Allocator of consecutive arrays from a workspace."""

    def __init__(self, workspace: Array) -> None:
        # A plan passes no workspace to a kernel that requires 0 bytes.
        self.rest: Array = np.empty(0, np.uint8) if workspace is None else workspace

    def array(self, shape: Shape, dtype: DType) -> Array:
        """Return the next array, with undefined content."""
        nbytes = Spec(shape, dtype).nbytes
        part = self.rest[:nbytes].view(dtype).reshape(shape)
        self.rest = self.rest[_aligned(nbytes) :]
        return part


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype that arithmetic on values of this dtype uses."""
    return float32 if dtype in HALVES else dtype
