"""Which operators there are, and how one is called.

    @operator("Gemm")
    def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
        ...

A translator takes the inputs of a call by position and its attributes by name, and writes the
operator down with the functions of `caldera.op`. Where an operator has changed between versions, it
asks for `opset`; `wanted` is the number of outputs that the call asks for, `scope` what a graph
inside an attribute needs. A result is a value, or a tuple of them.

`@evaluated` is for operators whose results Caldera has no op for, or whose shapes depend on values:
they are NumPy functions, and all their inputs have to be known.

Elements of dtypes that Caldera does not have (texts, uint4, float8, ...) stay NumPy arrays. A
translator that only moves elements (`moves=True`) is then asked where each one goes; others may
name the NumPy function that does the same (`numpy=`), or see to such arrays themselves
(`foreign=True`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.compiler.lazy import Expr
from caldera.errors import ConfigError, DataError, DtypeError
from caldera.onnx.operators.values import (
    Value,
    all_known,
    is_foreign,
    is_known,
    known,
    known_if_possible,
)

Function = Callable[..., Any]
OPERATORS: dict[tuple[str, str], Operator] = {}
"""By domain and name."""

_ASKED_FOR = ("opset", "wanted", "scope")


@dataclass(frozen=True)
class Operator:
    """How an operator is translated."""

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
    moves: bool = False,
    foreign: bool = False,
    further: Sequence[str] = (),
) -> Callable[[Function], Function]:
    """Register a translator under these names of operators.

    `further` names attributes that it hands on to others (as `**how`).
    """

    def register(function: Function) -> Function:
        _add(names, domain, function, further, moves=moves, foreign=foreign, twin=numpy)
        return function

    return register


def evaluated(*names: str, domain: str = "") -> Callable[[Function], Function]:
    """Register a NumPy function under these names of operators."""

    def register(function: Function) -> Function:
        _add(names, domain, function, (), in_numpy=True)
        return function

    return register


def _add(
    names: Sequence[str], domain: str, function: Function, further: Sequence[str], **facts: Any
) -> None:
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = frozenset(p.name for p in parameters if p.kind not in several) | set(further)
    for name in names:
        if (domain, name) in OPERATORS:
            raise ValueError(f"operator {name!r} is defined twice")
        OPERATORS[domain, name] = Operator(name, function, signature, named, **facts)


@dataclass(frozen=True)
class CallContext:
    """What a translator may ask for besides inputs and attributes."""

    opset: int
    wanted: int
    scope: Any


def apply(
    found: Operator, inputs: Sequence[Value], attributes: Mapping[str, Any], now: CallContext
) -> tuple[tuple[Value, ...], bool]:
    """The outputs of an operator, and whether NumPy computed them."""
    unknown = sorted(set(attributes) - found.attributes)
    if unknown:
        raise ConfigError.build(
            f"onnx {found.name}",
            expected="attributes that are known",
            got=", ".join(map(str, unknown)),
        )
    named = dict(attributes)
    named |= {name: getattr(now, name) for name in _ASKED_FOR if name in found.attributes}
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
        # Known at once: what depends on it may have to be known as well. (A graph inside of an
        # attribute may still name what is not.)
        results = tuple(known_if_possible(each) for each in results)
    return results, met_foreign or any(is_foreign(each) for each in results)


def _tuple(results: Any) -> tuple[Value, ...]:
    several = results if isinstance(results, tuple) else (results,)
    return tuple(np.asarray(each) if isinstance(each, np.generic) else each for each in several)


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
        if isinstance(value, list):
            return [numbered(each) for each in value]
        if not is_foreign(value):
            return value
        pool.append(value.reshape(-1))
        count += value.size
        return np.arange(count - value.size, count).reshape(value.shape)

    stand_ins = [numbered(each) for each in inputs]
    elements = np.concatenate(pool)

    def elements_at(value: Value) -> Value:
        if isinstance(value, list):
            return [elements_at(each) for each in value]
        return elements[known(value)] if isinstance(value, Expr | np.ndarray) else value

    return tuple(elements_at(each) for each in _tuple(function(*stand_ins, **named)))
