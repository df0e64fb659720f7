"""Kinds of values that annotations of public functions accept."""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Number, Real
from operator import index
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import numpy as np

ANY_NAME = "**"
"""Marker among a function's argument names: it accepts any further names."""


@dataclass(frozen=True)
class ArgumentKind:
    """A kind of values: its name in messages, and its membership test."""

    words: str
    holds: Callable[[Any], bool]


class Kinds(NamedTuple):
    """The kinds of a function's arguments."""

    positional: list[tuple[str, ArgumentKind | None]]
    """Arguments that may be passed by position."""
    rest: tuple[str, ArgumentKind | None] | None
    """The name and kind of any number of further ones; None if there are none."""
    by_name: dict[str, ArgumentKind | None]
    required: list[tuple[int, str]]
    """Positions and names of arguments without a default; keyword-only arguments have no position.
    """
    least: int
    """The number of arguments by position that leaves none of these out."""


@cache
def kinds_of(function: Callable[..., Any]) -> Kinds:
    """Return the kinds of a function's arguments: positional ones, and all by name."""
    positional: list[tuple[str, ArgumentKind | None]] = []
    by_name: dict[str, ArgumentKind | None] = {}
    rest: tuple[str, ArgumentKind | None] | None = None
    required: list[tuple[int, str]] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = _kind_of_parameter(function, parameter)
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name[ANY_NAME] = kind
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            rest = parameter.name, kind
        elif parameter.default is parameter.empty:
            by_position = parameter.kind is not parameter.KEYWORD_ONLY
            required.append((len(positional) if by_position else sys.maxsize, parameter.name))
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append((parameter.name, kind))
        by_name[parameter.name] = kind
    least = max((place + 1 for place, _ in required), default=0)
    return Kinds(positional, rest, by_name, required, least)


def _kind_of_parameter(
    function: Callable[..., Any], parameter: inspect.Parameter
) -> ArgumentKind | None:
    hint = parameter.annotation
    if isinstance(hint, str):
        module = sys.modules.get(function.__module__)
        try:
            # The string is from the function's source code, not from user input.
            hint = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={"it": hint}), vars(module)
            )["it"]
        except Exception:  # a name that only type checkers can resolve
            return None
    kind = kind_of(hint)
    if kind is None or parameter.default is parameter.empty or kind.holds(parameter.default):
        return kind
    default = parameter.default
    return ArgumentKind(kind.words, lambda value: value is default or kind.holds(value))


def kind_of(hint: Any) -> ArgumentKind | None:
    """Return the kind of values that an annotation allows; None if it allows all.

    >>> kind_of(int | None).words
    'an integer or None'
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        path = any(os.PathLike in (each, get_origin(each)) for each in inside)
        return _any_of([_PATH if path and each is str else kind_of(each) for each in inside])
    if origin is Literal:
        return _any_of([kind_of(type(each)) for each in inside])  # the function checks which
    if origin is tuple and inside[-1:] != (...,):
        parts = [kind_of(each) for each in inside]
        return ArgumentKind(
            f"{len(parts)} values",
            lambda value: (
                _is_sequence(value)
                and len(value) == len(parts)
                and all(k is None or k.holds(v) for k, v in zip(parts, value, strict=True))
            ),
        )
    if origin in (Sequence, list, tuple):
        return _sequence_of(kind_of(inside[0]))
    if origin is Mapping or origin is dict:
        return _mapping_of(*map(kind_of, inside))
    if origin is os.PathLike or hint is os.PathLike:
        return ArgumentKind("a path", lambda value: isinstance(value, os.PathLike))
    if origin is typing.IO or hint is typing.IO:
        return ArgumentKind(
            "an open file", lambda value: hasattr(value, "read") or hasattr(value, "write")
        )
    if origin is Iterable:
        return _sequence_of(kind_of(inside[0]), _is_iterable)
    if origin is Callable or hint is Callable:
        return ArgumentKind("a function", callable)
    is_ours = isinstance(hint, type) and hint.__module__.startswith("caldera.")
    if not is_ours or getattr(hint, "_is_protocol", False) or typing.is_typeddict(hint):
        return None
    return ArgumentKind(f"{hint.__name__} object", lambda value: isinstance(value, hint))


def _any_of(kinds: Sequence[ArgumentKind | None]) -> ArgumentKind | None:
    known = [kind for kind in kinds if kind is not None]
    if len(known) < len(kinds):
        return None
    each = [kind.holds for kind in known]
    return ArgumentKind(
        " or ".join(dict.fromkeys(kind.words for kind in known)),
        lambda value: any(holds(value) for holds in each),
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str | bytes)


def _is_sequence(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not _is_text(value)


def _is_iterable(value: Any) -> bool:
    is_single = isinstance(value, np.ndarray | np.generic) and value.ndim == 0
    return isinstance(value, Iterable) and not _is_text(value) and not is_single


def _sequence_of(
    kind: ArgumentKind | None, holds: Callable[[Any], bool] = _is_sequence
) -> ArgumentKind:
    """Return values of a kind.

    The values of an iterator, which can be read only once, are not checked.
    """
    words = "a list" if kind is None else f"a list, each {kind.words}"
    return ArgumentKind(
        words,
        lambda value: (
            holds(value)
            and (kind is None or isinstance(value, Iterator) or all(map(kind.holds, value)))
        ),
    )


def _mapping_of(key: ArgumentKind | None, value: ArgumentKind | None) -> ArgumentKind:
    def holds(given: Any) -> bool:
        return isinstance(given, Mapping) and all(
            (key is None or key.holds(k)) and (value is None or value.holds(v))
            for k, v in given.items()
        )

    words = "a dict" if value is None else f"a dict, each value {value.words}"
    return ArgumentKind(words, holds)


_TRUTHS = (bool, np.bool_)
_NUMBERS = frozenset({int, float})
"""The most common number types; checking registration as a number is slow."""


def _is_truth(value: Any) -> bool:
    return isinstance(value, _TRUTHS)


def is_whole(value: Any) -> bool:
    if isinstance(value, _TRUTHS):
        return False
    try:
        return -(2**63) <= index(value) < 2**64  # the range of 64-bit integers
    except TypeError:
        return False


def _is_real(value: Any) -> bool:
    return type(value) in _NUMBERS or (isinstance(value, Real) and not _is_truth(value))


def _is_number(value: Any) -> bool:
    """True for real and complex numbers, truth values and arrays of no axes that hold one."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim == 0 and value.dtype.kind in "biufc"
    return isinstance(value, Number)


_PATH = ArgumentKind("a path", lambda value: isinstance(value, str) and "\0" not in value)
_PLAIN: dict[Any, ArgumentKind | None] = {
    Any: None,
    object: None,
    None: ArgumentKind("None", lambda value: value is None),
    types.NoneType: ArgumentKind("None", lambda value: value is None),
    bool: ArgumentKind("True or False", _is_truth),
    int: ArgumentKind("an integer", is_whole),
    float: ArgumentKind("a number", _is_real),
    complex: ArgumentKind("a number", _is_number),
    np.random.Generator: ArgumentKind(
        "np.random.default_rng(...)", lambda value: isinstance(value, np.random.Generator)
    ),
    str: ArgumentKind("text", lambda value: isinstance(value, str)),
    bytes: ArgumentKind("bytes", lambda value: isinstance(value, bytes)),
    dict: ArgumentKind("a dict", lambda value: isinstance(value, dict)),
    list: _sequence_of(None),
}
