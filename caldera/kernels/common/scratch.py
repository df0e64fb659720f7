"""How much workspace a kernel may use, and cutting it into arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from caldera.base.config import settings
from caldera.core.graph.node import Spec
from caldera.core.tensor.dtype import HALVES, DType, float32
from caldera.core.tensor.shape import Shape
from caldera.kernels.table import Array

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of any CPU in use."""
_limit: ContextVar[int | None] = ContextVar("workspace limit", default=None)


def workspace_limit() -> int:
    """Bytes that a kernel may use as workspace: those of the settings, or of `at_most_workspace`.

    >>> with at_most_workspace(100):
    ...     workspace_limit()
    100
    """
    given = _limit.get()
    return settings.workspace_limit if given is None else given


@contextmanager
def at_most_workspace(limit: int) -> Iterator[None]:
    """Kernels that are looked at or made ready inside have this many bytes, in this thread."""
    before = _limit.set(limit)
    try:
        yield
    finally:
        _limit.reset(before)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def workspace_bytes(*specs: Spec) -> int:
    """The workspace that arrays like these take."""
    return sum(_aligned(spec.nbytes) for spec in specs)


class Scratch:
    """Hands out arrays from a workspace, one after the other."""

    def __init__(self, workspace: Array) -> None:
        # A plan gives no workspace to a kernel that asks for 0 bytes of it.
        self.rest: Array = np.empty(0, np.uint8) if workspace is None else workspace

    def array(self, shape: Shape, dtype: DType) -> Array:
        """The next array; what it holds is not defined."""
        nbytes = Spec(shape, dtype).nbytes
        part = self.rest[:nbytes].view(dtype).reshape(shape)
        self.rest = self.rest[_aligned(nbytes) :]
        return part


def compute_dtype(dtype: DType) -> DType:
    """The dtype that arithmetic on values of this dtype uses."""
    return float32 if dtype in HALVES else dtype
