"""Arguments of public functions, checked against their annotations on entry.

`checked` reads a function's annotations and rejects all other arguments with an error that names
the argument, so that users get no TypeError from inside the library. Conditions that an annotation
cannot express (a range, a name that exists, shapes that fit) are checked by the function.
Annotations without a constraint (`Any`, arrays, protocols) are not checked.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from itertools import repeat
from operator import index
from typing import Any, TypeVar

import numpy as np

from caldera.base.argument_kinds import ANY_NAME, is_whole, kinds_of
from caldera.base.foreign_names import our_argument
from caldera.base.registry import nearest
from caldera.errors import CalderaError, ConfigError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class ArgumentError(ConfigError, TypeError):
    """An argument of a name that a function does not have: a TypeError, as of any function."""


def checked(
    function: F,
    where: Callable[[str], str] = str,
    own_words: bool = False,
    of_class: bool = False,
) -> F:
    """Return the function with a wrapper that rejects arguments of kinds it is not annotated for.

    `where` makes the start of the message from the name of the function. With `own_words` a
    rejected call is still made, since the function's error may be more specific; do not use it for
    functions with side effects. With `of_class` the name is the name of its first argument's class.

    >>> @checked
    ... def repeat(text: str, times: int = 2) -> str:
    ...     return text * times
    >>> repeat("no")
    'nono'
    >>> repeat("no", times="two")
    Traceback (most recent call last):
    caldera.errors.ConfigError: repeat: expected times= an integer, got 'two'
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
    """Wrap the functions and classes in a package's `__all__` in `checked`, except `leave`.

    Called at the end of the package's `__init__`. For classes `__init__` is checked, and the
    methods named in `methods`, separated by spaces.
    """
    for name in room["__all__"]:
        value = room.get(name)  # missing if the package imports it lazily
        if name in leave or not getattr(value, "__module__", "").startswith("caldera."):
            continue
        if isinstance(value, types.FunctionType) and value.__code__ is not _DOOR:
            room[name] = checked(value, where, own_words)
            # Also in the defining module: pickle looks it up there.
            setattr(sys.modules[value.__module__], value.__name__, room[name])
        elif isinstance(value, type) and "__init__" in vars(value):
            guarded(value)
    for name, several in (methods or {}).items():
        guard_methods(room[name], several, own_words)


def imported_later(
    room: dict[str, Any], modules: Mapping[str, str], *leave: str
) -> Callable[[str], Any]:
    """Return the function that imports a package's public names, each guarded on its first use.

    `modules` has the module of each name, with ":attribute" if its attribute is named differently.
    The names in `leave` are not guarded.

    >>> from caldera.base.arguments import imported_later
    >>> imported_later({}, {"Folder": "pathlib:Path"})("Folder").__name__
    'Path'
    """

    def found(name: str) -> Any:
        module, _, attribute = modules[name].partition(":")
        part = {"__all__": [name], name: getattr(import_module(module), attribute or name)}
        guard(part, *leave)
        room[name] = part[name]
        return part[name]

    return found


def guard_methods(cls: type, names: str, own_words: bool = True) -> None:
    """Give methods of a class, whose names are separated by spaces, such a door."""
    for name in names.split():
        found = inspect.getattr_static(cls, name)
        is_bound = isinstance(found, staticmethod | classmethod)
        door = checked(found.__func__ if is_bound else found, own_words=own_words)
        setattr(cls, name, type(found)(door) if is_bound else door)


def guarded(cls: type[T]) -> type[T]:
    """Return the class, with arguments checked against the annotations of its `__init__`."""
    make: Any = vars(cls)["__init__"]
    if isinstance(make, types.FunctionType) and not getattr(cls, "_is_protocol", False):
        cls.__init__ = checked(make, own_words=True, of_class=True)  # type: ignore[method-assign]
    return cls


def _in_own_words(
    function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], refused: Exception
) -> Exception:
    """Return the function's own error for rejected arguments, if it raises one."""
    try:
        function(*args, **named)
    except CalderaError as error:
        return error
    except Exception:  # the kind of exception that users should not see
        return refused
    return refused


def refusal_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    where: Callable[[str], str] = str,
    name: str = "",
) -> CalderaError | None:
    """Return the error about the first argument that the function does not take.

    None if it takes all.
    """
    kinds = kinds_of(function)
    by_name, rest = kinds.by_name, kinds.rest
    if rest is None and len(args) > len(kinds.positional):
        own = kinds.positional[:1] == [("self", None)] or kinds.positional[:1] == [("cls", None)]
        return ArgumentError.build(
            where(name or function.__qualname__),
            expected=f"at most {len(kinds.positional) - own} arguments by position",
            got=f"{len(args) - own}",
            hint="pass the remaining arguments by name"
            if len(by_name) > len(kinds.positional)
            else "",
        )
    expected = kinds.positional
    if rest is not None:
        expected = [*expected, *repeat(rest, len(args))]
    for (argument, kind), value in zip(expected, args, strict=False):
        if kind is not None and not kind.holds(value):
            hint = f"write activation={value!r}" if _names_function(value, by_name) else ""
            return refusal(where(name or function.__qualname__), argument, kind.words, value, hint)
    for (argument, _), _ in zip(kinds.positional, args, strict=False):
        if argument in named and ANY_NAME not in by_name:
            return ArgumentError.build(
                where(name or function.__qualname__), expected=f"{argument}= once", got="it twice"
            )
    for argument, value in named.items():
        if argument not in by_name and ANY_NAME not in by_name:
            known = _of_class(args[0]) if name else by_name
            return _unknown(where(name or function.__qualname__), argument, known)
        kind = by_name.get(argument, by_name.get(ANY_NAME))
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


def _of_class(made: object) -> dict[str, Any]:
    """Return the constructor arguments of an object's class, including its bases."""
    makes = [vars(each)["__init__"] for each in type(made).__mro__ if "__init__" in vars(each)]
    found: dict[str, Any] = {}
    for make in makes:
        if isinstance(make, types.FunctionType):
            found |= kinds_of(inspect.unwrap(make)).by_name
    return found


def _unknown(where: str, argument: str, known: Iterable[str]) -> ArgumentError:
    names = [each for each in known if each not in ("self", ANY_NAME)]
    return ArgumentError.build(
        where,
        expected="its own arguments",
        got=f"{argument}=",
        hint=our_argument(argument, names)
        or (nearest(argument, names) if names else "it takes none"),
    )


def within(where: str, argument: str, value: Any, least: int, most: int) -> int:
    """Return a whole number from `least` to `most`.

    >>> within("mesh", "ranks", 0, 1, 8)
    Traceback (most recent call last):
    caldera.errors.ConfigError: mesh: expected ranks= an integer from 1 to 8, got 0
    """
    if not is_whole(value) or not least <= index(value) <= most:
        raise refusal(where, argument, f"an integer from {least} to {most}", value)
    return index(value)


def _names_function(value: Any, arguments: Iterable[str]) -> bool:
    return isinstance(value, str) and "activation" in arguments


def refusal(where: str, argument: str, expected: str, value: Any, hint: str = "") -> CalderaError:
    """Return the error about an argument."""
    return ConfigError.build(where, expected=f"{argument}= {expected}", got=shown(value), hint=hint)


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
    """Return a value's text for an error message: short, even if its repr fails.

    >>> shown("x" * 500)[-5:], shown(np.zeros((2, 3)))
    ('xx...', 'an array of shape (2, 3)')
    """
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    try:
        text = repr(value)
    except Exception:  # the repr of a user's class
        text = f"a {type(value).__name__}"
    return text if len(text) <= 100 else text[:97] + "..."
