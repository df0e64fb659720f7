"""Element-wise ops in NumPy. Most are a ufunc, which faster kernels use with an output array."""

from __future__ import annotations

import numpy as np

from caldera.kernels.reference.erf import erf
from caldera.kernels.reference.registry import reference
from caldera.tensor.dtype import DType, bool_

UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "neg": np.negative,
    "pow": np.power, "floor_div": np.floor_divide, "mod": np.remainder, "maximum": np.maximum,
    "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "logical_and": np.logical_and, "logical_or": np.logical_or, "logical_xor": np.logical_xor,
    "logical_not": np.logical_not, "isfinite": np.isfinite, "isnan": np.isnan, "exp": np.exp,
    "log": np.log, "log1p": np.log1p, "expm1": np.expm1, "sqrt": np.sqrt, "square": np.square,
    "reciprocal": np.reciprocal, "abs": np.absolute, "sign": np.sign, "floor": np.floor,
    "ceil": np.ceil, "round": np.rint, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
}  # fmt: skip
for _name, _ufunc in UFUNCS.items():
    reference(_name)(_ufunc)
reference("where")(np.where)
reference("erf")(erf)


@reference("cast")
def _cast(x: np.ndarray, *, dtype: DType) -> np.ndarray:
    return x != 0 if dtype == bool_ else x.astype(dtype)


@reference("stop_gradient")
def _stop_gradient(x: np.ndarray) -> np.ndarray:
    return x


@reference("rsqrt")
def _rsqrt(x: np.ndarray) -> np.ndarray:
    return np.reciprocal(np.sqrt(x))


@reference("sigmoid")
def _sigmoid(x: np.ndarray) -> np.ndarray:
    # exp of a negative number never overflows, and dividing keeps full accuracy at both ends.
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


@reference("relu")
def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)
