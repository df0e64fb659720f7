"""Export rules of elementwise ops and reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caldera.core.tensor.dtype import is_float
from caldera.onnx.writing.rules.registry import inputs, writes

_SAME = {
    "sub": "Sub",
    "mul": "Mul",
    "div": "Div",
    "neg": "Neg",
    "pow": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
    "isnan": "IsNaN",
    "where": "Where",
    "stop_gradient": "Identity",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "abs": "Abs",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "round": "Round",
    "sin": "Sin",
    "cos": "Cos",
    "tanh": "Tanh",
    "erf": "Erf",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "softplus": "Softplus",
    "hard_swish": "HardSwish",
    "tan": "Tan",
    "asin": "Asin",
    "acos": "Acos",
    "atan": "Atan",
    "sinh": "Sinh",
    "cosh": "Cosh",
    "asinh": "Asinh",
    "acosh": "Acosh",
    "atanh": "Atanh",
    "softsign": "Softsign",
    "mish": "Mish",
    "prelu": "PRelu",
}


def _as(operator: str) -> Any:
    return lambda write, pair: write.add(operator, *inputs(write, pair))


for _ours, _theirs in _SAME.items():
    writes(_ours)(_as(_theirs))


@writes("not_equal")
def _not_equal(write: Any, pair: Any) -> str:
    return write.add("Not", write.add("Equal", *inputs(write, pair)))


@writes("isfinite")
def _isfinite(write: Any, pair: Any) -> str:
    (x,) = inputs(write, pair)
    return write.add("Not", write.add("Or", write.add("IsInf", x), write.add("IsNaN", x)))


@writes("square")
def _square(write: Any, pair: Any) -> str:
    (x,) = inputs(write, pair)
    return write.add("Mul", x, x)


@writes("rsqrt")
def _rsqrt(write: Any, pair: Any) -> str:
    return write.add("Reciprocal", write.add("Sqrt", *inputs(write, pair)))


@writes("log1p")
def _log1p(write: Any, pair: Any) -> str:
    one = write.scalar(1, pair.spec.dtype)
    return write.add("Log", write.add("Add", *inputs(write, pair), one))


@writes("expm1")
def _expm1(write: Any, pair: Any) -> str:
    one = write.scalar(1, pair.spec.dtype)
    return write.add("Sub", write.add("Exp", *inputs(write, pair)), one)


@writes("log2", "log10")
def _other_logarithm(write: Any, pair: Any) -> str:
    base = 2 if pair.name == "log2" else 10
    scale = write.scalar(1 / math.log(base), pair.spec.dtype)
    return write.add("Mul", write.add("Log", *inputs(write, pair)), scale)


@writes("exp2")
def _exp2(write: Any, pair: Any) -> str:
    return write.add("Pow", write.scalar(2, pair.spec.dtype), *inputs(write, pair))


@writes("erfc")
def _erfc(write: Any, pair: Any) -> str:
    one = write.scalar(1, pair.spec.dtype)
    return write.add("Sub", one, write.add("Erf", *inputs(write, pair)))


@writes("floor_div")
def _floor_div(write: Any, pair: Any) -> str:
    a, b = inputs(write, pair)
    if is_float(pair.spec.dtype):
        return write.add("Floor", write.add("Div", a, b))
    # ONNX divides whole numbers towards zero; what is over goes away first.
    return write.add("Div", write.add("Sub", a, write.add("Mod", a, b)), b)


@writes("mod")
def _mod(write: Any, pair: Any) -> str:
    a, b = inputs(write, pair)
    if not is_float(pair.spec.dtype):
        return write.add("Mod", a, b)
    whole = write.add("Floor", write.add("Div", a, b))
    return write.add("Sub", a, write.add("Mul", whole, b))


@writes("leaky_relu")
def _leaky_relu(write: Any, pair: Any) -> str:
    return write.add("LeakyRelu", *inputs(write, pair), alpha=pair.attrs["slope"])


@writes("elu")
def _elu(write: Any, pair: Any) -> str:
    return write.add("Elu", *inputs(write, pair), alpha=pair.attrs["alpha"])


@writes("hard_sigmoid")
def _hard_sigmoid(write: Any, pair: Any) -> str:
    return write.add("HardSigmoid", *inputs(write, pair), alpha=1 / 6, beta=0.5)


@writes("silu")
def _silu(write: Any, pair: Any) -> str:
    (x,) = inputs(write, pair)
    return write.add("Mul", x, write.add("Sigmoid", x))


@writes("softmax")
def _softmax(write: Any, pair: Any) -> str:
    return write.add("Softmax", *inputs(write, pair), axis=pair.attrs["axis"])


@writes("log_softmax")
def _log_softmax(write: Any, pair: Any) -> str:
    return write.add("LogSoftmax", *inputs(write, pair), axis=pair.attrs["axis"])


_OPERATORS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


def _reduced(write: Any, pair: Any) -> str:
    axes = list(pair.attrs["axis"])
    (x,) = inputs(write, pair)
    if not axes:
        # Without axes ONNX would take all of them.
        return NotImplemented
    return write.add(
        _OPERATORS[pair.name], x, write.integers(axes), keepdims=int(pair.attrs["keepdims"])
    )


writes(*_OPERATORS)(_reduced)


def _position(operator: str) -> Any:
    def rule(write: Any, pair: Any) -> str:
        keepdims = int(pair.attrs["keepdims"])
        return write.add(operator, *inputs(write, pair), axis=pair.attrs["axis"], keepdims=keepdims)

    return rule


writes("argmax")(_position("ArgMax"))
writes("argmin")(_position("ArgMin"))


@writes("cumsum")
def _cumsum(write: Any, pair: Any) -> str:
    axis = write.scalar(pair.attrs["axis"], np.dtype(np.int64))
    return write.add("CumSum", *inputs(write, pair), axis, reverse=int(pair.attrs["reverse"]))
