"""Products of matrices stored as 8-bit floating-point numbers with one scale per matrix.

Two formats exist (Micikevicius et al., FP8 formats for deep learning, 2022). "e4m3" has 4 bits of
exponent and 3 of mantissa, up to 448, without infinities; "e5m2" has 5 and 2, up to 57344. Values
are multiplied by a factor before they are rounded, and products are divided by both factors. Bytes
are stored as uint8. The ops have no gradient: the float8 pass uses them after differentiation.
"""

from __future__ import annotations

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import composite, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops import abs_, cast, constant, div, max_, maximum
from caldera.core.tensor.dtype import DType, float32, is_float, uint8

LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
"""The largest number of each format."""
LEAST = 2.0**-100
"""Smallest number that is scaled to the largest: factors of smaller ones would overflow."""


@composite("float8_factor", differentiable=False)
def float8_factor(x: Node, *, form: str) -> Node:
    """Return the float32 factor that makes the largest size in a matrix the format's largest."""
    if len(x.shape) != 2:
        refuse_shape("a matrix")
    size = cast(max_(abs_(x), axis=(0, 1), keepdims=False), float32)
    return div(constant(LARGEST[form], float32), maximum(size, constant(LEAST, float32)))


@op("to_float8")
def to_float8(
    x: Spec, factor: Spec, *, form: str, transposed: tuple[bool, ...]
) -> tuple[Spec, ...]:
    """Return `x * factor` rounded to the format `form`, once for each entry of `transposed`.

    False requests the matrix as it is, True the transposed matrix. Ties round to even, and numbers
    beyond the range become the largest number; nan stays nan.
    """
    if x.rank != 2 or factor.shape:
        refuse_shape("a matrix and one number")
    if transposed not in ((False,), (True,), (False, True)):
        refuse_shape("each layout at most once")
    if not is_float(x.dtype) or factor.dtype != float32 or form not in LARGEST:
        refuse_dtype("a matrix of floats, a float32 factor, and a format: e4m3 or e5m2")
    return tuple(Spec(x.shape[::-1] if each else x.shape, uint8) for each in transposed)


@op(
    "float8_matmul",
    kind="product",
    flops=lambda node: 2 * node.spec.size * node.inputs[0].shape[1],
)
def float8_matmul(
    a: Spec, b: Spec, scale: Spec, *, forms: tuple[str, str], dtype: DType, fast: bool
) -> Spec:
    """Return `scale * (a @ b.T)` for matrices in these formats: both are read along their rows.

    `fast` allows tensor cores to keep fewer digits of partial sums.
    """
    if a.rank != 2 or b.rank != 2 or scale.shape or a.shape[1] != b.shape[1]:
        refuse_shape("two matrices with rows of equal length, and a scalar")
    if (a.dtype, b.dtype, scale.dtype) != (uint8, uint8, float32):
        refuse_dtype("two matrices of bytes and a float32 scale")
    return Spec((a.shape[0], b.shape[0]), dtype)
