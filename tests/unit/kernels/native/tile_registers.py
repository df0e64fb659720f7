"""Tile registers for processors that have none: kernels for them run, with memory for registers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from caldera.kernels.native.codegen import compiler
from caldera.kernels.native.codegen.emitter import (
    F32,
    I32,
    I64,
    Emitter,
    Number,
    Pointer,
    RegisterValue,
    vector,
)
from caldera.kernels.native.codegen.matrix_multiply import ROW_BYTES, ROWS, has_amx
from caldera.kernels.native.product import amx

_REGISTERS = 8
_WORDS = ROW_BYTES // 4
"""Pairs of bfloat16 numbers in a row, or float32 numbers."""


class TileRegistersInMemory:
    """What `TileRegisters` emits, instruction by instruction, in others that all machines have."""

    def __init__(self, k: Emitter) -> None:
        self._k = k
        self._memory = k.alloca(I32, _REGISTERS * ROWS * _WORDS)

    def _row(self, number: int, row: Number) -> Pointer:
        return self._memory.at(self._k.constant(row, I64) * _WORDS + number * ROWS * _WORDS)

    def configure(self, configuration: Pointer) -> None:
        """Nothing: all are of the full size."""

    def release(self) -> None:
        """Nothing."""

    def clear(self, number: int) -> None:
        self._k.clear_bytes(self._row(number, 0), ROWS * ROW_BYTES)

    def load(self, number: int, source: Pointer, row_bytes: int) -> None:
        with self._k.loop(0, ROWS) as row:
            line = source.bytes_on(row * row_bytes).cast(I32)
            self._row(number, row).store(0, line.load(0, _WORDS))

    def store(self, number: int, target: Pointer, row_bytes: int) -> None:
        with self._k.loop(0, ROWS) as row:
            line = target.bytes_on(row * row_bytes).cast(I32)
            line.store(0, self._row(number, row).load(0, _WORDS))

    def multiply(self, sums: int, left: int, right: int) -> None:
        k = self._k
        with k.loop(0, ROWS) as row:
            place = self._row(sums, row).cast(F32)
            total = k.variable(place.load(0, _WORDS))
            with k.loop(0, _WORDS) as pair:
                ours = k.splat(self._row(left, row).load(pair), _WORDS)
                theirs = self._row(right, pair).load(0, _WORDS)
                for number in (self._first, self._second):
                    total.value = total.value + number(ours) * number(theirs)
            place.store(0, total.value)

    def _first(self, pairs: RegisterValue) -> RegisterValue:
        return self._k.bitcast(pairs << 16, vector(F32, _WORDS))

    def _second(self, pairs: RegisterValue) -> RegisterValue:
        return self._k.bitcast(pairs & -65536, vector(F32, _WORDS))


@contextmanager
def with_tile_registers() -> Iterator[None]:
    """Kernels that want tile registers have them inside: those of the processor, or memory."""
    if has_amx():
        yield
        return
    with (
        patch.object(amx, "TileRegisters", TileRegistersInMemory),
        patch.object(amx, "has_amx", lambda: True),
        patch.object(compiler, "_addresses", {}),
    ):
        yield
