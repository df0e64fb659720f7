"""The code generator of native kernels: what modules with kernels import from it.

`emitter` writes instructions, `kernel` ties arguments to them, `compiler` makes machine code, and
`program` runs it; `strides` describes how arrays are laid out. Mathematical functions (`math`) and
products by a BLAS (`matrix_multiply`) are imported as modules of their own.
"""

from __future__ import annotations

from caldera.kernels.native.codegen.dtypes import (
    HALF_NAMES,
    MEMORY_TYPES,
    UNSIGNED,
    ElementPointer,
    cast,
    computed_type,
    constant,
    from_memory,
    load_wide,
    rounded,
    store_narrow,
    to_memory,
)
from caldera.kernels.native.codegen.emitter import (
    Emitter,
)
from caldera.kernels.native.codegen.kernel import (
    INTEGERS,
    Integer,
    NativeCall,
    NativeKernel,
    Real,
    address_of,
    addresses_of,
    as_integers,
    native_kernel,
)
from caldera.kernels.native.codegen.program import (
    NativeRunner,
    in_sequence,
    run_now,
)
from caldera.kernels.native.codegen.strides import (
    Strides,
    any_layout,
    collapse_axes,
    offer,
    parts_for,
    shares_for,
    stride_of,
)
from caldera.kernels.native.codegen.target import (
    CACHE_LINE,
    host_target,
)
from caldera.kernels.native.codegen.values import (
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    MutableRegister,
    Number,
    Pointer,
    RegisterValue,
    element,
    is_floating,
    itemsize,
    lanes,
    line_lanes,
    natural_lanes,
    shrinking,
    vector,
)

__all__ = [
    "CACHE_LINE",
    "F32",
    "F64",
    "HALF_NAMES",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "INTEGERS",
    "MEMORY_TYPES",
    "POINTER",
    "UNSIGNED",
    "ElementPointer",
    "Emitter",
    "Integer",
    "MutableRegister",
    "NativeCall",
    "NativeKernel",
    "NativeRunner",
    "Number",
    "Pointer",
    "Real",
    "RegisterValue",
    "Strides",
    "address_of",
    "addresses_of",
    "any_layout",
    "as_integers",
    "cast",
    "collapse_axes",
    "computed_type",
    "constant",
    "element",
    "from_memory",
    "host_target",
    "in_sequence",
    "is_floating",
    "itemsize",
    "lanes",
    "line_lanes",
    "load_wide",
    "native_kernel",
    "natural_lanes",
    "offer",
    "parts_for",
    "rounded",
    "run_now",
    "shares_for",
    "shrinking",
    "store_narrow",
    "stride_of",
    "to_memory",
    "vector",
]
