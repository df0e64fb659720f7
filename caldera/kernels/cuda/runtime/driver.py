"""What turns CUDA source into work on a card. There is one driver at a time.

Kernels only ever say: this source, this function, these arguments. The driver of a real card
compiles with NVRTC, keeps the machine code on disk and launches through CuPy; the tests bring one
that needs no card.
"""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from caldera.base.file_cache import FileCache
from caldera.core.memory.cuda_stream import launching_stream
from caldera.core.memory.gpus import cupy
from caldera.kernels.cuda.runtime import nvrtc
from caldera.kernels.cuda.runtime.properties import CardProperties

Size = tuple[int, int, int]
MOST_LOADED = 4096
"""Functions that stay on a card for the next plan; those that plans use stay anyway."""
COMPILERS = 8
"""Sources that are compiled at the same time: the compiler does not hold Python's lock."""


class Driver(ABC):
    """Compiles and launches."""

    @abstractmethod
    def function(self, source: str, name: str) -> Any:
        """Something `launch` takes: the function of this name in this source."""

    @abstractmethod
    def launch(self, function: Any, grid: Size, block: Size, shared: int, parameters: Any) -> None:
        """Run a function on the stream of the launch around this one.

        `parameters` is a C array of pointers to the values of its parameters.
        """

    @abstractmethod
    def launch_cooperative(
        self, function: Any, grid: Size, block: Size, shared: int, parameters: Any
    ) -> None:
        """The same with all blocks at once: they may wait for each other."""

    @property
    @abstractmethod
    def card(self) -> CardProperties:
        """The card in use."""

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at the same time, at least."""
        return self.card.multiprocessors

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that a block may ask for."""
        return self.card.shared_bytes

    @property
    @abstractmethod
    def lonely_bytes(self) -> int:
        """Shared memory with which a block is alone on its multiprocessor."""


@cache
def headers() -> Mapping[str, str]:
    """The CUDA headers of this package, by name; they lie in folders as their families do."""
    return dict(sorted(_headers(resources.files("caldera.kernels.cuda") / "include")))


def _headers(folder: Traversable) -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _headers(each)
        elif each.name.endswith(".cuh"):
            yield each.name, each.read_text()


_MOST_SHARED = 96 << 10
"""Bytes: two such blocks share a multiprocessor of a large card."""


def fits_in_shared(nbytes: int) -> bool:
    """Whether a block can have this much shared memory; what needs more works in the workspace."""
    return nbytes <= min(_MOST_SHARED, driver().shared_bytes // 2)


class CupyDriver(Driver):
    """A real card."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(COMPILERS, thread_name_prefix="nvrtc")
        self._functions: OrderedDict[tuple[int, str, str], Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def function(self, source: str, name: str) -> Any:
        card = cupy().cuda.Device().id
        key = (card, source, name)
        with self._lock:
            if key not in self._functions:
                self._functions[key] = self._pool.submit(self._load, card, source, name)
                if len(self._functions) > MOST_LOADED:
                    self._functions.popitem(last=False)
            self._functions.move_to_end(key)
            return self._functions[key]

    def _load(self, card: int, source: str, name: str) -> Any:
        with cupy().cuda.Device(card):
            # The machine code is bound to the card on which it is loaded.
            code = compiled(source, self.card.architecture)
            module = cupy().cuda.function.Module()
            module.load(code)
            function = module.get_function(name)
            own = cupy().cuda.driver.funcGetAttribute(_STATIC_SHARED, function.ptr)
            most = self.shared_bytes - own
            cupy().cuda.driver.funcSetAttribute(function.ptr, _MOST_DYNAMIC_SHARED, most)
            return function

    def launch(self, function: Any, grid: Size, block: Size, shared: int, parameters: Any) -> None:
        ready = function.result()
        cupy().cuda.driver.launchKernel(
            ready.ptr, *grid, *block, shared, launching_stream(), parameters, 0
        )

    def launch_cooperative(
        self, function: Any, grid: Size, block: Size, shared: int, parameters: Any
    ) -> None:
        ready = function.result()
        cupy().cuda.driver.launchCooperativeKernel(
            ready.ptr, *grid, *block, shared, launching_stream(), parameters
        )

    @property
    def card(self) -> CardProperties:
        return properties_of(int(cupy().cuda.Device().id))

    @property
    def lonely_bytes(self) -> int:
        # Two such blocks would need more than there is.
        return self.shared_bytes // 2 + 1024


@cache
def properties_of(card: int) -> CardProperties:
    """What is fixed about a card of this number: asking takes the driver a hundred calls."""
    device = cupy().cuda.Device(card)
    memory = int(device.mem_info[1])
    return CardProperties.of(str(device.compute_capability), device.attributes, memory)


# Attributes of a function, by their numbers in the driver's header.
_STATIC_SHARED = 1
_MOST_DYNAMIC_SHARED = 8


_CUBINS = FileCache("cuda")


def compiled(source: str, architecture: str) -> bytes:
    """The machine code of a source: from disk if it is there."""
    made_of = "\n".join(
        [architecture, str(nvrtc.version()), *headers().keys(), *headers().values(), source]
    )
    key = hashlib.blake2b(made_of.encode(), digest_size=20).hexdigest()
    return _CUBINS.get(key, lambda: nvrtc.compile_source(source, headers(), architecture))


_driver: Driver | None = None


def driver() -> Driver:
    """The driver in use."""
    global _driver
    if _driver is None:
        _driver = CupyDriver()
    return _driver


def use(other: Driver | None) -> None:
    """Use another driver from now on; None for that of the real card."""
    global _driver
    _driver = other
