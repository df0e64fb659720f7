"""Leaf nodes, assignment, casts, and the base ops that other gradients are built from.

Broadcast and sum are mutual gradients, and so are a complex number and its parts. Before a program
runs, `caldera.compiler.passes.complex_parts` replaces each complex value by its two parts. Complex
dtypes remain only as the memory format of variables, inputs and results, with the parts of a number
next to each other. Composite ops compute half precision in float32 (`widened`) and round once at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any

import numpy as np

from caldera.core.graph import (
    MOST_KNOWN,
    Node,
    Spec,
    Symbol,
    as_tuple,
    frozen,
    op,
    refuse_dtype,
    refuse_shape,
)
from caldera.core.tensor import (
    HALVES,
    DType,
    Shape,
    bool_,
    complex_of,
    float32,
    float64,
    is_complex,
    is_float,
    is_inexact,
    part_of,
    size,
)
from caldera.errors import DtypeError

Number = bool | int | float | complex
_NUMBERS = frozenset({bool, int, float, complex})


@op("constant", kind="leaf")
def _constant(*, value: Number, dtype: DType) -> Spec:
    return Spec((), dtype)


_known: dict[Hashable, Node] = {}
"""Constants by value: the same few are created many times."""


def constant(value: Number, dtype: DType) -> Node:
    """Return a scalar constant, rounded to `dtype`."""
    if type(value) not in _NUMBERS:
        value = np.asarray(value).item()
    key = (frozen(value), dtype)
    node = _known.get(key)
    if node is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        node = _known[key] = _constant(value=_rounded(value, dtype), dtype=dtype)
    return node


def _rounded(value: Number, dtype: DType) -> Number:
    try:
        rounded = np.asarray(value).astype(dtype)[()]
    except OverflowError:
        raise DtypeError.build(
            "constant", expected=f"a number that {dtype} can hold", got=str(value)
        ) from None
    if is_float(dtype):
        return float(rounded)
    if is_complex(dtype):
        return complex(rounded)
    return bool(rounded) if dtype == np.bool_ else int(rounded)


@op("variable", kind="leaf")
def variable(*, symbol: Symbol) -> Spec:
    """State that lives between runs and may be assigned."""
    return symbol.spec


@op("input", kind="leaf")
def input_(*, symbol: Symbol) -> Spec:
    """A value fed at each run."""
    return symbol.spec


@op("tensor", kind="leaf")
def tensor(*, symbol: Symbol) -> Spec:
    """User's tensor; a run reads its current values."""
    return symbol.spec


@op("array", kind="leaf")
def array(*, symbol: Symbol) -> Spec:
    """Return a constant array: it never changes, so it may be folded."""
    return symbol.spec


@op("iota", kind="leaf")
def iota(*, shape: Shape, axis: int, dtype: DType) -> Spec:
    """Return the index along `axis`, as a value of `shape`."""
    return Spec(shape, dtype)


@op("assign", kind="state")
def assign(target: Spec, value: Spec) -> Spec:
    """Return the value, which is assigned to `target` by the end of the run."""
    if value.shape != target.shape:
        refuse_shape("a value of the variable's shape")
    if value.dtype != target.dtype:
        refuse_dtype("a value of the variable's dtype", hint="cast it with op.cast")
    return value


Axes = tuple[int, ...]


@op("broadcast_to", kind="movement", gradient=lambda g, y, x, *, shape: (sum_to(g, x.shape),))
def _broadcast_to(x: Spec, *, shape: Shape) -> Spec:
    padded = (1,) * (len(shape) - x.rank) + x.shape
    fits = len(padded) == len(shape) and all(
        have in (1, want) for have, want in zip(padded, shape, strict=True)
    )
    if not fits:
        refuse_shape(f"a shape that broadcasts to {shape}")
    return Spec(shape, x.dtype)


def broadcast_to(x: Node, shape: Shape) -> Node:
    """Return `x` broadcast to a larger shape, as in NumPy."""
    return x if x.shape == shape else _broadcast_to(x, shape=shape)


def full(shape: Shape, value: Number, dtype: DType) -> Node:
    """Return an array of `shape` with the same value in every element."""
    return broadcast_to(constant(value, dtype), shape)


@op("reshape", kind="movement", gradient=lambda g, y, x, *, shape: (reshape(g, x.shape),))
def _reshape(x: Spec, *, shape: Shape) -> Spec:
    if size(shape) != x.size:
        refuse_shape(f"{size(shape)} elements for shape {shape}")
    return Spec(shape, x.dtype)


def reshape(x: Node, shape: Shape) -> Node:
    """Return the same elements in the same (row-major) order in another shape."""
    return x if x.shape == shape else _reshape(x, shape=shape)


def reduced_shape(shape: Shape, axes: Axes, keepdims: bool) -> Shape:
    """Return the shape after a reduction of `axes`."""
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def expand_reduced(reduced: Node, shape: Shape, axes: Axes) -> Node:
    """Return a reduced value, back in the shape it was reduced from."""
    return broadcast_to(reshape(reduced, reduced_shape(shape, axes, keepdims=True)), shape)


@op(
    "sum",
    kind="reduction",
    gradient=lambda g, y, x, *, axis, keepdims: (expand_reduced(g, x.shape, axis),),
)
def _sum(x: Spec, *, axis: Axes, keepdims: bool) -> Spec:
    return Spec(reduced_shape(x.shape, axis, keepdims), x.dtype)


def sum_(x: Node, axis: Axes, keepdims: bool = False) -> Node:
    """Return the sum over `axis`."""
    return x if not axis else _sum(x, axis=axis, keepdims=keepdims)


def sum_to(x: Node, shape: Shape) -> Node:
    """Sum repeated elements: the gradient of broadcasting `shape` to `x.shape`."""
    if x.shape == shape:
        return x
    extra = len(x.shape) - len(shape)
    padded = (1,) * extra + shape
    axes = tuple(i for i, n in enumerate(padded) if i < extra or (n == 1 and x.shape[i] != 1))
    return reshape(sum_(x, axes), shape)


@op("cast", kind="elementwise")
def _cast(x: Spec, *, dtype: DType) -> Spec:
    if is_complex(x.dtype) and not is_complex(dtype) and dtype != bool_:
        refuse_dtype(
            f"real numbers to cast to {dtype}",
            hint="take op.real(x) or op.abs(x) first: a cast would drop the imaginary part",
        )
    return Spec(x.shape, dtype)


@_cast.gradient
def _(g: Node, y: Node, x: Node, *, dtype: DType) -> tuple[Node | None, ...]:
    if not (is_inexact(dtype) and is_inexact(x.dtype)):
        return (None,)
    if is_complex(dtype) and not is_complex(x.dtype):
        g = real(g)
    return (cast(g, x.dtype),)


def cast(x: Node, dtype: DType) -> Node:
    """Return the same values in another dtype (to bool: whether they are not zero)."""
    return x if x.dtype == dtype else _cast(x, dtype=dtype)


def check_float(x: Node | Spec) -> None:
    """Refuse integers, truth values and complex numbers."""
    if not is_float(x.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")


# --- complex numbers


def check_complex(x: Spec) -> None:
    """Refuse real numbers."""
    if not is_complex(x.dtype):
        refuse_dtype("complex numbers", hint="cast it with op.cast(x, 'complex64')")


def check_part(dtype: DType) -> None:
    """Refuse what cannot be a part of complex numbers."""
    if dtype not in (float32, float64):
        refuse_dtype("parts of dtype float32 or float64", hint="cast them with op.cast")


@op("complex", kind="movement", gradient=lambda g, y, re, im: (real(g), imag(g)))
def complex_(real: Spec, imag: Spec) -> Spec:
    """Return complex numbers with these real and imaginary parts."""
    check_part(real.dtype)
    if real.dtype != imag.dtype:
        refuse_dtype("two parts of the same dtype", hint="cast one operand with op.cast")
    if real.shape != imag.shape:
        refuse_shape("two parts of the same shape")
    return Spec(real.shape, complex_of(real.dtype))


@op("real", kind="movement", gradient=lambda g, y, x: (complex_(g, full(g.shape, 0, g.dtype)),))
def _real(x: Spec) -> Spec:
    check_complex(x)
    return Spec(x.shape, part_of(x.dtype))


@op("imag", kind="movement", gradient=lambda g, y, x: (complex_(full(g.shape, 0, g.dtype), g),))
def _imag(x: Spec) -> Spec:
    check_complex(x)
    return Spec(x.shape, part_of(x.dtype))


@op("conj", gradient=lambda g, y, x: (conj(g),))
def _conj(x: Spec) -> Spec:
    check_complex(x)
    return x


def real(x: Node) -> Node:
    """Return the real part; real numbers are their own."""
    return _real(x) if is_complex(x.dtype) else x


def imag(x: Node) -> Node:
    """Return imaginary part; 0 for real numbers."""
    return _imag(x) if is_complex(x.dtype) else full(x.shape, 0, x.dtype)


def conj(x: Node) -> Node:
    """Return the conjugate; real numbers are their own."""
    if not is_complex(x.dtype):
        return x
    return x.inputs[0] if x.op is _conj else _conj(x)


def accumulator(dtype: DType) -> DType:
    """Return the dtype in which sums of `dtype` are accumulated."""
    return float32 if dtype in HALVES else dtype


def widen(x: Node) -> Node:
    """`x` in the dtype its sums are kept in; integers and truth values stay as they are."""
    return cast(x, accumulator(x.dtype))


def widened(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a rule over nodes: half-precision inputs are cast to float32, and results back.

    Suitable for decompositions and for gradients, whose floating-point inputs share one dtype.
    """

    @wraps(rule)
    def run(*nodes: Node, **attrs: Any) -> Any:
        dtype = nodes[0].dtype
        if dtype not in HALVES:
            return rule(*nodes, **attrs)
        results = rule(*[widen(node) for node in nodes], **attrs)
        back = tuple(None if part is None else cast(part, dtype) for part in as_tuple(results))
        return back if isinstance(results, tuple) else back[0]

    return run
