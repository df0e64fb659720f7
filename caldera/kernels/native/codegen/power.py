"""Powers of floating-point numbers, with every special case of IEEE 754."""

from __future__ import annotations

import math

from caldera.kernels.native.codegen.emitter import F32, F64, Emitter, Value
from caldera.kernels.native.codegen.libm import call_libm, is_single
from caldera.kernels.native.codegen.math import absolute, exp, log, nearest


def power(k: Emitter, a: Value, b: Value) -> Value:
    """a^b. float32 is computed as exp(b log a) in float64, which leaves digits to spare."""
    if not is_single(a):
        return call_libm(k, "pow", a, b)
    base, exponent = k.convert(a, F64), k.convert(b, F64)
    result = exp(k, exponent * log(k, absolute(k, base)))
    whole = nearest(k, exponent).equals(exponent)
    half = exponent * 0.5
    odd = whole & nearest(k, half).differs(half)
    signed = k.intrinsic("llvm.copysign", result, base)
    result = k.select(odd, signed, result)
    # A negative number has roots only if it is infinite.
    rootless = (base < 0.0) & (base > -math.inf) & ~whole
    result = k.select(rootless, k.constant(math.nan, base.type), result)
    endless = absolute(k, exponent).equals(math.inf)
    one = exponent.equals(0.0) | base.equals(1.0) | (base.equals(-1.0) & endless)
    return k.convert(k.select(one, k.constant(1.0, base.type), result), F32)
