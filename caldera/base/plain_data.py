"""Conversion of values to JSON-serialisable ones and back, for files and for names of contents.

`plain` and `revived` walk through dicts and lists; their callers define the conversion of all other
values. A record of a run writes dataclasses as dicts (`to_plain`, and `from_plain`, which reports
the position of a value that does not fit). A config writes registered objects by name. The state of
a checkpoint writes numbers that JSON lacks (`encoded`, `decoded`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from caldera.errors import DataError

T = TypeVar("T")
_NOT_IN_JSON = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def plain(
    value: Any,
    convert: Callable[[Any], Any],
    *,
    dicts: bool = True,
    is_plain: Callable[[dict[Any, Any]], bool] = lambda value: False,
) -> Any:
    """Apply `convert` to everything in a value except lists, tuples and (with `dicts`) dicts.

    Dicts for which `is_plain` returns True need no conversion and are copied.

    >>> plain({"a": (1, 2j)}, lambda part: str(part) if isinstance(part, complex) else part)
    {'a': [1, '2j']}
    """
    if isinstance(value, list | tuple):
        return [plain(each, convert, dicts=dicts, is_plain=is_plain) for each in value]
    if dicts and isinstance(value, dict):
        if is_plain(value):
            return dict(value)
        return {str(key): plain(each, convert, is_plain=is_plain) for key, each in value.items()}
    return convert(value)


def revived(value: Any, revive: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Replace each dict in a value by the result of `revive`, which also handles the dicts inside.

    >>> revived([1, {"a": 2}], len)
    [1, 1]
    """
    if isinstance(value, Mapping):
        return revive(value)
    return [revived(each, revive) for each in value] if isinstance(value, list) else value


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for `object_pairs_hook`: a name that occurs twice is a ValueError.

    >>> json.loads('{"a": 1, "a": 2}', object_pairs_hook=unique_keys)
    Traceback (most recent call last):
    ValueError: the name 'a' twice in one object
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {twice[:60]!r} twice in one object")
    return found


def json_digest(content: Any) -> str:
    """Return a digest of JSON-serialisable content: the same for the same content.

    >>> json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    True
    """
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON-serialisable content with its digest, by which `is_sealed` detects damage.

    >>> is_sealed(sealed({"a": 1})), is_sealed({**sealed({"a": 1}), "a": 2})
    (True, False)
    """
    return {**content, "digest": json_digest(content)}


def is_sealed(content: Mapping[str, Any]) -> bool:
    """Return True if the content has a digest that fits it."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return "digest" in content and content["digest"] == json_digest(rest)


def _has_numbers_alone(value: Mapping[Any, Any]) -> bool:
    """Return True if a dict contains only floats, by name.

    Most content written by trainings is rows of numbers; this checks a whole row quickly.
    """
    return set(map(type, value.values())) == {float} and set(map(type, value)) == {str}


def _is_row(value: dict[Any, Any]) -> bool:
    """Return True if JSON can represent a row of numbers without conversion.

    A row of finite numbers has a finite sum, unless it overflows, which only costs time.
    """
    return _has_numbers_alone(value) and math.isfinite(sum(value.values()))


# --- values of any kind: numbers that JSON does not have are {"float": "nan"} and the like


def encoded(value: Any) -> Any:
    """Convert infinite numbers and NaN in an otherwise JSON-serialisable value to strict JSON.

    >>> encoded({"best": float("inf")})
    {'best': {'float': 'inf'}}
    """

    def convert(part: Any) -> Any:
        return {"float": str(part)} if _not_in_json(part) else part

    return plain(value, convert, is_plain=_is_row)


def decoded(value: Any) -> Any:
    """Return the argument of `encoded`, with tuples as lists.

    >>> decoded({"best": {"float": "inf"}})
    {'best': inf}
    """

    def revive(part: Mapping[str, Any]) -> Any:
        if _has_numbers_alone(part):
            return dict(part)
        if part.keys() == {"float"} and isinstance(part["float"], str):
            return _NOT_IN_JSON.get(part["float"], dict(part))
        return {key: decoded(each) for key, each in part.items()}

    return revived(value, revive)


# --- values of known kinds: dataclasses of numbers, texts, truth values, lists and dicts, each
# possibly None; numbers that JSON does not have are texts


def to_plain(value: Any) -> Any:
    """Convert a value to strict JSON data.

    >>> to_plain([1.5, float("nan"), {"a": (1, 2)}])
    [1.5, 'nan', {'a': [1, 2]}]
    """

    def convert(part: Any) -> Any:
        if is_dataclass(part):
            return {field.name: to_plain(getattr(part, field.name)) for field in fields(part)}
        return str(part) if _not_in_json(part) else part

    return plain(value, convert, is_plain=_is_row)


def from_plain(kind: type[T], value: Any, where: str) -> T:
    """Return the value that `to_plain` wrote, of this kind.

    >>> from_plain(dict[str, float], {"loss": 1, "mae": "nan"}, "results")
    {'loss': 1.0, 'mae': nan}
    >>> from_plain(list[int], [1, "2"], "counts")
    Traceback (most recent call last):
    caldera.errors.DataError: counts[1]: expected int, got '2'
    """
    return _read(kind, value, where)


def _read(kind: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return _read_one_of(arguments, value, where)
    if is_dataclass(kind):
        return _read_object(kind, value, where)
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value)]
    if origin is tuple and isinstance(value, list):
        # Tuples of any length with a single element type.
        return tuple(_read(arguments[0], each, f"{where}[{i}]") for i, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        if arguments[1] is float and _has_numbers_alone(value):
            return dict(value)
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
            # For composite values the error of the wrong part is more specific.
            if is_dataclass(kind) and isinstance(value, dict):
                raise problem from None
    names = " or ".join(str(getattr(kind, "__name__", kind)) for kind in kinds)
    raise _refused(where, names, value)


def _read_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _refused(where, kind.__name__, value)
    hints = _hints(kind)
    needed = {
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    }
    problems = sorted(needed - set(value)) + sorted(set(value) - set(hints))
    if problems:
        raise DataError.build(
            where, expected=", ".join(hints), got=f"another set of keys: {', '.join(problems[:5])}"
        )
    return kind(**{name: _read(hints[name], v, f"{where}.{name}") for name, v in value.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the kinds of a dataclass's fields, cached: Python evaluates them on every call."""
    return get_type_hints(kind)


def _not_in_json(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _refused(where: str, expected: str, value: Any) -> DataError:
    return DataError.build(where, expected=expected, got=repr(value)[:80])
