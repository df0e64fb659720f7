"""Functions of the C library, called lane by lane where vector code would not be worth its length.

The linker finds them by name when a compiled kernel is loaded, so kernels kept on disk stay valid.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache

from llvmlite import ir

from caldera.kernels.native.codegen.emitter import F32, F64, Emitter, Value, element

NEEDED = (
    "sin",
    "cos",
    "pow",
    "fmod",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "log2",
    "log10",
    "exp2",
    "erfc",
    "lgamma",
)


@lru_cache(maxsize=1)
def has_libm() -> bool:
    """Whether this process has the C library's mathematical functions under their usual names."""
    if os.name != "posix":
        return False
    everything = ctypes.CDLL(None)
    return all(hasattr(everything, name) for name in NEEDED)


def call_libm(k: Emitter, name: str, *operands: Value) -> Value:
    """A function of the C library for float64, in each lane. float32 is computed in float64."""
    kind = operands[0].type
    function = k.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(F64, [F64] * len(operands))
        function = ir.Function(k.module, signature, name)
    if operands[0].lanes == 1:
        wide = [k.convert(each, F64) for each in operands]
        return k.convert(k.call(function, *wide), element(kind))
    # The vectors go through memory: LLVM would keep all lanes in registers across every call.
    count = operands[0].lanes
    buffers = [k.alloca(element(kind), count) for _ in operands]
    for buffer, operand in zip(buffers, operands, strict=True):
        buffer.store(0, operand)
    with k.loop(0, count) as lane:
        wide = [k.convert(buffer.load(lane), F64) for buffer in buffers]
        buffers[0].store(lane, k.convert(k.call(function, *wide), element(kind)))
    return buffers[0].load(0, count)


def is_single(x: Value) -> bool:
    """Whether a value is of float32."""
    return element(x.type) == F32
