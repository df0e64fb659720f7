"""Tensors: element types, shapes, fillers, random numbers, and the `Tensor` itself."""
# ruff: noqa: F401 - dtypes and shapes are for the other packages

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.core.tensor.creation import (
    constant,
    diagonal,
    from_array,
    from_dlpack,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    identity,
    normal,
    one,
    orthogonal,
    tensor,
    uniform,
    zero,
)
from caldera.core.tensor.dtype import (
    FLOATS,
    HALVES,
    INTEGERS,
    UNSIGNED,
    DType,
    array_of,
    bfloat16,
    bool_,
    canonical,
    complex64,
    complex_of,
    exactly,
    float16,
    float32,
    float64,
    has_dtype,
    int8,
    int16,
    int32,
    int64,
    is_complex,
    is_float,
    is_inexact,
    is_integer,
    of_scalar,
    part_of,
    promote,
    side_of_range,
    uint8,
    uint16,
    uint32,
    uint64,
)
from caldera.core.tensor.fillers import Filler
from caldera.core.tensor.random import global_seed, next_stream, seed
from caldera.core.tensor.shape import (
    Shape,
    as_list,
    as_shape,
    broadcast_shapes,
    index_arrays,
    normalise_axes,
    normalise_axis,
    size,
)
from caldera.core.tensor.tensor import Tensor

__all__ = [
    "Filler",
    "Tensor",
    "constant",
    "diagonal",
    "from_array",
    "from_dlpack",
    "global_seed",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "identity",
    "next_stream",
    "normal",
    "one",
    "orthogonal",
    "seed",
    "tensor",
    "uniform",
    "zero",
]

_guard(globals())
