"""Matrix products and determinants."""

from __future__ import annotations

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import float64, is_float
from caldera.onnx.operators.registry import Value, operator


@operator("MatMul")
def matmul(a: Value, b: Value) -> Expr:
    """The product; that of whole numbers is computed in float64, which holds them exactly."""
    if is_float(a.dtype):
        return op.matmul(a, b)
    return op.cast(op.matmul(op.cast(a, float64), op.cast(b, float64)), a.dtype)


@operator("Gemm")
def gemm(
    a: Value,
    b: Value,
    c: Value = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Expr:
    """alpha a b + beta c."""
    y = op.matmul(a, b, bool(transA), bool(transB))
    if alpha != 1:
        y = op.mul(y, alpha)
    if c is None or beta == 0:
        return y
    return op.add(y, c if beta == 1 else op.mul(c, beta))


@operator("Det")
def det(x: Value) -> Expr:
    """The determinant of each matrix."""
    return op.determinant(x)
