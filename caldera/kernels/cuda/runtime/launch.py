"""A kernel call on a card: source, function, sizes, and arguments that are fixed once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from caldera.core.memory.software import address_of
from caldera.kernels.cuda.codegen.expression import Argument, Array, KernelSignature
from caldera.kernels.cuda.runtime.driver import Size, driver


class KernelLaunch:
    """One launch. Arrays among the arguments are passed as their addresses, and kept alive.

    `cooperative` says that all blocks must be on the card at once, because they wait for each
    other. `kept` are arrays that no argument but an address in one of them speaks of.
    """

    def __init__(
        self,
        source: str,
        name: str,
        grid: Size | int,
        block: Size | int,
        signature: KernelSignature,
        shared: int = 0,
        *,
        cooperative: bool = False,
        kept: Sequence[Array] = (),
    ) -> None:
        self.name = name
        self._driver = driver()
        self._function = self._driver.function(source, name)
        self._grid = _three(grid)
        self._block = _three(block)
        self._shared = shared
        self._launch = self._driver.launch_cooperative if cooperative else self._driver.launch
        self._kept = (*signature.arguments, *kept)
        self._values = [_value(each) for each in signature.arguments]
        places = [ctypes.addressof(value) for value in self._values]
        self._places = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._parameters = ctypes.addressof(self._places)

    def __call__(self) -> None:
        self._launch(self._function, self._grid, self._block, self._shared, self._parameters)


class CudaRunner:
    """Calls in order: launches, and calls of libraries."""

    def __init__(self, calls: Iterable[Any]) -> None:
        self.calls = list(calls)

    def __call__(self) -> None:
        for call in self.calls:
            call()


def _three(size: Size | int) -> Size:
    return (size, 1, 1) if isinstance(size, int) else size


def _value(argument: Argument) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(address_of(argument))
    return argument
