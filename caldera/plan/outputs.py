"""The memory in which a plan leaves its results.

A result belongs to whoever holds it, so it is never in the arena. Once nobody holds it any more,
the plan writes the next result to the same place, and nothing has to be allocated or bound again.
"""

from __future__ import annotations

import sys
from typing import Any

from caldera.graph.memory_format import laid_out
from caldera.graph.node import Spec
from caldera.memory import MANAGED, Device, MemoryManager
from caldera.tensor import Tensor


class OutputSlot:
    """Where one output of a plan goes."""

    def __init__(self, spec: Spec, device: Device) -> None:
        self._spec = spec
        self._device = device
        self._memory: MemoryManager | None = None
        self._flat: Any = None
        self._references = (0, 0)

    def is_held(self) -> bool:
        """Whether the last result may still be in use (always true before the first)."""
        # On a device with memory of its own a result has a host side too, whose readers cannot be
        # counted here; steps that matter there are captured, and those never come here.
        if self._memory is not None and self._spec.size == 0:
            # Nobody can see that nothing was written over.
            return False
        if self._memory is None or not self._device.is_host:
            return True
        return (sys.getrefcount(self._memory), sys.getrefcount(self._flat)) != self._references

    def renew(self) -> None:
        """Take new memory for the next result."""
        self._memory = MemoryManager(
            self._spec.size, self._spec.dtype, MANAGED, self._device, owner="results"
        )
        self._flat = self._memory.on_device(write=True, discard=True)

    def let_go(self) -> None:
        """Forget the memory: it belongs to the result alone."""
        self._memory = None
        self._flat = None

    def array(self) -> Any:
        """The memory as the kernels see it."""
        return laid_out(self._flat, self._spec.shape, self._spec.order)

    def settle(self) -> None:
        """Note how many references the plan itself holds, after everything is bound."""
        self._references = (sys.getrefcount(self._memory), sys.getrefcount(self._flat))

    def tensor(self) -> Tensor:
        """The result that was just written."""
        assert self._memory is not None
        if not self._device.is_host:
            self._memory.on_device(write=True, discard=True)
        return Tensor._wrap(self._memory, self._spec.shape, self._spec.dtype)
