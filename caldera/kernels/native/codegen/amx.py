"""Tile registers of x86_64 processors (AMX): one instruction multiplies small bfloat16 matrices.

There are eight of them, of 16 rows of 64 bytes. A process must ask its system before it uses them,
and each thread says how they are to be read before it does.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any

import numpy as np
from llvmlite import ir

from caldera.kernels.native.codegen.emitter import I8, I64, POINTER, Emitter, Number, Pointer
from caldera.kernels.native.codegen.target import host_target

ROWS, ROW_BYTES = 16, 64
"""Of a tile register."""
TERMS = 32
"""Terms that one instruction sums up for each element: bfloat16 numbers in a row."""
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux's numbers: a system call, what is asked of it, and what for."""


@lru_cache(maxsize=1)
def has_amx() -> bool:
    """Whether this process may multiply bfloat16 matrices in tile registers."""
    features = host_target().features.split(",")
    if sys.platform != "linux" or not {"+amx-tile", "+amx-bf16"} <= set(features):
        return False
    libc = ctypes.CDLL(None)
    return not libc.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)


@lru_cache(maxsize=1)
def tile_configuration() -> np.ndarray:
    """What a thread loads first: eight registers in their full size."""
    words = np.zeros(64, np.uint8)
    words[0] = 1
    words[16:32].view(np.uint16)[:] = ROW_BYTES
    words[48:56] = ROWS
    return words


class TileRegisters:
    """Emits instructions on tile registers, by their numbers."""

    def __init__(self, k: Emitter) -> None:
        self._k = k

    def configure(self, configuration: Pointer) -> None:
        """Before all others."""
        self._emit("ldtilecfg", configuration.raw)

    def release(self) -> None:
        """After all others."""
        self._emit("tilerelease")

    def clear(self, number: int) -> None:
        """Zeros."""
        self._emit("tilezero", I8(number))

    def load(self, number: int, source: Pointer, row_bytes: Number) -> None:
        """Rows that are so many bytes apart."""
        self._emit("tileloadd64", I8(number), source.raw, self._k.constant(row_bytes, I64).raw)

    def store(self, number: int, target: Pointer, row_bytes: Number) -> None:
        """Likewise."""
        self._emit("tilestored64", I8(number), target.raw, self._k.constant(row_bytes, I64).raw)

    def multiply(self, sums: int, left: int, right: int) -> None:
        """sums += left @ right: float32 sums of products of bfloat16 numbers. The right matrix has
        the elements of two rows in turn in each of its own."""
        self._emit("tdpbf16ps", I8(sums), I8(left), I8(right))

    def _emit(self, name: str, *given: Any) -> None:
        kinds = [POINTER if isinstance(each.type, ir.PointerType) else each.type for each in given]
        function = self._k.declared(f"llvm.x86.{name}", ir.FunctionType(ir.VoidType(), kinds))
        self._k.ir.call(function, given)
