"""Dataclasses as what JSON can hold, and back; what does not fit is refused with its place.

Fields may be numbers, texts, truth values, other dataclasses, lists and dicts of those, and any of
them or None. Numbers that JSON has no word for are written as texts: "nan", "inf", "-inf".
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from caldera.errors import DataError

T = TypeVar("T")
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """The value as what strict JSON can hold.

    >>> to_plain([1.5, float("nan"), {"a": (1, 2)}])
    [1.5, 'nan', {'a': [1, 2]}]
    """
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def from_plain(kind: type[T], value: Any, where: str) -> T:
    """The value that `to_plain` wrote, of this kind.

    >>> from_plain(dict[str, float], {"loss": 1, "mae": "nan"}, "results")
    {'loss': 1.0, 'mae': nan}
    >>> from_plain(list[int], [1, "2"], "counts")
    Traceback (most recent call last):
    caldera.errors.DataError: counts[1]: expected int, got '2'
    """
    found: T = _read(kind, value, where)
    return found


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _read_one_of(arguments, value, where)
    if is_dataclass(kind):
        return _read_object(kind, value, where)
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        return {str(key): _read(arguments[1], v, f"{where}.{key}") for key, v in value.items()}
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is float and isinstance(value, str) and value in _NOT_IN_JSON:
        return _NOT_IN_JSON[value]
    if kind is NoneType and value is None:
        return None
    # bool is an int to Python, but not here.
    if kind in (str, int, bool) and type(value) is kind:
        return value
    raise _refused(where, str(getattr(kind, "__name__", kind)), value)


def _read_one_of(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    for kind in kinds:
        try:
            return _read(kind, value, where)
        except DataError as problem:
            # Of what has parts, the part that does not fit says more.
            if is_dataclass(kind) and isinstance(value, dict):
                raise problem from None
    names = " or ".join(str(getattr(kind, "__name__", kind)) for kind in kinds)
    raise _refused(where, names, value)


def _read_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _refused(where, kind.__name__, value)
    hints = get_type_hints(kind)
    needed = {each.name for each in fields(kind) if each.default is MISSING}
    problems = sorted(needed - set(value)) + sorted(set(value) - set(hints))
    if problems:
        raise DataError.build(
            where, expected=", ".join(hints), got=f"another set of keys: {', '.join(problems[:5])}"
        )
    return kind(**{name: _read(hints[name], v, f"{where}.{name}") for name, v in value.items()})


def _refused(where: str, expected: str, value: Any) -> DataError:
    return DataError.build(where, expected=expected, got=repr(value)[:80])
