"""Numbers as they are stored and as they are computed with: halves are float32 in registers."""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import F32, F64, I16, Emitter, Number, Pointer, Value
from caldera.kernels.native.codegen.half import load_wide, store_narrow

_IN_MEMORY = {"float32": F32, "float64": F64, "float16": I16, "bfloat16": I16}


def computed(name: str) -> ir.Type:
    """The type that arithmetic on values of this dtype uses."""
    return F64 if name == "float64" else F32


@dataclass(frozen=True)
class FloatPointer:
    """An address of elements of a floating-point dtype, read and written in the wide type."""

    k: Emitter
    place: Pointer
    name: str

    def at(self, index: Number) -> FloatPointer:
        """The address of the element with this index."""
        return FloatPointer(self.k, self.place.at(index), self.name)

    def load(self, index: Number = 0, count: int = 1) -> Value:
        """The element with this index, or a vector of `count` from it on."""
        return load_wide(self.k, self.place, index, count, self.name)

    def store(self, index: Number, value: Value) -> None:
        """Write an element, or as many as the vector has lanes."""
        store_narrow(self.k, self.place, index, value, self.name)


def stored(k: Emitter, slot: int, name: str) -> FloatPointer:
    """The operand of this dtype whose address is in a slot."""
    return FloatPointer(k, k.pointer(slot, _IN_MEMORY[name]), name)
