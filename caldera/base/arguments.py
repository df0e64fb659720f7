"""Arguments of public functions, checked at the door against their annotations.

`checked` reads what a function says it takes and refuses all else with an error that names the
argument, so that nobody meets a TypeError from the middle of the library. What an annotation cannot
say (a range, a name that exists, shapes that fit) the function checks itself. Annotations that say
nothing about a value (`Any`, arrays, protocols) are not checked.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from itertools import repeat
from numbers import Number, Real
from operator import index
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import numpy as np

from caldera.base.registry import nearest
from caldera.errors import CalderaError, ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_ANY_NAME = "**"
"""Among the names of a function's arguments: it takes others too."""


class ArgumentError(ConfigError, TypeError):
    """An argument of a name that a function does not have: a TypeError, as of any function."""


@dataclass(frozen=True)
class ArgumentKind:
    """A kind of values: how to say it, and what is of it."""

    words: str
    holds: Callable[[Any], bool]


def checked(
    function: F,
    where: Callable[[str], str] = str,
    own_words: bool = False,
    of_class: bool = False,
) -> F:
    """The function, with a door that refuses arguments of other kinds than it says it takes.

    `where` makes the start of the message from the name of the function. With `own_words` the
    function is asked first what is wrong, for it may know better words; not for what leaves traces.
    With `of_class` the name is that of its first argument's class.

    >>> @checked
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("no")
    'nono'
    >>> repeat("no", times="two")
    Traceback (most recent call last):
    caldera.errors.ConfigError: repeat: expected times= a whole number, got 'two'
    """

    @wraps(function)
    def door(*args: Any, **named: Any) -> Any:
        refused = refusal_of(
            function, args, named, where, type(args[0]).__name__ if of_class else ""
        )
        if refused is not None:
            raise _in_own_words(function, args, named, refused) if own_words else refused
        return function(*args, **named)

    return door  # type: ignore[return-value]


_DOOR = checked(lambda: None).__code__


def guard(
    room: dict[str, Any],
    *leave: str,
    where: Callable[[str], str] = str,
    own_words: bool = True,
    methods: Mapping[str, str] | None = None,
) -> None:
    """Give the functions and classes that a room names in `__all__` such a door, but for `leave`.

    Called at the end of the room's `__init__`. Of classes `__init__` is checked, and those of their
    `methods` that are named, separated by spaces.
    """
    for name in room["__all__"]:
        value = room.get(name)  # not there: one that the room gives when it is asked for
        if name in leave or not getattr(value, "__module__", "").startswith("caldera."):
            continue
        if isinstance(value, types.FunctionType) and value.__code__ is not _DOOR:
            room[name] = checked(value, where, own_words)
            # Also where it is defined: pickle looks for it there.
            setattr(sys.modules[value.__module__], value.__name__, room[name])
        elif isinstance(value, type) and "__init__" in vars(value):
            guarded(value)
    for name, several in (methods or {}).items():
        guard_methods(room[name], several, own_words)


def guard_methods(cls: type, names: str, own_words: bool = True) -> None:
    """Give methods of a class, whose names are separated by spaces, such a door."""
    for name in names.split():
        found = inspect.getattr_static(cls, name)
        is_bound = isinstance(found, staticmethod | classmethod)
        door = checked(found.__func__ if is_bound else found, own_words=own_words)
        setattr(cls, name, type(found)(door) if is_bound else door)


def guarded(cls: type[T]) -> type[T]:
    """The class, made only with arguments that its `__init__` says it takes."""
    make: Any = vars(cls)["__init__"]
    if isinstance(make, types.FunctionType) and not getattr(cls, "_is_protocol", False):
        cls.__init__ = checked(make, own_words=True, of_class=True)  # type: ignore[method-assign]
    return cls


def _in_own_words(
    function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], refused: Exception
) -> Exception:
    """What the function itself says about arguments that are refused, if it says anything."""
    try:
        function(*args, **named)
    except CalderaError as error:
        return error
    except Exception:  # the kind of exception that nobody should meet
        return refused
    return refused


def refusal_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    where: Callable[[str], str] = str,
    name: str = "",
) -> CalderaError | None:
    """The error about the first argument that the function does not take; None if it takes all."""
    kinds = kinds_of(function)
    by_name, rest = kinds.by_name, kinds.rest
    if rest is None and len(args) > len(kinds.positional):
        own = kinds.positional[:1] == [("self", None)] or kinds.positional[:1] == [("cls", None)]
        return ArgumentError.build(
            where(name or function.__qualname__),
            expected=f"at most {len(kinds.positional) - own} arguments by position",
            got=f"{len(args) - own}",
            hint="pass the others by name" if len(by_name) > len(kinds.positional) else "",
        )
    expected = kinds.positional
    if rest is not None:
        expected = [*expected, *repeat(rest, len(args))]
    for (argument, kind), value in zip(expected, args, strict=False):
        if kind is not None and not kind.holds(value):
            return refusal(where(name or function.__qualname__), argument, kind.words, value)
    for (argument, _), _ in zip(kinds.positional, args, strict=False):
        if argument in named and _ANY_NAME not in by_name:
            return ArgumentError.build(
                where(name or function.__qualname__), expected=f"{argument}= once", got="it twice"
            )
    for argument, value in named.items():
        if argument not in by_name and _ANY_NAME not in by_name:
            return _unknown(where(name or function.__qualname__), argument, by_name)
        kind = by_name.get(argument, by_name.get(_ANY_NAME))
        if kind is not None and not kind.holds(value):
            return refusal(where(name or function.__qualname__), argument, kind.words, value)
    if len(args) < kinds.least:
        for place, argument in kinds.required:
            if place >= len(args) and argument not in named:
                return ArgumentError.build(
                    where(name or function.__qualname__), expected=f"{argument}=", got="none"
                )
    return None


def refuse_unknown(function: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """Refuse arguments of names that a function does not have, which it has caught as `**unknown`:
    a door around it would be a frame more between a warning and the line that it is about.

    >>> def fit(class_weights=None, **unknown):
    ...     refuse_unknown(fit, unknown)
    >>> fit(class_weight="balanced")
    Traceback (most recent call last):
    caldera.base.arguments.ArgumentError: fit: expected its own arguments, got class_weight=;
    did you mean 'class_weights'?
    """
    for argument in unknown:
        raise _unknown(function.__name__, argument, kinds_of(function).by_name)


def _unknown(where: str, argument: str, known: Iterable[str]) -> ArgumentError:
    names = [each for each in known if each not in ("self", _ANY_NAME)]
    return ArgumentError.build(
        where,
        expected="its own arguments",
        got=f"{argument}=",
        hint=nearest(argument, names) if names else "it takes none",
    )


def within(where: str, argument: str, value: Any, least: int, most: int) -> int:
    """A whole number from `least` to `most`.

    >>> within("mesh", "ranks", 0, 1, 8)
    Traceback (most recent call last):
    caldera.errors.ConfigError: mesh: expected ranks= a whole number from 1 to 8, got 0
    """
    if not _is_whole(value) or not least <= index(value) <= most:
        raise refusal(where, argument, f"a whole number from {least} to {most}", value)
    return index(value)


def refusal(where: str, argument: str, expected: str, value: Any) -> CalderaError:
    """The error about one argument."""
    return ConfigError.build(where, expected=f"{argument}= {expected}", got=shown(value))


def require(
    ok: object,
    where: str,
    expected: str,
    got: object = "none",
    hint: str = "",
    error: type[CalderaError] = ConfigError,
) -> None:
    """Raise an error, a ConfigError by default, unless the condition holds.

    >>> require(0 <= 1.5 < 1, "Dropout", "0 <= rate < 1", 1.5)
    Traceback (most recent call last):
    caldera.errors.ConfigError: Dropout: expected 0 <= rate < 1, got 1.5
    """
    if not ok:
        raise error.build(where, expected=expected, got=f"{got}", hint=hint)


def shown(value: Any) -> str:
    """A value as an error message shows it: short, and whatever its own repr does.

    >>> shown("x" * 500)[-5:], shown(np.zeros((2, 3)))
    ('xx...', 'an array of shape (2, 3)')
    """
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    try:
        text = repr(value)
    except Exception:  # somebody else's repr
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:97] + "..."


class Kinds(NamedTuple):
    """The kinds of a function's arguments."""

    positional: list[tuple[str, ArgumentKind | None]]
    """Arguments that may come by position."""
    rest: tuple[str, ArgumentKind | None] | None
    """The name and kind of any number of further ones; None if there are none."""
    by_name: dict[str, ArgumentKind | None]
    required: list[tuple[int, str]]
    """Positions and names of arguments without a default; a name alone has no position."""
    least: int
    """The number of arguments by position that leaves none of these out."""


@cache
def kinds_of(function: Callable[..., Any]) -> Kinds:
    """The kinds of a function's arguments: those that may come by position, and all by name."""
    positional: list[tuple[str, ArgumentKind | None]] = []
    by_name: dict[str, ArgumentKind | None] = {}
    rest: tuple[str, ArgumentKind | None] | None = None
    required: list[tuple[int, str]] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = _kind_of_parameter(function, parameter)
        if parameter.kind is parameter.VAR_KEYWORD:
            by_name[_ANY_NAME] = kind
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
            # A string that stands in the source of the function, not one that came from a user.
            hint = typing.get_type_hints(
                types.SimpleNamespace(__annotations__={"it": hint}), vars(module)
            )["it"]
        except Exception:  # a name for type checkers alone
            return None
    kind = kind_of(hint)
    if kind is None or parameter.default is parameter.empty or kind.holds(parameter.default):
        return kind
    default = parameter.default
    return ArgumentKind(kind.words, lambda value: value is default or kind.holds(value))


def kind_of(hint: Any) -> ArgumentKind | None:
    """What an annotation says about values; None if nothing.

    >>> kind_of(int | None).words
    'a whole number or None'
    """
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        path = any(os.PathLike in (each, get_origin(each)) for each in inside)
        return _any_of([_PATH if path and each is str else kind_of(each) for each in inside])
    if origin is Literal:
        return _any_of([kind_of(type(each)) for each in inside])  # which one, it asks itself
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
    """Values of a kind; those of an iterator, which can be read once, are not looked at."""
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
"""What most numbers are: to ask whether somebody's type was registered as a number is slow."""


def _is_truth(value: Any) -> bool:
    return isinstance(value, _TRUTHS)


def _is_whole(value: Any) -> bool:
    if isinstance(value, _TRUTHS):
        return False
    try:
        return -(2**63) <= index(value) < 2**64  # what a machine can count
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
    int: ArgumentKind("a whole number", _is_whole),
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
