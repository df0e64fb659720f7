"""Fixed properties of a GPU, installed NVIDIA libraries, and facts for choosing kernels.

The properties decide which kernels can run and how these divide work. No library is imported
before there is a GPU to use it on.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from caldera.base.config import settings
from caldera.base.formatting import bytes_text
from caldera.base.registry import optional_import
from caldera.core.memory.gpus import PACKAGE, card_count, cupy
from caldera.core.memory.software import address_of
from caldera.errors import DeviceError


@dataclass(frozen=True)
class CardProperties:
    """Properties of a GPU as reported by its driver.

    >>> turing = CardProperties((7, 5), 46, 64 << 10, 1024)
    >>> turing.architecture, turing.has_bfloat16
    ('sm_75', False)
    """

    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    """The most shared memory that a block may ask for."""
    threads: int
    """Threads that a multiprocessor holds."""
    registers: int = 65536
    """Registers of a multiprocessor; the same number for all GPUs from capability 5.0 on."""
    memory: int = 0
    """Bytes of the GPU's memory; 0 if unknown."""

    @classmethod
    def of(cls, capability: str, attributes: Mapping[str, Any], memory: int) -> CardProperties:
        """Return the GPU with these attributes, named as in CuPy, and a capability such as "90"."""
        return cls(
            (int(capability[:-1]), int(capability[-1])),
            int(attributes["MultiProcessorCount"]),
            int(attributes["MaxSharedMemoryPerBlockOptin"]),
            int(attributes["MaxThreadsPerMultiProcessor"]),
            memory=memory,
        )

    @property
    def architecture(self) -> str:
        """Name of the architecture for compilers."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    @property
    def has_bfloat16(self) -> bool:
        """True if its tensor cores multiply bfloat16."""
        return self.capability >= (8, 0)

    @property
    def has_tf32(self) -> bool:
        """True if its tensor cores multiply float32 rounded to tf32."""
        return self.capability >= (8, 0)

    @property
    def has_float8(self) -> bool:
        """True if its tensor cores multiply numbers of 8 bits."""
        return self.capability >= (8, 9)

    def refuse_precision(self, precision: str) -> None:
        """Raise if products in this precision require tensor cores that the GPU lacks."""
        if {"bfloat16": self.has_bfloat16, "tf32": self.has_tf32}.get(precision, True):
            return
        capability = ".".join(map(str, self.capability))
        raise DeviceError.build(
            "precision",
            expected=f"float16 on this GPU, whose compute capability is {capability}",
            got=repr(precision),
            hint="bfloat16 and tf32 need 8.0 or above: ask for float16, or leave precision out",
        )

    def rows(self) -> dict[str, int | str]:
        """Return the rows that `caldera info` prints for the GPU.

        >>> CardProperties((8, 6), 84, 99 << 10, 1536).rows()["tensor cores multiply"]
        'float16, bfloat16, tf32'
        """
        known = {
            "float16": True,
            "bfloat16": self.has_bfloat16,
            "tf32": self.has_tf32,
            "float8": self.has_float8,
        }
        able = ["every family of our own"]
        if not self.has_tf32:
            able.append("only float16 convolutions with few channels")
        return {
            "compute capability": ".".join(map(str, self.capability)),
            "multiprocessors": self.multiprocessors,
            "shared memory of a block": bytes_text(self.shared_bytes),
            "memory": bytes_text(self.memory) if self.memory else "unknown",
            "tensor cores multiply": ", ".join(name for name, has in known.items() if has),
            "kernels": ", ".join(able),
        }

    def resident_blocks(self, shared: int, threads: int, registers: int) -> int:
        """Return the number of resident blocks of a multiprocessor.

        Each block takes `shared` bytes of shared memory, and `registers` registers per thread.

        >>> CardProperties((9, 0), 132, 227 << 10, 2048).resident_blocks(50 << 10, 256, 64)
        4
        """
        by_registers = self.registers // (threads * registers)
        return min(self.shared_bytes // (shared + RESERVED), by_registers, self.threads // threads)


RESERVED = 1 << 10
"""Bytes of shared memory that each block takes in addition to its request."""


@cache
def cublas_lt() -> Any:
    """Return the module nvmath.bindings.cublasLt, or None if the module or a GPU is missing."""
    return _usable("nvmath", "nvmath.bindings.cublasLt", "get_version")


@cache
def cudnn() -> Any:
    """Return the module cudnn (NVIDIA's cudnn-frontend), or None if it or a GPU is missing."""
    return _usable("cudnn", "cudnn", "backend_version")


def _usable(package: str, module: str, version: str) -> Any:
    """Return the module, if the library that it calls is there as well: it can tell its version."""
    if card_count() == 0 or find_spec(package) is None:
        return None
    try:
        found = optional_import(module, PACKAGE, f"kernels by {package}")
        getattr(found, version)()
    except Exception:
        # Each package raises different errors for a library that it cannot load; our kernels serve.
        return None
    return found


def current_card() -> int:
    """Return the index of the GPU in use; 0 without a GPU."""
    return int(cupy().cuda.Device().id) if card_count() else 0


def may_measure() -> bool:
    """Return True if kernels may be timed; only then are second choices useful.

    >>> import caldera as cd
    >>> with cd.settings.override(deterministic=True):
    ...     may_measure()
    False
    """
    return not settings.deterministic and settings.tune_budget_s > 0


def facts(card: int | None = None) -> dict[str, str]:
    """Return the model of a GPU, by default the one in use, and the versions of its software."""
    if not card_count():
        return {"card": f"none, on {platform.machine()}"}
    runtime = cupy().cuda.runtime
    found = {
        "card": runtime.getDeviceProperties(current_card() if card is None else card)[
            "name"
        ].decode(),
        "driver": str(runtime.driverGetVersion()),
    }
    if cublas_lt() is not None:
        found["cublas"] = str(cublas_lt().get_version())
    if cudnn() is not None:
        found["cudnn"] = str(cudnn().backend_version())
    return found


def cupy_array(array: np.ndarray[Any, np.dtype[Any]]) -> Any:
    """A cupy.ndarray over the same memory, with the same strides; it keeps the array alive."""
    # The caller is responsible for the extent of views: CuPy only needs the owner of the memory.
    memory = cupy().cuda.UnownedMemory(address_of(array), max(array.nbytes, 1), array)
    pointer = cupy().cuda.MemoryPointer(memory, 0)
    return cupy().ndarray(array.shape, array.dtype, pointer, array.strides)
