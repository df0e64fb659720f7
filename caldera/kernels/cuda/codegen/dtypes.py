"""Element types in CUDA: how every dtype is stored, and what it is computed with.

Halves are computed with as floats; a result of half precision is rounded at once, so that it does
not depend on which ops were fused.
"""

from __future__ import annotations

import math
import struct

STORED: dict[str, str] = {
    "bool": "bool",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "half_t",
    "bfloat16": "bfloat_t",
    "float32": "float",
    "float64": "double",
}
"""The type of an element in memory."""
HALVES = ("float16", "bfloat16")


def computed_type(dtype: str) -> str:
    """The type that arithmetic on values of a dtype uses.

    >>> computed_type("bfloat16"), computed_type("int8")
    ('float', 'i8')
    """
    return "float" if dtype in HALVES else STORED[dtype]


def literal(value: bool | int | float, dtype: str) -> str:
    """A number of a dtype, to the last bit, in the computed type.

    >>> literal(0.1, "float64"), literal(True, "bool"), literal(-3, "int8")
    ('0x1.999999999999ap-4', 'true', '(i8)-3')
    """
    kind = computed_type(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("float", "double"):
        return _floating(float(value), kind)
    if kind in ("i64", "u64"):
        # The smallest number has no literal of its own.
        return f"({kind}){int(value) & (2**64 - 1)}ULL"
    return f"({kind}){int(value)}"


def _floating(value: float, kind: str) -> str:
    if math.isfinite(value):
        return value.hex() + ("f" if kind == "float" else "")
    if kind == "float":
        return f"bits_to_float({_bits(value, '<f', '<I'):#x}u)"
    return f"__longlong_as_double({_bits(value, '<d', '<Q'):#x}LL)"


def _bits(value: float, form: str, integer: str) -> int:
    return struct.unpack(integer, struct.pack(form, value))[0]
