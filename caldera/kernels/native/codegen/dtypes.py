"""Stored and computed types of every dtype, casts, and float16 and bfloat16 conversion.

Halves are stored in 16 bits and computed in float32. Truth values are computed as single bits. A
result of half precision is rounded immediately, so that it does not depend on which ops were fused.

Widening is exact. Narrowing rounds to the nearest value, ties to even. Overflow becomes infinity,
and a NaN stays a NaN. bfloat16 is the upper half of a float32, so integer arithmetic suffices.
float16 uses the processor's conversion if available and integer arithmetic otherwise. LLVM's own
conversion would call, for every element, a function that some C libraries lack.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import (
    F16,
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
    RegisterValue,
    element,
    is_floating,
    vector,
)
from caldera.kernels.native.codegen.target import host_target

HALF_NAMES = ("float16", "bfloat16")
"""The dtypes that are stored in 16 bits."""


def load_wide(
    k: Emitter,
    pointer: Pointer,
    index: Number,
    count: int,
    dtype_name: str,
    mask: RegisterValue | None = None,
) -> RegisterValue:
    """Elements from memory in the type they are computed with: float32 for halves."""
    if dtype_name not in HALF_NAMES:
        return pointer.load(index, count, mask)
    return widen(k, pointer.cast(I16).load(index, count, mask), dtype_name)


def store_narrow(
    k: Emitter,
    pointer: Pointer,
    index: Number,
    value: RegisterValue,
    dtype_name: str,
    mask: RegisterValue | None = None,
) -> None:
    """Write float32 (or float64) numbers as elements of a dtype."""
    if dtype_name not in HALF_NAMES:
        pointer.store(index, value, mask)
        return
    pointer.cast(I16).store(index, narrow(k, value, dtype_name), mask)


def widen(k: Emitter, bits: RegisterValue, dtype_name: str) -> RegisterValue:
    """Return the float32 numbers of 16-bit patterns."""
    if dtype_name == "bfloat16":
        return k.bitcast(k.convert(bits, I32, unsigned=True) << 16, vector(F32, bits.lanes))
    if has_conversion():
        return k.convert(k.bitcast(bits, vector(F16, bits.lanes)), F32)
    return widen_by_integers(k, bits)


def narrow(k: Emitter, value: RegisterValue, dtype_name: str) -> RegisterValue:
    """Return the 16-bit patterns nearest to float32 or float64 numbers."""
    if element(value.type) == F64:
        value = _round_to_odd(k, value)
    if dtype_name == "bfloat16":
        return _narrow_to_bfloat16(k, value)
    if has_conversion():
        return k.bitcast(k.convert(value, F16), vector(I16, value.lanes))
    return narrow_by_integers(k, value)


def has_conversion() -> bool:
    """Return True if the processor converts float16 in hardware."""
    here = host_target()
    return here.triple.startswith(("aarch64", "arm64")) or "+f16c" in here.features.split(",")


def _integers(value: RegisterValue) -> ir.Type:
    return vector(I32, value.lanes)


def _narrow_to_bfloat16(k: Emitter, value: RegisterValue) -> RegisterValue:
    bits = k.bitcast(value, _integers(value))
    upper = k.shift_right(bits, 16)
    rounded = k.shift_right(bits + (upper & 1) + 0x7FFF, 16)
    # Rounding could turn a nan into infinity: keep its upper half and make it a quiet one.
    return k.convert(k.select(k.is_nan(value), upper | 0x40, rounded), I16)


def widen_by_integers(k: Emitter, bits: RegisterValue) -> RegisterValue:
    """float16 patterns as float32 without a conversion by the processor."""
    wide = k.convert(bits, I32, unsigned=True)
    sign = (wide & 0x8000) << 16
    magnitude = wide & 0x7FFF
    shifted = magnitude << 13
    small = k.convert(magnitude, F32) * 2.0**-24
    offset = k.select(magnitude < 0x7C00, k.constant((127 - 15) << 23, wide.type), (255 - 31) << 23)
    # Conversions by processors make nans quiet ones; so does this.
    quiet = k.select(magnitude > 0x7C00, k.constant(1 << 22, wide.type), 0)
    usual = (shifted + offset) | quiet
    found = k.select(magnitude < 0x400, k.bitcast(small, wide.type), usual)
    return k.bitcast(found | sign, vector(F32, bits.lanes))


def narrow_by_integers(k: Emitter, value: RegisterValue) -> RegisterValue:
    """float32 as float16 patterns without a conversion by the processor."""
    bits = k.bitcast(value, _integers(value))
    sign = k.shift_right(bits, 16) & 0x8000
    magnitude = bits & 0x7FFFFFFF
    odd = k.shift_right(magnitude, 13) & 1
    usual = k.shift_right(magnitude + odd + 0xFFF, 13) - ((127 - 15) << 10)
    # The last bit of a float32 near 0.5 is worth the smallest float16: adding 0.5 rounds to it.
    near_half = k.bitcast(magnitude, value.type) + 0.5
    small = k.bitcast(near_half, bits.type) - 0x3F000000
    finite = k.select(magnitude < 0x38800000, small, usual)
    nan = (k.shift_right(magnitude, 13) & 0x1FF) | 0x7E00
    special = k.select(magnitude > 0x7F800000, nan, 0x7C00)
    found = k.select(magnitude < 0x47800000, finite, special)
    return k.convert(found | sign, I16)


def _round_to_odd(k: Emitter, value: RegisterValue) -> RegisterValue:
    """Convert float64 to float32, rounding to odd.

    Rounding the result once more is then the same as rounding the float64 directly.
    """
    near = k.convert(value, F32)
    back = k.convert(near, F64)
    bits = k.bitcast(near, _integers(value))
    even = (bits & 1).equals(0)
    inexact = (back < value) | (back > value)
    absolute = k.intrinsic("llvm.fabs", back) > k.intrinsic("llvm.fabs", value)
    step = k.select(absolute, k.constant(-1, bits.type), 1)
    return k.bitcast(bits + k.select(even & inexact, step, 0), near.type)


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
    """Return the type that arithmetic on values of a dtype uses."""
    if name in HALF_NAMES:
        return F32
    return I1 if name == "bool" else MEMORY_TYPES[name]


def from_memory(k: Emitter, raw: RegisterValue, name: str) -> RegisterValue:
    """Return a loaded value in its computed type."""
    if name in HALF_NAMES:
        return widen(k, raw, name)
    return raw.differs(0) if name == "bool" else raw


def to_memory(k: Emitter, value: RegisterValue, name: str) -> RegisterValue:
    """Convert a computed value to its stored form."""
    if name in HALF_NAMES:
        return narrow(k, value, name)
    return k.convert(value, I8) if name == "bool" else value


def rounded(k: Emitter, value: RegisterValue, name: str) -> RegisterValue:
    """Return a computed value with no more digits than the dtype has."""
    return widen(k, narrow(k, value, name), name) if name in HALF_NAMES else value


def cast(k: Emitter, value: RegisterValue, source: str, target: str) -> RegisterValue:
    """Cast a value from one dtype to another, as NumPy does."""
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


def _to_uint64(k: Emitter, value: RegisterValue) -> RegisterValue:
    """Convert a float to uint64 by a signed conversion.

    Values from 2^63 on exceed the signed range. For them, 2^63 is subtracted first and restored as
    the highest bit.
    """
    half = 2.0**63
    is_large = value >= half
    whole = k.convert(k.select(is_large, value - half, value), I64)
    return k.select(is_large, whole ^ k.constant(-(1 << 63), whole.type), whole)


def constant(k: Emitter, value: bool | int | float, name: str, lanes: int) -> RegisterValue:
    """Return a constant of a dtype in all lanes."""
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
        """True if elements are rounded when they are stored."""
        return self.name in HALF_NAMES

    def at(self, index: Number) -> ElementPointer:
        """Return the address of the element with this index."""
        return ElementPointer(self.k, self.place.at(index), self.name)

    def load(
        self, index: Number = 0, count: int = 1, mask: RegisterValue | None = None
    ) -> RegisterValue:
        """Return the element with this index, or a vector of `count` from it on, with 0 in lanes
        that a mask leaves out."""
        return load_wide(self.k, self.place, index, count, self.name, mask)

    def store(self, index: Number, value: RegisterValue, mask: RegisterValue | None = None) -> None:
        """Write an element, one element per lane of a vector, or the lanes that a mask selects."""
        store_narrow(self.k, self.place, index, value, self.name, mask)


def copy_elements(
    k: Emitter,
    target: Pointer | ElementPointer,
    source: Pointer | ElementPointer,
    count: RegisterValue,
    lanes: int,
) -> None:
    """Copy elements that lie side by side in both arrays, `lanes` at a time."""
    for index, some in k.vectors(0, count, lanes, 1):
        target.store(index, source.load(index, some))
