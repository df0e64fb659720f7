"""Objects that can be written to a file as a registered name and plain arguments.

Files never contain import paths, so reading a file can create only objects of registered classes.
The same names are accepted from users, as in `optimizer="adam"`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import numpy as np

from caldera.base.arguments import checked, require, shown
from caldera.base.foreign_names import missing_attribute, our_argument
from caldera.base.plain_data import plain, revived
from caldera.base.registry import Registry, nearest
from caldera.errors import ConfigError

KEYS = ("kind", "name", "arguments")


class Configurable:
    """Something that remembers the arguments it was made with, and so can be described.

    >>> from caldera import optim
    >>> optim.L2(0.5).config()
    {'kind': 'decay', 'name': 'l2', 'arguments': {'strength': 0.5}}
    >>> optim.SGD(0.1, momentum=0.9)
    SGD(0.1, momentum=0.9)
    """

    _made_with: tuple[tuple[Any, ...], dict[str, Any]]

    if not TYPE_CHECKING:  # else any attribute would pass
        __getattr__ = missing_attribute

    def __new__(cls, *args: Any, **named: Any) -> Self:
        made = super().__new__(cls)
        # Past the guard of frozen dataclasses.
        object.__setattr__(made, "_made_with", (args, named))
        return made

    def __init__(self) -> None:
        """Take no arguments: without this any would pass, since __new__ takes them all."""

    __init__ = checked(__init__, of_class=True)

    def __repr__(self) -> str:
        args, named = self._made_with
        given = [repr(value) for value in args] + [f"{k}={value!r}" for k, value in named.items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def arguments(self) -> dict[str, Any]:
        """The arguments it was made with, by name, defaults included.

        >>> from caldera import optim
        >>> optim.Cosine(0.1, steps=100).arguments()
        {'peak': 0.1, 'steps': 100, 'warm_up': 0, 'final': 0.0}
        """
        args, named = self._made_with
        known = _parameters(type(self))
        passed = dict(zip(known, args, strict=False)) | named
        return {name: passed.get(name, parameter.default) for name, parameter in known.items()}

    def owned_by(self, owner: str) -> Self:
        """Return the object itself for its first owner, and a new one with the same arguments
        otherwise.

        Its state belongs to the training of a single model.

        >>> from caldera import optim
        >>> rule = optim.GrowingBatch(32)
        >>> rule.owned_by("a") is rule, rule.owned_by("a") is rule, rule.owned_by("b") is rule
        (True, True, False)
        """
        if vars(self).setdefault("_owner", owner) == owner:
            return self
        made = type(self)(**self.arguments())
        vars(made)["_owner"] = owner
        return made

    def config(self) -> dict[str, Any]:
        """Return kind, registered name and arguments: a JSON-serialisable dict."""
        family, name = _registered(type(self))
        arguments = {
            key: plain(value, partial(_written, f"{name} {key}"), dicts=False)
            for key, value in self.arguments().items()
        }
        return {"kind": family.kind, "name": name, "arguments": arguments}


class Adjustable(Configurable):
    """Object with assignable attributes: its arguments are then the current values.

    >>> from caldera import optim
    >>> descent = optim.SGD(0.1, momentum=0.9)
    >>> descent.momentum = 0.5
    >>> descent.arguments()["momentum"]
    0.5
    """

    gives_way: ClassVar[Mapping[str, str]] = {}
    """Arguments made void by an assignment, by the name of the assigned argument."""

    def __repr__(self) -> str:
        if not self._assigned():
            return super().__repr__()
        # Not the base's repr: an assigned value may be accepted by no constructor.
        given = [f"{name}={value!r}" for name, value in self.arguments().items()]
        return f"{type(self).__name__}({', '.join(given)})"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of an equal object: the original ones, updated by assignments."""
        assigned = self._assigned()
        void = {self.gives_way[name]: None for name in assigned if name in self.gives_way}
        return super().arguments() | void | assigned

    def check_argument(self, name: str, value: Any) -> None:
        """Raise an error for a value that the constructor rejects, or that requires another state.

        >>> from caldera import optim
        >>> optim.Adam().check_argument("beta1", 2.0)
        Traceback (most recent call last):
        caldera.errors.ConfigError: Adam: expected 0 <= beta1 < 1, got 2.0
        """
        arguments = self.arguments()
        if name not in arguments or isinstance(getattr(type(self), name, None), property):
            return
        void = {self.gives_way[name]: None} if name in self.gives_way else {}
        made: Any = type(self)(**(arguments | void | {name: value}))
        keeps = getattr(made, "keeps", ())
        if keeps == vars(self).get("keeps", keeps):
            return
        require(
            not vars(self).get("state"),
            type(self).__name__,
            f"{name}= when it is made, or before its first step",
            shown(value),
            f"make another {type(self).__name__} with {name}={shown(value)}",
        )
        vars(self)["keeps"] = keeps

    def _assigned(self) -> dict[str, Any]:
        """Return the attributes, named as arguments are, in which it differs from one just made."""
        args, named = self._made_with
        fresh = type(self)(*args, **named)
        names = [name for name in super().arguments() if name in vars(self) and name in vars(fresh)]
        own = {name: getattr(self, name) for name in names}
        return {name: own[name] for name in names if not _alike(own[name], getattr(fresh, name))}


def _alike(value: Any, other: Any) -> bool:
    """Return True if two arguments are equal."""
    if isinstance(value, Configurable) and type(value) is type(other):
        return value is other or value.arguments() == other.arguments()
    return bool(np.all(value == other))


T = TypeVar("T", bound=Configurable)


class Family(Registry[Callable[..., T]]):
    """The classes of a kind by name, to make objects from names or from `config()`.

    >>> from caldera import optim
    >>> optim.optimizers.make("adam", beta1=0.8).beta1
    0.8
    >>> optim.optimizers["adagrad"].__name__
    'Adagrad'
    """

    def __init__(self, kind: str, base: Callable[..., T]) -> None:
        super().__init__(kind)
        self.base = base
        _families.add(kind, self)

    def register(self, *names: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class under names; files use the first.

        >>> from caldera import op, optim
        >>> @optim.optimizers.register("sign_descent")
        ... class SignDescent(optim.Optimizer):
        ...     def update(self, parameter, gradient, state, rate, step):
        ...         return parameter - rate * op.sign(gradient), {}
        >>> optim.get("sign_descent", learning_rate=0.1).config()["name"]
        'sign_descent'
        """

        def enter(cls: type[T]) -> type[T]:
            for name in names:
                self.add(name, cls)
            return cls

        return enter

    def make(self, given: str | T, **arguments: Any) -> T:
        """Return an object from its name and arguments; an object is given back as it is."""
        if isinstance(given, str):
            make = self[given]
            known = _parameters(make)
            for name in arguments:
                if name not in known:
                    raise ConfigError.build(
                        f"{self.kind} {given}",
                        expected="an argument it takes",
                        got=repr(name),
                        hint=our_argument(name, known) or nearest(name, known),
                    )
            try:
                return make(**arguments)
            except TypeError as error:
                raise ConfigError.build(
                    f"{self.kind} {given}", expected="arguments it can be made with", got=f"{error}"
                ) from error
        if not isinstance(given, self.base):  # type: ignore[arg-type]
            raise ConfigError.build(
                self.kind,
                expected="a name or an object",
                got=repr(given),
                hint="names: " + ", ".join(self),
            )
        if arguments:
            raise ConfigError.build(
                self.kind,
                expected="arguments only together with a name",
                got=f"an object and {', '.join(arguments)}",
            )
        return given

    def name_of(self, cls: type) -> str | None:
        """Return the name that files use for a class, or None if it is not registered."""
        return next((name for name in self if self[name] is cls), None)

    def from_config(self, config: Mapping[str, Any]) -> T:
        """Create the object described by `config()`.

        >>> from caldera import optim
        >>> optim.schedules.from_config(optim.Cosine(0.1, steps=100).config())
        Cosine(peak=0.1, steps=100, warm_up=0, final=0.0)
        """
        if not isinstance(config, Mapping) or set(config) != set(KEYS):
            raise ConfigError.build(
                f"config of {self.kind}", expected="a dict of " + ", ".join(KEYS), got=repr(config)
            )
        kind, name, arguments = (config[key] for key in KEYS)
        if kind != self.kind or not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise ConfigError.build(
                f"config of {self.kind}",
                expected=f"kind {self.kind!r}, a name and arguments",
                got=repr(config),
            )
        made = {str(key): revived(value, _made) for key, value in arguments.items()}
        return self.make(name, **made)


_families: Registry[Family[Any]] = Registry("kind")


def _registered(cls: type) -> tuple[Family[Any], str]:
    for kind in _families:
        name = _families[kind].name_of(cls)
        if name is not None:
            return _families[kind], name
    raise ConfigError.build(
        cls.__name__,
        expected="a registered class, since files hold names",
        got="one that is not",
        hint="register it, as in @optim.optimizers.register('my_optimizer')",
    )


def _parameters(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the constructor parameters, including a base's if keywords are passed on to it."""
    found: dict[str, inspect.Parameter] = {}
    cls = made.func if isinstance(made, partial) else made
    for each in inspect.getmro(cls):  # type: ignore[arg-type]
        if "__init__" not in vars(each):
            continue
        own = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
        named = [p for p in own if p.kind is not inspect.Parameter.VAR_KEYWORD]
        found = found | {p.name: p for p in named if p.name not in found}
        if len(named) == len(own):
            break
    return found


def _written(where: str, value: Any) -> Any:
    if isinstance(value, Configurable):
        return value.config()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise ConfigError.build(
        where,
        expected="a JSON-serialisable value: number, string, list or registered object",
        got=type(value).__name__,
    )


def _made(config: Mapping[str, Any]) -> Any:
    return _families[config.get("kind", "")].from_config(config)
