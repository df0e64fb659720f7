"""Comparison, truth values, and choosing by them."""

from __future__ import annotations

from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import bool_
from caldera.onnx.operators.registry import operator
from caldera.onnx.operators.values import Value, laid_along


def _binary(function: Any) -> Any:
    def translate(a: Value, b: Value, *, axis: int | None = None, broadcast: int = 0) -> Expr:
        return function(a, laid_along(a, b, axis, broadcast))

    return translate


for _name, _function in (
    ("And", op.logical_and),
    ("Or", op.logical_or),
    ("Xor", op.logical_xor),
    ("Less", op.less),
    ("LessOrEqual", op.less_equal),
    ("Greater", op.greater),
    ("GreaterOrEqual", op.greater_equal),
):
    operator(_name)(_binary(_function))

operator("Equal", numpy=np.equal)(_binary(op.equal))
operator("Not")(lambda x: op.logical_not(x))
operator("IsNaN")(lambda x: op.isnan(x))


@operator("IsInf")
def is_inf(x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Expr:
    """Whether it is infinite, on the sides that count."""
    above = op.equal(x, np.inf) if detect_positive else _never(x)
    below = op.equal(x, -np.inf) if detect_negative else _never(x)
    return op.logical_or(above, below)


def _never(x: Value) -> Expr:
    return op.broadcast(op.cast(False, bool_), x.shape)


@operator("Where", moves=True)
def where(condition: Value, a: Value, b: Value) -> Expr:
    """a where the condition is true, b elsewhere."""
    return op.where(condition, a, b)
