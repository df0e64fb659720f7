"""Relocatable calls of NumPy functions, and launch grouping of the calls of a step.

A grouper receives bound calls in order and returns pieces to run: independent calls of the same
form run as one, perhaps in another order, always with the same result; and it returns which
pieces may run concurrently. A joiner receives the calls of a step in order, each with the op its
kernel is registered for, an allocator of zeroed device memory, and a predicate for scratch
arrays. It returns a launch that runs any number of steps, or None if that is impossible or would
not pay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from caldera.core.tensor.shape import Shape
from caldera.kernels.table import Array, Call, Runner


class AddressedRunner:
    """A function of arrays, which it finds by their addresses when it is run: whoever writes over
    one of `slots` has it work on other memory, without being bound anew.

    >>> first, second, third = np.zeros(2), np.zeros(2), np.zeros(2)
    >>> add = AddressedRunner(lambda x, y: np.add(x, 1, out=y), first, second)
    >>> add.slots[1] = third.ctypes.data
    >>> add()
    >>> second.tolist(), third.tolist()
    ([0.0, 0.0], [1.0, 1.0])
    """

    def __init__(self, work: Callable[..., object], *arrays: np.ndarray) -> None:
        self._work = work
        self._arrays = list(arrays)
        self._known = [array.__array_interface__["data"][0] for array in arrays]
        self.slots = np.array(self._known, np.int64)

    def __call__(self) -> None:
        addresses = self.slots.tolist()
        if addresses != self._known:
            for number, (old, new) in enumerate(zip(self._known, addresses, strict=True)):
                if old != new:
                    self._arrays[number] = np.asarray(_Memory(self._arrays[number], new))
            self._known = addresses
        self._work(*self._arrays)


class _Memory:
    """An array of the same kind at another address."""

    def __init__(self, like: np.ndarray, address: int) -> None:
        self.__array_interface__ = {**like.__array_interface__, "data": (address, False)}


Steps = Callable[[int], Runner]
Fresh = Callable[[Shape, str], Array]
"""Memory of a shape and a dtype that belongs to the step alone."""
StepFuser = Callable[[Sequence[tuple[str, Call]], Fresh, Callable[[Array], bool]], Steps | None]

STEP_FUSERS: dict[str, StepFuser] = {}
"""By family; the rooms of kernels fill it when they are imported."""


@dataclass(frozen=True)
class StepPiece:
    """A part of a step: what runs it, the numbers of those before it that have to be done first,
    and about how long it takes."""

    run: Runner
    after: frozenset[int] = frozenset()
    seconds: float = 0.0


LaunchGrouper = Callable[[Sequence[tuple[Call, Runner]]], list[StepPiece]]

LAUNCH_GROUPERS: dict[str, LaunchGrouper] = {}
"""By family, in the same way."""
