"""Tensors: element types, shapes, fillers, random numbers, and the `Tensor` itself."""

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
from caldera.core.tensor.fillers import Filler
from caldera.core.tensor.random import global_seed, next_stream, seed
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
