"""Functions of one argument, element by element."""

from __future__ import annotations

from typing import Any

from caldera import op
from caldera.onnx.operators.registry import operator


def _same_dtype(function: Any) -> Any:
    return lambda x: op.cast(function(x), x.dtype)


for _name, _function in {
    "Abs": op.abs,
    "Neg": op.neg,
    "Sign": op.sign,
    "Exp": op.exp,
    "Log": op.log,
    "Sqrt": op.sqrt,
    "Reciprocal": op.reciprocal,
    "Floor": op.floor,
    "Ceil": op.ceil,
    "Round": op.round,
    "Sin": op.sin,
    "Cos": op.cos,
    "Tan": op.tan,
    "Asin": op.asin,
    "Acos": op.acos,
    "Atan": op.atan,
    "Sinh": op.sinh,
    "Cosh": op.cosh,
    "Tanh": op.tanh,
    "Asinh": op.asinh,
    "Acosh": op.acosh,
    "Atanh": op.atanh,
    "Erf": op.erf,
    "Sigmoid": op.sigmoid,
}.items():
    operator(_name)(_same_dtype(_function))
