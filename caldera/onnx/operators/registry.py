"""Registry of ONNX operators, and the values that they accept and return.

    @operator("Gemm")
    def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
        ...

A translator receives the inputs of a call by position and its attributes by name, and builds the
graph with the functions of `caldera.op`. An operator that has changed between versions declares
the parameter `opset`; `wanted` is the number of requested outputs, and `scope` the context of a
graph inside an attribute. A result is a value, or a tuple of values.

`@evaluated` is for operators whose results have no op in Caldera, or whose shapes depend on
values: they are NumPy functions, and all their inputs have to be known.

Elements of dtypes that Caldera does not have (texts, uint4, float8, ...) stay NumPy arrays. A
translator that only moves elements (`moves=True`) is applied to their positions instead. Others
can name the equivalent NumPy function (`numpy=`), or process such arrays themselves
(`foreign=True`).

A value is an `Expr` (it depends on inputs or trained variables), a NumPy array (it is known), a
list (a sequence of ONNX) or None (left out). Shapes are always known, so a model's arithmetic on
shapes is evaluated during translation and never at run time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera import op
from caldera.base.file_access import check_asked, check_shape
from caldera.compiler.lazy import Expr
from caldera.core.graph import Node, Symbol, as_tuple, topological
from caldera.errors import CalderaError, ConfigError, DataError, DtypeError
from caldera.kernels.reference import interpret
from caldera.onnx.library import is_ours

Value = Any


class NeedsValue(CalderaError):
    """Something must be known before the graph can be written down, and is only fed later."""

    def __init__(self, message: str, symbols: Iterable[Symbol] = ()) -> None:
        super().__init__(message)
        self.symbols = tuple(symbols)


def known(value: Value, what: str = "a value") -> np.ndarray:
    """Return the array of a value that does not depend on inputs or trained parameters.

    >>> from caldera import op
    >>> known(op.add(np.arange(3), 1)).tolist()
    [1, 2, 3]
    """
    if isinstance(value, np.ndarray):
        return value
    for node in topological([value.node]):
        for spec in node.outputs:
            check_size(spec.shape, spec.dtype)
    leaves = _leaves(value)
    if free := _free(leaves):
        names = ", ".join(symbol.name for symbol in free[:4])
        message = NeedsValue.build(
            "onnx", expected=f"{what} that is known before the model runs", got=f"one from {names}"
        )
        raise NeedsValue(str(message), free)
    arrays = {node: symbol.value.numpy() for node, symbol in leaves.items()}
    with np.errstate(all="ignore"):
        return interpret([value.node], arrays)[0]


def _leaves(value: Expr) -> dict[Node, Symbol]:
    """Return the symbols that an expression reads, except plain numbers."""
    order = topological([value.node])
    return {node: node.attrs["symbol"] for node in order if "symbol" in node.attrs}


def _free(leaves: Mapping[Node, Symbol]) -> list[Symbol]:
    """Return the leaves without a known value."""
    return [symbol for symbol in leaves.values() if symbol.role != "array"]


def mapped(function: Callable[[Value], Value], value: Value) -> Value:
    """Return a function of a value, or of each in a sequence.

    >>> mapped(abs, [-1, [2, -3]])
    [1, [2, 3]]
    """
    if isinstance(value, list):
        return [mapped(function, each) for each in value]
    return function(value)


def known_if_possible(value: Value) -> Value:
    """Return the same with arrays for those expressions that can be computed now."""
    return mapped(lambda x: known(x) if isinstance(x, Expr) and not _free(_leaves(x)) else x, value)


def check_size(shape: Iterable[int], dtype: Any = np.float64, *, held: int = 0) -> None:
    """Raise if an array is too large for a file to request, given `held` bytes of known values."""
    sizes = tuple(shape)
    check_asked(math.prod(sizes) * np.dtype(dtype).itemsize, f"onnx, shape {sizes}", held=held)
    check_shape(sizes, "onnx")


def expression(value: Value) -> Expr:
    """Return an array as an expression, so that it can be sliced like one."""
    return value if isinstance(value, Expr) else op.reshape(value, value.shape)


def laid_along(x: Value, y: Value, axis: int | None, broadcast: int) -> Value:
    """Up to version 6 a second operand could be laid along any axis of the first."""
    if not broadcast or axis is None:
        return y
    return op.reshape(y, (*y.shape, *(1,) * (len(x.shape) - axis - len(y.shape))))


def all_known(value: Value) -> Value:
    """Replace expressions by arrays, also inside sequences."""
    return mapped(lambda x: known(x) if isinstance(x, Expr) else x, value)


def is_known(value: Value) -> bool:
    """Return True if a value contains no expression."""
    if isinstance(value, list):
        return all(is_known(each) for each in value)
    return not isinstance(value, Expr)


def is_foreign(value: Value) -> bool:
    """Return True if a value has elements without a Caldera dtype."""
    if isinstance(value, list):
        return any(is_foreign(each) for each in value)
    return isinstance(value, np.ndarray) and not is_ours(value.dtype)


def integers(value: Value, what: str = "integers") -> tuple[int, ...]:
    """Whole numbers that have to be known: sizes, axes, widths."""
    if isinstance(value, tuple | int):
        return value if isinstance(value, tuple) else (value,)
    return tuple(int(each) for each in known(value, what).reshape(-1))


def integer(value: Value, what: str = "an integer") -> int:
    """Return an integer that must be known before the run."""
    (found,) = integers(value, what)
    return found


def numbers(value: Value, what: str = "numbers") -> tuple[float, ...]:
    """Return numbers that must be known before the run: scales, thresholds."""
    if isinstance(value, tuple | float):
        return value if isinstance(value, tuple) else (value,)
    return tuple(float(each) for each in known(value, what).reshape(-1))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front."""
    return axis + rank if axis < 0 else axis


def laid_out(x: Value, axis: int, rank: int) -> Value:
    """Lay a vector along one of `rank` axes; the remaining axes have size 1."""
    return op.reshape(x, [-1 if each == axis_of(axis, rank) else 1 for each in range(rank)])


def axis_moved(x: Value, source: int, target: int) -> Expr:
    """Move an axis of x to another position; the remaining axes keep their order."""
    rank = len(x.shape)
    order = [axis for axis in range(rank) if axis != axis_of(source, rank)]
    order.insert(axis_of(target, rank), axis_of(source, rank))
    return op.transpose(x, order)


Function = Callable[..., Any]
OPERATORS: dict[tuple[str, str], Operator] = {}
"""Operators by domain and name."""

_ASKED_FOR = ("opset", "wanted", "scope")


@dataclass(frozen=True)
class Operator:
    """Translation of an operator."""

    name: str
    function: Function
    signature: inspect.Signature
    attributes: frozenset[str]
    in_numpy: bool = False
    moves: bool = False
    foreign: bool = False
    twin: Function | None = None


def operator(
    *names: str,
    domain: str = "",
    numpy: Function | None = None,
    in_numpy: bool = False,
    moves: bool = False,
    foreign: bool = False,
    further: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Register a translator under these names of operators.

    `further` names attributes that it passes on to other functions (as `**how`).
    """

    def register(function: Function) -> Function:
        signature = inspect.signature(function)
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        own = (p.name for p in signature.parameters.values() if p.kind not in several)
        named = frozenset([*own, *further])
        for name in names:
            if (domain, name) in OPERATORS:
                raise ValueError(f"operator {name!r} is defined twice")
            OPERATORS[domain, name] = Operator(
                name, function, signature, named, in_numpy, moves, foreign, numpy
            )
        return function

    return register


def evaluated(*names: str, domain: str = "") -> Callable[[Function], Function]:
    """Register a NumPy function under these names of operators."""
    return operator(*names, domain=domain, in_numpy=True)


@dataclass(frozen=True)
class CallContext:
    """Additional information for translators, besides inputs and attributes."""

    opset: int
    wanted: int
    scope: Any


def apply(
    found: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any], now: CallContext
) -> tuple[tuple[Value, ...], bool]:
    """Return the outputs of an operator, and whether NumPy computed them."""
    unknown = sorted(set(attributes) - found.attributes)
    if unknown:
        raise ConfigError.build(
            f"onnx {found.name}",
            expected="attributes that are known",
            got=", ".join(map(str, unknown)),
        )
    asked = {name: getattr(now, name) for name in _ASKED_FOR if name in found.attributes}
    named = {**attributes, **asked}
    try:
        found.signature.bind(*inputs, **named)
    except TypeError as problem:
        raise DataError.build(
            f"onnx {found.name}", expected="its inputs and attributes", got=str(problem)
        ) from None
    if found.in_numpy:
        with np.errstate(all="ignore"):
            return _tuple(found.function(*[all_known(each) for each in inputs], **named)), True
    met_foreign = any(is_foreign(each) for each in inputs)
    if met_foreign and not found.foreign:
        return _on_foreign(found, inputs, named), True
    results = _tuple(found.function(*inputs, **named))
    if all(is_known(each) for each in inputs):
        # Evaluated now: values that depend on it may have to be known as well. (A graph in an
        # attribute may still refer to unknown values.)
        results = tuple(known_if_possible(each) for each in results)
    return results, met_foreign or any(is_foreign(each) for each in results)


def _tuple(results: Any) -> tuple[Value, ...]:
    return tuple(
        np.asarray(each) if isinstance(each, np.generic) else each for each in as_tuple(results)
    )


def _on_foreign(
    found: Operator, inputs: Sequence[Value], named: Mapping[str, Any]
) -> tuple[Value, ...]:
    if found.moves:
        return _moved(found.function, inputs, named)
    if found.twin is None:
        dtypes = {each.dtype.name for each in inputs if is_foreign(each)}
        raise DtypeError.build(
            f"onnx {found.name}",
            expected="elements of a dtype that Caldera has",
            got=", ".join(sorted(dtypes)),
        )
    with np.errstate(all="ignore"):
        return _tuple(found.twin(*[all_known(each) for each in inputs], **named))


def _moved(
    function: Function, inputs: Sequence[Value], named: Mapping[str, Any]
) -> tuple[Value, ...]:
    """Let numbers take the places of the elements, and see where each one goes."""
    pool: list[np.ndarray] = []
    count = 0

    def numbered(value: Value) -> Value:
        nonlocal count
        if not is_foreign(value):
            return value
        pool.append(value.reshape(-1))
        count += value.size
        return np.arange(count - value.size, count).reshape(value.shape)

    stand_ins = [mapped(numbered, each) for each in inputs]
    elements = np.concatenate(pool)

    def elements_at(value: Value) -> Value:
        return elements[known(value)] if isinstance(value, Expr | np.ndarray) else value

    return tuple(mapped(elements_at, each) for each in _tuple(function(*stand_ins, **named)))
