"""The memory in which a plan leaves its results.

A result belongs to whoever holds it, so it is never in the arena. The first is written to memory
that is then handed out. Once nobody holds it any more, the plan writes the next one to the same
place, and nothing has to be allocated or bound again. As soon as somebody does hold a result when
the next run begins, outputs no longer lie where the calls were bound to: before each run native
calls are told where to write (`relocation`), and what other calls write is copied out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from caldera.compiler.plan.relocation import Patch
from caldera.core.graph.memory_format import laid_out
from caldera.core.graph.node import Spec
from caldera.core.memory import MANAGED, Device, MemoryManager
from caldera.core.tensor import Tensor

MOST_KEPT = 4 << 20
"""Bytes of results a plan may hold on to between runs, to write the next ones to the same place."""


class OutputSlot:
    """Where one output of a plan goes; `is_copied` if results are copies of what is there."""

    def __init__(self, spec: Spec, device: Device) -> None:
        self.spec = spec
        self.is_copied = False
        self._device = device
        self._memory: MemoryManager | None = None
        self._flat: Any = None
        self._references = (0, 0)

    @property
    def is_empty(self) -> bool:
        """Whether it has no memory."""
        return self._memory is None

    @property
    def nbytes(self) -> int:
        """Bytes of the memory it holds on to."""
        return 0 if self._memory is None else self._memory.nbytes

    @property
    def address(self) -> int:
        """Where its memory begins."""
        assert self._memory is not None
        return self._memory.address

    def is_held(self) -> bool:
        """Whether somebody else may still use the memory."""
        if self._memory is None or self.is_copied or self.spec.size == 0:
            # Of nothing, nobody can see that it was written over.
            return False
        if not self._device.is_host:
            # A result has a host side too, whose readers cannot be counted here.
            return True
        return (sys.getrefcount(self._memory), sys.getrefcount(self._flat)) != self._references

    def renew(self) -> None:
        """Take new memory for the next result."""
        self._memory, self._flat = self._fresh()
        self.settle()

    def _fresh(self) -> tuple[MemoryManager, Any]:
        spec = self.spec
        memory = MemoryManager(spec.size, spec.dtype, MANAGED, self._device, owner="results")
        return memory, memory.on_device(write=True, discard=True)

    def let_go(self) -> None:
        """Forget the memory: it belongs to the result alone."""
        self._memory = None
        self._flat = None

    def array(self) -> Any:
        """The memory as the kernels see it."""
        return laid_out(self._flat, self.spec.shape, self.spec.order)

    def settle(self) -> None:
        """Note how many references there are that are not a user's."""
        self._references = (sys.getrefcount(self._memory), sys.getrefcount(self._flat))

    def tensor(self) -> Tensor:
        """The result that was just written."""
        written = self._memory
        assert written is not None
        if not self._device.is_host:
            written.on_device(write=True, discard=True)
        result = written
        if self.is_copied:
            result, _ = self._fresh()
            result.copy_from(written)
        return Tensor._wrap(result, self.spec.shape, self.spec.dtype)


class Outputs:
    """All outputs of a plan. `are_movable` once calls are no longer bound to where they go."""

    def __init__(self, specs: Sequence[Spec], device: Device) -> None:
        self.slots = [OutputSlot(spec, device) for spec in specs]
        self.are_movable = False
        self._device = device
        # Plans are remembered; large results must not be remembered with them.
        self._lets_go = sum(spec.nbytes for spec in specs) > MOST_KEPT

    @property
    def nbytes(self) -> int:
        """Bytes that are held on to between runs."""
        return sum(slot.nbytes for slot in self.slots)

    def must_move(self) -> bool:
        """Whether a run would write over results that somebody holds. From then on it need not."""
        if self.are_movable or not any(slot.is_held() for slot in self.slots):
            return False
        self.make_movable()
        return True

    def make_movable(self) -> None:
        """Have results in memory of their own from now on; all calls must be bound anew."""
        self.are_movable = True
        for slot in self.slots:
            slot.let_go()
            # What was launched on a device may still be queued, and must not be changed.
            slot.is_copied = not self._device.is_host

    def forget_places(self) -> None:
        """The next results go to new memory, but for those that are copied."""
        for slot in self.slots:
            if not slot.is_copied:
                slot.let_go()

    def keep(self) -> None:
        """Results are copies from now on, and places never change; calls must be bound anew."""
        self.are_movable = True
        for slot in self.slots:
            slot.is_copied = True
            slot.renew()

    def allocate(self) -> None:
        """Have memory for those that calls are bound to."""
        for slot in self.slots:
            if slot.is_empty:
                slot.renew()

    def settle(self) -> None:
        """Note the references that bound calls hold."""
        for slot in self.slots:
            slot.settle()

    def move(self, patches: Sequence[Sequence[Patch]]) -> None:
        """Take new memory where the last result is held, and tell the calls; patches by slot."""
        for slot, places in zip(self.slots, patches, strict=True):
            if not slot.is_copied and (slot.is_empty or slot.is_held()):
                slot.renew()
                address = slot.address
                for slots, position, offset in places:
                    slots[position] = address + offset

    def results(self) -> list[Tensor]:
        """What the last run wrote."""
        return [slot.tensor() for slot in self.slots]

    def let_go(self) -> bool:
        """Drop results that are too large to keep; whether calls must be bound anew for that."""
        if not self._lets_go:
            return False
        if not self.are_movable:
            self.make_movable()
            return True
        self.forget_places()
        return False
