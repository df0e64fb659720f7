"""Calls of NumPy functions on distributed arrays, bound and checked by NumPy itself.

Most NumPy functions are called once on stand-ins: arrays of ones of the same dtypes with one
element per axis. Arguments that NumPy rejects there (an axis, an order of a norm, a dtype) are
rejected here, and its result determines the dtypes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from caldera import op
from caldera.base.arguments import ArgumentError
from caldera.compiler.lazy import Expr
from caldera.compiler.sharding.ops import place
from caldera.core.tensor import DType, is_inexact, part_of
from caldera.errors import CalderaError, ConfigError, DtypeError, ShapeError

Function = Callable[..., Any]
HINT = "use a function of caldera.op, or take the whole array with .numpy() first"
_NAMES = """
    a b x y z v m ar arr ary arrays array tup arys args a1 a2 x1 x2 A prototype val values operands
    weights fweights aweights condition where prepend append a_min a_max min max
"""
ARRAYS = frozenset(_NAMES.split())
"""Names of NumPy parameters that are arrays or sequences of arrays."""
MASKS = frozenset({"condition", "where"})
"""Parameters that are masks, excluded from type promotion."""


@dataclass(frozen=True)
class Handler:
    """Implementation of a NumPy function, with the arguments it supports by name.

    If it is `ruled`, result dtypes follow NumPy's result on stand-ins: arrays with up to `size`
    elements per axis, without the arguments `aside`. Python scalars are arrays, unless they are
    `weak`. Integers become floats where results are floats, unless the function handles them.
    """

    compute: Function
    honours: frozenset[str]
    ruled: bool
    aside: frozenset[str]
    size: int
    weak: bool
    floats: bool


TABLE: dict[Any, Handler] = {}


def handles(
    *functions: Any,
    ruled: bool = True,
    aside: str = "",
    size: int = 1,
    weak: bool = False,
    floats: bool = True,
) -> Callable[[Function], Function]:
    """Register what computes these functions of NumPy; it names its arguments as they do."""

    def add(compute: Function) -> Function:
        honours = frozenset(inspect.signature(compute).parameters)
        without = frozenset(aside.split())
        for function in functions:
            assert function not in TABLE, f"two handlers for {function}"
            TABLE[function] = Handler(compute, honours, ruled, without, size, weak, floats)
        return compute

    return add


def register(functions: Mapping[Any, Function], **how: Any) -> None:
    """Register a table of short handlers."""
    for function, compute in functions.items():
        handles(function, **how)(compute)


def apply_function(function: Any, args: Iterable[Any], options: Mapping[str, Any]) -> Any:
    """Return the result of a NumPy function on dmath arrays."""
    name = f"{function.__module__}.{function.__name__}".replace("numpy", "np")
    handler = TABLE.get(function)
    if handler is None:
        raise unknown(name)
    try:
        bound = _signature(function).bind(*args, **options)
    except TypeError as error:
        raise ArgumentError.build(
            name, expected="NumPy's own arguments", got=str(error), hint=HINT
        ) from None
    try:
        given = _given(bound, handler.weak)
    except ValueError as error:
        raise refused(name, error) from None
    for argument in given:
        if argument not in handler.honours:
            known = ", ".join(sorted(handler.honours - ARRAYS)) or "none"
            raise ConfigError.build(
                name, expected=f"options among {known}", got=f"{argument}=", hint=HINT
            )
    try:
        if not handler.ruled or _is_foreign(given):
            return _own(handler.compute(**given))
        like = _ruled(function, name, given, handler)
        made = handler.compute(**_in_its_dtype(given, like, handler.floats))
        return _as_numpys(made, like)
    except CalderaError:
        raise
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise refused(name, error) from error


def unknown(what: str) -> ConfigError:
    """Return the error about something of NumPy that dmath does not have."""
    return ConfigError.build(
        what, expected="a NumPy function that dmath supports", got="another", hint=HINT
    )


def refused(name: str, error: Exception) -> CalderaError:
    """Return Caldera's error for arguments that NumPy rejects, with NumPy's message."""
    kind: type[CalderaError] = ConfigError
    if isinstance(error, TypeError):
        kind = DtypeError
    elif isinstance(error, np.exceptions.AxisError | np.linalg.LinAlgError):
        kind = ShapeError
    return kind.build(name, expected="arguments that NumPy takes", got=str(error))


@cache
def _signature(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:
        # Written in C, before NumPy 2.4: the handler has the same arguments in the same order.
        return inspect.signature(TABLE[function].compute)


def _given(bound: inspect.BoundArguments, weak: bool) -> dict[str, Any]:
    """Return arguments that are not NumPy's defaults, by name; sequences as arrays."""
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif not _is_default(value, parameter.default):
            found[name] = _as_arrays(value, weak) if name in ARRAYS else value
    return found


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def is_array(value: Any) -> bool:
    """Return True for an array of dmath or of NumPy, and for other expressions."""
    return isinstance(value, Expr | np.ndarray)


def _as_arrays(value: Any, weak: bool) -> Any:
    """Return a sequence of arrays as a list; other sequences, and numbers, as arrays of NumPy."""
    if isinstance(value, list | tuple):
        if any(map(is_array, value)):
            return [each if is_array(each) else _as_arrays(each, weak) for each in value]
        return np.asarray(value)
    is_number = isinstance(value, bool | int | float | complex | np.generic)
    return np.asarray(value) if is_number and not (weak and not hasattr(value, "dtype")) else value


def each_array(value: Any, change: Function) -> Any:
    """Apply a function to an array, or to each array of a sequence."""
    if is_array(value) or isinstance(value, np.generic):
        return change(value)
    if isinstance(value, list | tuple):
        return [each_array(each, change) for each in value]
    return value


def _is_foreign(given: Mapping[str, Any]) -> bool:
    """Return True for dtypes without rules of NumPy, such as bfloat16."""
    found: list[bool] = []
    for name, value in given.items():
        if name in ARRAYS:
            each_array(value, lambda each: found.append(each.dtype.isbuiltin != 1))
    return any(found)


def _ruled(function: Any, name: str, given: Mapping[str, Any], handler: Handler) -> Any:
    """Return NumPy's answer for stand-ins."""

    def small(value: Any) -> np.ndarray:
        return np.ones([min(n, handler.size) for n in value.shape], value.dtype)

    args: list[Any] = []
    options: dict[str, Any] = {}
    signature = _signature(function).parameters
    for argument, value in given.items():
        if argument in handler.aside:
            continue
        stand_in = each_array(value, small) if argument in ARRAYS else value
        parameter = signature.get(argument)
        if parameter is None or parameter.kind is parameter.KEYWORD_ONLY:
            options[argument] = stand_in
        elif parameter.kind is parameter.VAR_POSITIONAL:
            args += stand_in
        elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(stand_in)
        else:
            options[argument] = stand_in
    with np.errstate(all="ignore"):
        try:
            return function(*args, **options)
        except (TypeError, ValueError, IndexError, ArithmeticError, RuntimeError) as error:
            raise refused(name, error) from None


def _in_its_dtype(given: Mapping[str, Any], like: Any, floats: bool) -> dict[str, Any]:
    """Return arguments in the dtype of NumPy's computation.

    It is `dtype=` if given, and floats for integers where the result has floats.
    """
    wanted = given.get("dtype")
    kinds = [each.dtype for each in _leaves(like) if is_inexact(each.dtype)]

    def cast(value: Any) -> Any:
        if wanted is not None:
            if value.dtype.kind == "c" and np.dtype(wanted).kind != "c":
                raise DtypeError.build(
                    "dtype=", expected="a dtype of complex numbers", got=np.dtype(wanted).name
                )
            return as_dtype(value, np.dtype(wanted))
        return as_dtype(value, part_of(kinds[0])) if value.dtype.kind in "biu" else value

    if wanted is None and not (kinds and floats):
        return dict(given)
    return {
        name: each_array(value, cast) if name in ARRAYS - MASKS else value
        for name, value in given.items()
    }


def _leaves(like: Any) -> list[Any]:
    several = like if isinstance(like, list | tuple) else [like]
    return [each for each in several if isinstance(each, np.ndarray | np.generic)]


def as_dtype(value: Any, dtype: DType) -> Any:
    """Cast an array, also complex numbers to their real parts, as NumPy does."""
    if value.dtype == dtype:
        return value
    if not isinstance(value, Expr):
        return value.astype(dtype)
    if value.dtype.kind == "c" and dtype.kind not in "cb":
        value = op.real(value)
    return op.cast(value, dtype)


def as_floats(value: Any) -> Any:
    """Cast integers and booleans to float64, as NumPy does for functions that need floats."""
    return as_dtype(value, np.dtype(np.float64)) if value.dtype.kind in "biu" else value


def _own(made: Any) -> Any:
    """Return results as dmath arrays, even if no distributed input remains in the graph."""
    if isinstance(made, list | tuple):
        several = [_own(each) for each in made]
        return type(made)(*several) if hasattr(made, "_fields") else type(made)(several)
    return Expr(place(made.node, None)) if type(made) is Expr else made


def _as_numpys(made: Any, like: Any) -> Any:
    """Convert results to the dtypes and the type of tuple of NumPy's result `like`."""
    if isinstance(made, list | tuple):
        several = [_as_numpys(each, own) for each, own in zip(made, like, strict=True)]
        return type(like)(*several) if hasattr(like, "_fields") else type(like)(several)
    if not isinstance(made, Expr):
        return made
    return _own(as_dtype(made, np.asarray(like).dtype))
