"""Registries of named objects, and imports of optional libraries on first use.

Users and files refer to layers, losses and optimizers by name. An optional library is imported
only when a feature needs it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar, cast

from caldera.base.foreign_names import bare, ours
from caldera.errors import ConfigError

T = TypeVar("T")


class Registry(Generic[T]):
    """Objects of a kind by name. Names are unique; an unknown name is an error.

    Objects that a higher layer registers on import are found before that, too, if the top-level
    package declares their location (`provide("layer FilterBank", ...)`).

    >>> from caldera.base.registry import Registry
    >>> colours: Registry[int] = Registry("colour")
    >>> colours.add("red", 0xFF0000)
    >>> colours["red"], list(colours), "blue" in colours
    (16711680, ['red'], False)
    >>> colours["ret"]
    Traceback (most recent call last):
    caldera.errors.ConfigError: colour: expected a registered name, got 'ret'; did you mean 'red'?
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, value: T) -> None:
        """Give `value` a name. A class that is defined again, as in a notebook, takes its place."""
        if name in self._entries and not _same_definition(self._entries[name], value):
            raise ConfigError.build(
                f"{self.kind} {name}",
                expected="an unused name",
                got=f"a name in use: {self._entries[name]!r}",
                hint="choose another name",
            )
        self._entries[name] = value

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise ConfigError.build(
                self.kind,
                expected="a registered name",
                got=repr(name),
                hint=ours(str(name), self._entries) or nearest(name, sorted(self._entries)),
            )
        if name not in self._entries:
            return cast(T, provided(f"{self.kind} {name}"))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        known = isinstance(name, str) and name in self._entries
        return known or f"{self.kind} {name}" in _providers

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _same_definition(old: object, new: object) -> bool:
    return isinstance(old, type) and isinstance(new, type) and repr(old) == repr(new)


MOST_NAMED = 40
"""Names that a hint lists: there are hundreds of ops."""


def nearest(name: object, known: Iterable[str]) -> str:
    """Return the hint for a name that does not exist.

    >>> from caldera.base.registry import nearest
    >>> nearest("adamm", ["adam", "sgd"])
    "did you mean 'adam'?"
    >>> nearest("qqq", ["adam", "sgd"])
    'known: adam, sgd'
    """
    names = list(known)
    close = [each for each in names if bare(each) == bare(str(name))]
    close = close or difflib.get_close_matches(str(name), names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return "known: " + ", ".join(names[:MOST_NAMED]) + more


_providers: dict[str, tuple[str, str]] = {}


def provide(what: str, module: str, name: str) -> None:
    """Declare the location of an object that lower layers request by role.

    Called by the top-level package.
    """
    _providers[what] = (module, name)


def provided(what: str) -> Any:
    """Return the object declared by `provide`, imported when it is first needed.

    >>> from caldera.base.registry import provide, provided
    >>> provide("a name", "pathlib", "Path")
    >>> provided("a name").__name__
    'Path'
    """
    if what not in _providers:
        raise ConfigError.build("caldera", expected=f"a registered provider of {what}", got="none")
    module, name = _providers[what]
    return getattr(import_module(module), name)


def provided_attributes(package: str) -> Callable[[str], Any]:
    """Return the function that finds what `provide` calls "package.name", by its name.

    >>> from caldera.base.registry import provide, provided_attributes
    >>> provide("files.Path", "pathlib", "Path")
    >>> provided_attributes("files")("Path").__name__
    'Path'
    """

    def found(name: str) -> Any:
        at, attribute = _providers[f"{package}.{name}"]
        return getattr(import_module(at), attribute)

    return found


def optional_import(module: str, package: str, where: str) -> Any:
    """Import a module of an optional library; the error names the package to install.

    >>> optional_import("math", "math", "data.digits").sqrt(4.0)
    2.0
    >>> optional_import("no_such_module", "no-such-package", "data.digits")
    Traceback (most recent call last):
    caldera.errors.ConfigError: data.digits: expected the package no-such-package,
    got No module named 'no_such_module'; install it with: pip install no-such-package
    """
    try:
        return import_module(module)
    except (ImportError, OSError) as error:
        # The latter where a library of the machine is missing under the package.
        raise ConfigError.build(
            where,
            expected=f"the package {package}",
            got=str(error),
            hint=f"install it with: pip install {package}",
        ) from None
