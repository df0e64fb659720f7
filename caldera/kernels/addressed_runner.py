"""A call of NumPy's functions that can be told where to write."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


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
