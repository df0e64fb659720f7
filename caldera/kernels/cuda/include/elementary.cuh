// Element-wise functions that few sources use, named as in math.cuh: angles, hyperbolic functions, other
// bases, and the tails of the normal distribution and of the gamma function.
#pragma once
#include "math.cuh"

BOTH(op_erfc, erfcf, erfc)
BOTH(op_lgamma, lgammaf, lgamma)
BOTH(op_log2, log2f, log2)
BOTH(op_log10, log10f, log10)
BOTH(op_exp2, exp2f, exp2)
BOTH(op_tan, tanf, tan)
BOTH(op_asin, asinf, asin)
BOTH(op_acos, acosf, acos)
BOTH(op_atan, atanf, atan)
BOTH_OF_TWO(op_atan2, atan2f, atan2)
BOTH(op_sinh, sinhf, sinh)
BOTH(op_cosh, coshf, cosh)
BOTH(op_asinh, asinhf, asinh)
BOTH(op_acosh, acoshf, acosh)
BOTH(op_atanh, atanhf, atanh)
