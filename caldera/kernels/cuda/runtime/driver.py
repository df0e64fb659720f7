"""Driver that compiles and launches CUDA source, and NVRTC through ctypes.

There is one driver at a time. Kernels pass only a source, a function and its arguments. The driver
of a real GPU compiles with NVRTC, caches the machine code on disk and launches through CuPy; tests
provide a driver that needs no GPU.

NVRTC, NVIDIA's run-time compiler, needs neither a GPU nor CuPy. The library is part of the wheel
nvidia-cuda-nvrtc, of CuPy's CUDA packages and of the toolkit.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes.util import find_library
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from caldera.base.file_cache import FileCache
from caldera.core.memory.cuda import launching_stream
from caldera.core.memory.gpus import cupy
from caldera.errors import ConfigError, DeviceError
from caldera.kernels.cuda.runtime.device import CardProperties


@cache
def library() -> ctypes.CDLL | None:
    """Return the library, or None if it is not installed."""
    for place in _places():
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    return None


def _places() -> Iterator[str]:
    packages = find_spec("nvidia")
    for folder in packages.submodule_search_locations or () if packages else ():
        yield from map(str, sorted(Path(folder).glob("*/lib/libnvrtc.so*"), reverse=True))
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    program = shutil.which("nvcc")
    if program:
        homes.append(str(Path(program).resolve().parent.parent))
    for home in filter(None, homes):
        yield from map(str, sorted(Path(home).glob("lib*/libnvrtc.so*"), reverse=True))
    found = find_library("nvrtc")
    if found:
        yield found


def version() -> tuple[int, int]:
    """Return the version of the library."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_needed().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


def compile_source(
    source: str, headers: Mapping[str, str], architecture: str, more: Sequence[str] = ()
) -> bytes:
    """Machine code (a cubin) for an architecture such as "sm_90", by these options among others."""
    nvrtc = _needed()
    program = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(headers))(*[name.encode() for name in headers])
    texts = (ctypes.c_char_p * len(headers))(*[text.encode() for text in headers.values()])
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"caldera.cu", len(headers), texts, names
        )
    )
    try:
        # Up to CUDA 13.0 a generic lambda counts as a function of the host without the last one.
        options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device", *more]
        given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = nvrtc.nvrtcCompileProgram(program, len(options), given)
        if status:
            raise DeviceError.build(
                "CUDA compiler",
                expected="source that compiles",
                got=_bytes(nvrtc.nvrtcGetProgramLog, nvrtc.nvrtcGetProgramLogSize, program)
                .rstrip(b"\0")
                .decode(errors="replace"),
                hint="this is a fault of Caldera: please report it with this text",
            )
        return _bytes(nvrtc.nvrtcGetCUBIN, nvrtc.nvrtcGetCUBINSize, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _needed() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise ConfigError.build(
            "CUDA compiler",
            expected="the library nvrtc",
            got="none",
            hint="install it with: pip install nvidia-cuda-nvrtc",
        )
    return found


def _check(status: int) -> None:
    if status:
        library_ = _needed()
        library_.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DeviceError.build(
            "CUDA compiler", expected="success", got=library_.nvrtcGetErrorString(status).decode()
        )


def _bytes(get: object, get_size: object, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _check(get_size(program, ctypes.byref(size)))  # type: ignore[operator]
    content = ctypes.create_string_buffer(size.value)
    _check(get(program, content))  # type: ignore[operator]
    return content.raw


Size = tuple[int, int, int]
MOST_LOADED = 4096
"""Maximum number of functions kept loaded for the next plan; functions that plans use always stay.
"""
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
        """Launch with all blocks resident simultaneously: they may wait on each other."""

    @property
    @abstractmethod
    def card(self) -> CardProperties:
        """Properties of the GPU in use."""

    @property
    def multiprocessors(self) -> int:
        """Minimum number of blocks that run at the same time."""
        return self.card.multiprocessors

    @property
    def shared_bytes(self) -> int:
        """The most shared memory that a block may ask for."""
        return self.card.shared_bytes

    @property
    @abstractmethod
    def lonely_bytes(self) -> int:
        """Bytes of shared memory with which a block occupies a whole multiprocessor."""


@cache
def headers() -> Mapping[str, str]:
    """Return the CUDA headers of this package, by name; each family has a folder."""
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
    """Return True if a block can have this much shared memory; larger blocks use the workspace."""
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
            # The machine code is bound to the GPU on which it is loaded.
            code = compiled(source, self.card.architecture)
            module = cupy().cuda.function.Module()
            module.load(code)
            function = module.get_function(name)
            own = cupy().cuda.driver.funcGetAttribute(_STATIC_SHARED, function.ptr)
            most = self.shared_bytes - own
            cupy().cuda.driver.funcSetAttribute(function.ptr, _MOST_DYNAMIC_SHARED, most)
            return function

    def launch(self, function: Any, grid: Size, block: Size, shared: int, parameters: Any) -> None:
        cupy().cuda.driver.launchKernel(
            function.result().ptr, *grid, *block, shared, launching_stream(), parameters, 0
        )

    def launch_cooperative(
        self, function: Any, grid: Size, block: Size, shared: int, parameters: Any
    ) -> None:
        cupy().cuda.driver.launchCooperativeKernel(
            function.result().ptr, *grid, *block, shared, launching_stream(), parameters
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
    """Return the fixed properties of a GPU, cached since a query takes a hundred driver calls."""
    device = cupy().cuda.Device(card)
    memory = int(device.mem_info[1])
    return CardProperties.of(str(device.compute_capability), device.attributes, memory)


# Attributes of a function, by their numbers in the driver's header.
_STATIC_SHARED = 1
_MOST_DYNAMIC_SHARED = 8


_CUBINS = FileCache("cuda")


def compiled(source: str, architecture: str) -> bytes:
    """Return the machine code of a source: from disk if it is there."""
    made_of = "\n".join(
        [architecture, str(version()), *headers().keys(), *headers().values(), source]
    )
    key = hashlib.blake2b(made_of.encode(), digest_size=20).hexdigest()
    return _CUBINS.get(key, lambda: compile_source(source, headers(), architecture))


_driver: Driver | None = None


def driver() -> Driver:
    """Return the driver in use."""
    global _driver
    if _driver is None:
        _driver = CupyDriver()
    return _driver


def use(other: Driver | None) -> None:
    """Use another driver from now on; None for the driver of the real GPU."""
    global _driver
    _driver = other
