"""Export rules of ops that one operator or a short formula of ONNX expresses; reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.core.tensor.dtype import int64, is_float, uint64
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
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "bitwise_invert": "BitwiseNot",
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
    "determinant": "Det",
}


_WITH_ATTRIBUTES: dict[str, tuple[str, dict[str, str]]] = {
    "leaky_relu": ("LeakyRelu", {"alpha": "slope"}),
    "elu": ("Elu", {"alpha": "alpha"}),
    "softmax": ("Softmax", {"axis": "axis"}),
    "log_softmax": ("LogSoftmax", {"axis": "axis"}),
    "argmax": ("ArgMax", {"axis": "axis", "keepdims": "keepdims"}),
    "argmin": ("ArgMin", {"axis": "axis", "keepdims": "keepdims"}),
    "transpose": ("Transpose", {"perm": "axes"}),
    "concat": ("Concat", {"axis": "axis"}),
}
"""The operator, and Caldera's name of each of its attributes."""

_FORMULAS: dict[str, Callable[..., str]] = {
    "not_equal": lambda add, number, a, b: add("Not", add("Equal", a, b)),
    "isfinite": lambda add, number, x: add("Not", add("Or", add("IsInf", x), add("IsNaN", x))),
    "square": lambda add, number, x: add("Mul", x, x),
    "rsqrt": lambda add, number, x: add("Reciprocal", add("Sqrt", x)),
    "log1p": lambda add, number, x: add("Log", add("Add", x, number(1))),
    "expm1": lambda add, number, x: add("Sub", add("Exp", x), number(1)),
    "log2": lambda add, number, x: add("Mul", add("Log", x), number(1 / math.log(2))),
    "log10": lambda add, number, x: add("Mul", add("Log", x), number(1 / math.log(10))),
    "exp2": lambda add, number, x: add("Pow", number(2), x),
    "erfc": lambda add, number, x: add("Sub", number(1), add("Erf", x)),
    "copysign": lambda add, number, a, b: add(
        "Where",
        # A negative zero is not less than zero, but its reciprocal is.
        add("Or", add("Less", b, number(0)), add("Less", add("Reciprocal", b), number(0))),
        add("Neg", add("Abs", a)),
        add("Abs", a),
    ),
    "silu": lambda add, number, x: add("Mul", x, add("Sigmoid", x)),
    "hard_sigmoid": lambda add, number, x: add("HardSigmoid", x, alpha=1 / 6, beta=0.5),
}
"""By `add`, which writes an operator, and `number`, a constant of the result's dtype."""

_REDUCTIONS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


@writes(*_SAME, *_WITH_ATTRIBUTES)
def _operator(write: Any, pair: Any) -> str:
    operator, names = _WITH_ATTRIBUTES.get(pair.name) or (_SAME[pair.name], {})
    attributes = {theirs: pair.attrs[ours] for theirs, ours in names.items()}
    return write.add(operator, *inputs(write, pair), **attributes)


@writes(*_FORMULAS)
def _formula(write: Any, pair: Any) -> str:
    def number(value: float) -> str:
        return write.scalar(value, pair.spec.dtype)

    return _FORMULAS[pair.name](write.add, number, *inputs(write, pair))


@writes("bitwise_left_shift", "bitwise_right_shift")
def _shift(write: Any, pair: Any) -> str:
    """Shift in uint64: `BitShift` takes no signed integers, and no count of all bits or more."""
    dtype, to_left = pair.spec.dtype, pair.name == "bitwise_left_shift"

    def cast(name: str, wanted: Any) -> str:
        return write.add("Cast", name, to=write.element_type(wanted))

    def number(value: int) -> str:
        return write.scalar(value, int64)

    x, count = (cast(each, int64) for each in inputs(write, pair))
    none, bits = number(0), number(8 * dtype.itemsize - 1)
    beyond = write.add("Or", write.add("Less", count, none), write.add("Greater", count, bits))
    sign = none
    if not to_left and dtype != uint64:
        # A negative number is shifted right as its complement, which is not negative.
        sign = write.add("Where", write.add("Less", x, none), number(-1), none)
        x = write.add("BitwiseXor", x, sign)
    moved = write.add(
        "BitShift",
        cast(x, uint64),
        cast(write.add("Where", beyond, none, count), uint64),
        direction="LEFT" if to_left else "RIGHT",
    )
    kept = write.add("Where", beyond, none, cast(moved, int64))
    return cast(write.add("BitwiseXor", kept, sign) if sign != none else kept, dtype)


@writes(*_REDUCTIONS)
def _reduced(write: Any, pair: Any) -> str:
    axes, keepdims = list(pair.attrs["axis"]), int(pair.attrs["keepdims"])
    if not axes:
        # Without axes ONNX would reduce all axes.
        return NotImplemented
    over = write.integers(axes)
    return write.add(_REDUCTIONS[pair.name], *inputs(write, pair), over, keepdims=keepdims)


@writes("floor_div")
def _floor_div(write: Any, pair: Any) -> str:
    a, b = inputs(write, pair)
    if is_float(pair.spec.dtype):
        return write.add("Floor", write.add("Div", a, b))
    # ONNX rounds integer division towards zero; the remainder is subtracted first.
    return write.add("Div", write.add("Sub", a, write.add("Mod", a, b)), b)


@writes("mod")
def _mod(write: Any, pair: Any) -> str:
    a, b = inputs(write, pair)
    if not is_float(pair.spec.dtype):
        return write.add("Mod", a, b)
    whole = write.add("Floor", write.add("Div", a, b))
    return write.add("Sub", a, write.add("Mul", whole, b))


@writes("cumsum")
def _cumsum(write: Any, pair: Any) -> str:
    axis = write.scalar(pair.attrs["axis"], np.dtype(np.int64))
    return write.add("CumSum", *inputs(write, pair), axis, reverse=int(pair.attrs["reverse"]))
