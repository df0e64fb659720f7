"""The names of the array API standard (2024.12) over Caldera, for the standard's test suite.

    git clone --recursive https://github.com/data-apis/array-api-tests
    export ARRAY_API_TESTS_MODULE="exec('from tools.array_api import xp')"
    PYTHONPATH=. pytest array-api-tests/array_api_tests --xfails-file tools/array_api_xfails.txt

Every function computes its result at once. Functions that Caldera has in parts are put together in
`array_api_functions.py`; `array_api_xfails.txt` lists the tests that fail, with reasons.
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

import caldera as cd
from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import promote
from tools.array_api_functions import EXACT, FFT, LINALG

FLOAT = np.dtype("float32")
SAME = """abs acos acosh asin asinh atan atan2 atanh bitwise_and bitwise_invert bitwise_left_shift
bitwise_or bitwise_right_shift bitwise_xor conj copysign cos cosh equal exp expm1 greater
greater_equal hypot imag isfinite isinf isnan less less_equal log log1p log2 log10 logaddexp
logical_and logical_not logical_or logical_xor maximum minimum not_equal positive pow real
reciprocal sign signbit sin sinh sqrt square tan tanh where all any argmax argmin max min mean std
roll squeeze tile reshape moveaxis flip sort argsort take_along_axis searchsorted tensordot matmul
arange"""
OPERATORS = """add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow
matmul rmatmul and rand or ror xor rxor lshift rlshift rshift rrshift lt le gt ge eq ne neg pos abs
invert"""


class Array:
    """A tensor with the attributes of the standard, whose operators compute at once."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __getattr__(self, name: str) -> Any:
        if name not in ("shape", "dtype", "ndim", "size", "device", "T"):
            raise AttributeError(name)
        return _wrapped(getattr(self.tensor, name))

    mT = property(lambda self: xp.matrix_transpose(self))

    def __getitem__(self, key: Any) -> Array:
        return _wrapped(self.tensor[_key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tensor[_key(key)] = _given(value)

    def __repr__(self) -> str:
        return repr(self.tensor)


def _key(key: Any) -> Any:
    parts = [_given(part) for part in (key if isinstance(key, tuple) else (key,))]
    whole = [isinstance(x, cd.Tensor) and not x.shape and x.dtype.kind in "iu" for x in parts]
    return tuple(x.item() if is_int else x for x, is_int in zip(parts, whole, strict=True))


def _given(value: Any) -> Any:
    if isinstance(value, Array):
        return value.tensor
    return type(value)(map(_given, value)) if isinstance(value, list | tuple) else value


def _wrapped(value: Any) -> Any:
    """Return arrays for expressions and tensors, also inside lists and tuples."""
    if isinstance(value, list | tuple) and any(isinstance(x, Expr) for x in value):
        parts = [_wrapped(x) for x in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    value = value.eval() if isinstance(value, Expr) else value
    value = cd.tensor(value) if isinstance(value, np.generic | np.ndarray) else value
    return Array(value) if isinstance(value, cd.Tensor) else value


def _over(function: Any) -> Any:
    """Return a function of Caldera as a function of arrays."""

    def run(*args: Any, device: Any = None, **named: Any) -> Any:
        return _wrapped(function(*_given(args), **{n: _given(x) for n, x in named.items()}))

    return run


for _name in OPERATORS.split():
    setattr(Array, f"__{_name}__", _over(getattr(cd.Tensor, f"__{_name}__")))
for _convert in (bool, int, float, complex, operator.index):
    setattr(
        Array,
        f"__{_convert.__name__}__",
        lambda self, convert=_convert: convert(self.tensor.item()),
    )


def _asarray(x: Any, /, *, dtype: Any = None, copy: bool | None = None) -> Any:
    if not isinstance(x, cd.Tensor):
        return cd.tensor(x, dtype=dtype)
    same = dtype in (None, x.dtype)
    return x if same and not copy else x.copy() if same else x.astype(dtype)


def _dtype_of(x: Any) -> Any:
    return x if isinstance(x, np.dtype) else x.dtype


def _meet(*xs: Any) -> Any:
    return reduce(promote, [_dtype_of(x) for x in xs if not np.isscalar(x)])


def _is_kind(dtype: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_is_kind(dtype, each) for each in kind)
    kinds = {"bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu"}
    kinds |= {"real floating": "f", "complex floating": "c", "numeric": "iufc"}
    return dtype.kind in kinds[kind] if isinstance(kind, str) else dtype == kind


def _full(shape: Any, fill_value: Any, *, dtype: Any = None) -> Any:
    return op.broadcast(cd.tensor(fill_value, dtype=dtype), shape)


def _full_like(x: Any, /, fill_value: Any, *, dtype: Any = None) -> Any:
    return _full(x.shape, fill_value, dtype=dtype or x.dtype)


FUNCTIONS: dict[str, Any] = {
    **{name: getattr(op, name) for name in SAME.split()},
    **EXACT,
    "asarray": _asarray,
    "astype": lambda x, dtype, /, *, copy=True: _asarray(x, dtype=dtype, copy=copy),
    "full": _full,
    "full_like": _full_like,
    # The suite draws diagonals beyond 64 bits.
    "eye": lambda n, m=None, /, *, k=0, dtype=FLOAT: op.eye(
        n, m, max(-n, min(k, n if m is None else m)), dtype=dtype
    ),
    "linspace": lambda start, stop, /, num, *, dtype=None, endpoint=True: op.linspace(
        start, stop, num, endpoint=endpoint, dtype=dtype or FLOAT
    ),
    "meshgrid": lambda *xs, indexing="xy": list(op.meshgrid(*xs, indexing=indexing)),
    "isdtype": _is_kind,
    "finfo": lambda x: np.finfo(_dtype_of(x)),
    "iinfo": lambda x: np.iinfo(_dtype_of(x)),
    "result_type": _meet,
    "can_cast": lambda x, to, /: _meet(x, to) == to,
}
for _name, _value in {"zeros": 0, "ones": 1, "empty": 0}.items():
    FUNCTIONS[_name] = lambda shape, *, dtype=None, value=_value: _full(
        shape, value, dtype=dtype or FLOAT
    )
    FUNCTIONS[f"{_name}_like"] = lambda x, /, *, dtype=None, value=_value: _full_like(
        x, value, dtype=dtype
    )


def _namespace(functions: dict[str, Any], **more: Any) -> Any:
    return SimpleNamespace(**{name: _over(each) for name, each in functions.items()}, **more)


DEFAULTS = {"real floating": FLOAT, "integral": np.dtype("int64")}
xp = _namespace(
    FUNCTIONS,
    __name__="caldera",
    __version__=cd.__version__,
    __array_namespace_info__=lambda: SimpleNamespace(default_dtypes=lambda **how: DEFAULTS),
    linalg=_namespace(LINALG),
    fft=_namespace(FFT),
    newaxis=None,
    **{name: getattr(math, name) for name in ("e", "inf", "nan", "pi")},
    **{dtype.name: dtype for dtype in map(np.dtype, "?bhilBHILfdFD")},
)
"""The namespace of the standard."""
