"""Elements in memory and in registers: every dtype's stored and computed type, and casts.

Halves are computed with in float32 and truth values as single bits; a result of half precision is
rounded at once, so that it does not depend on which ops were fused.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    Emitter,
    Number,
    Pointer,
    Value,
    element,
    is_floating,
    vector,
)
from caldera.kernels.native.codegen.half import HALF_NAMES, load_wide, narrow, store_narrow, widen

MEMORY_TYPES: dict[str, ir.Type] = {
    "bool": I8,
    "uint8": I8,
    "uint16": I16,
    "uint32": I32,
    "uint64": I64,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "float16": I16,
    "bfloat16": I16,
    "float32": F32,
    "float64": F64,
}
UNSIGNED = ("bool", "uint8", "uint16", "uint32", "uint64")


def computed_type(name: str) -> ir.Type:
    """The type that arithmetic on values of a dtype uses."""
    if name in HALF_NAMES:
        return F32
    return I1 if name == "bool" else MEMORY_TYPES[name]


def from_memory(k: Emitter, raw: Value, name: str) -> Value:
    """What was loaded, in the computed type."""
    if name in HALF_NAMES:
        return widen(k, raw, name)
    return raw.differs(0) if name == "bool" else raw


def to_memory(k: Emitter, value: Value, name: str) -> Value:
    """A computed value as it is stored."""
    if name in HALF_NAMES:
        return narrow(k, value, name)
    return k.convert(value, I8) if name == "bool" else value


def rounded(k: Emitter, value: Value, name: str) -> Value:
    """A computed value with no more digits than the dtype has."""
    return widen(k, narrow(k, value, name), name) if name in HALF_NAMES else value


def cast(k: Emitter, value: Value, source: str, target: str) -> Value:
    """A value of one dtype in another, as NumPy does it."""
    wanted = computed_type(target)
    if target == "bool":
        return value if source == "bool" else value.differs(0)
    if is_floating(value.type) and not is_floating(wanted):
        if target == "uint64":
            return _to_uint64(k, value)
        whole = k.convert(value, I64 if wanted == I64 or target == "uint32" else I32)
        return k.convert(whole, wanted)
    if target in HALF_NAMES:
        if not is_floating(value.type):
            # Large integers must not be rounded twice.
            exact = F64 if element(value.type) in (I32, I64) else F32
            value = k.convert(value, exact, unsigned=source in UNSIGNED)
        return rounded(k, value, target)
    return k.convert(value, wanted, unsigned=source in UNSIGNED)


def _to_uint64(k: Emitter, value: Value) -> Value:
    """A float by way of a signed integer, as the narrower ones go; from 2^63 on, where there is
    none, half the range is taken off first and put back as the highest bit."""
    half = 2.0**63
    is_large = value >= half
    whole = k.convert(k.select(is_large, value - half, value), I64)
    return k.select(is_large, whole ^ k.constant(-(1 << 63), whole.type), whole)


def constant(k: Emitter, value: bool | int | float, name: str, lanes: int) -> Value:
    """A constant of a dtype in all lanes."""
    return k.constant(value, vector(computed_type(name), lanes))


@dataclass(frozen=True)
class ElementPointer:
    """An address of elements of a dtype; halves are read and written as float32."""

    k: Emitter
    place: Pointer
    name: str

    @property
    def computed(self) -> ir.Type:
        """The type that its elements are read in."""
        return computed_type(self.name)

    @property
    def is_half(self) -> bool:
        """Whether elements are rounded when they are stored."""
        return self.name in HALF_NAMES

    def at(self, index: Number) -> ElementPointer:
        """The address of the element with this index."""
        return ElementPointer(self.k, self.place.at(index), self.name)

    def load(self, index: Number = 0, count: int = 1, mask: Value | None = None) -> Value:
        """The element with this index, or a vector of `count` from it on, with 0 in lanes that a
        mask leaves out."""
        return load_wide(self.k, self.place, index, count, self.name, mask)

    def store(self, index: Number, value: Value, mask: Value | None = None) -> None:
        """Write an element, or as many as the vector has lanes, or those of a mask."""
        store_narrow(self.k, self.place, index, value, self.name, mask)
