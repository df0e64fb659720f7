"""`Space`: all parameters of a search by name, and its traversal.

A traversal calls a function that picks a stored value for each dimension on its path. The methods
differ only in that function: one draws at random, another queries Optuna, another copies a parent.
Choices that open parameters and lists of layers therefore require no special case: a dimension that
is not visited is not picked.
"""

from __future__ import annotations

import inspect
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from caldera.base.arguments import require
from caldera.base.registry import nearest
from caldera.errors import ConfigError
from caldera.search.dimension import Choice, Dimension, Stored

Pick = Callable[[str, Dimension], Stored]
"""Function from a dimension's path and the dimension to the stored value."""
Point = dict[str, Stored]
"""Picked values by path: the stored form of a trial's parameters."""


class Walk(Protocol):
    """Callback that resolves a sub-part of a space at a given path."""

    def __call__(self, path: str, part: Any) -> Any: ...


class SpaceNode(ABC):
    """A part of a space that is more than one dimension: a list of layers, say."""

    @abstractmethod
    def resolve(self, path: str, walk: Walk) -> Any:
        """Return the value, assembled from the results of `walk` for each sub-part and its path."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the part."""


class Space:
    """Parameters by name. A value is a dimension, a part such as `search.repeat`, a dict of more
    parameters, or a plain value that all trials have.

    >>> import numpy as np
    >>> from caldera import search
    >>> space = search.Space({"rate": search.log(1e-4, 1e-1), "layers": search.integer(1, 4)})
    >>> point = space.draw(np.random.default_rng(0))
    >>> sorted(space.decoded(point))
    ['layers', 'rate']
    """

    parameters: dict[str, Any]

    def __init__(self, parameters: Mapping[str, Any] | Space) -> None:
        if isinstance(parameters, Space):
            parameters = parameters.parameters
        if not isinstance(parameters, Mapping):
            raise ConfigError.build(
                "space",
                expected="a dict from names to dimensions",
                got=repr(parameters)[:200],
                hint="for example {'learning_rate': search.log(1e-4, 1e-1)}",
            )
        self.parameters = dict(parameters)
        check_parameters(self.parameters, "")
        self._shared: dict[int, set[str]] = {}
        require(
            self.dimensions(),
            "space",
            "something to choose",
            "an empty space",
            hint="for example {'learning_rate': search.log(1e-4, 1e-1)}",
        )

    # --- walking

    def walk(self, pick: Pick) -> tuple[Point, dict[str, Any]]:
        """Pick a value for each visited dimension; return the point and the parameters."""
        point: Point = {}

        def one(path: str, part: Any) -> Any:
            if isinstance(part, Dimension):
                point[path] = pick(path, part)
                return part.value(point[path])
            if isinstance(part, SpaceNode):
                return part.resolve(path, one)
            if isinstance(part, Mapping):
                return follow(part, f"{path}.", {}, self._shared_in(part))
            return part

        def follow(
            parts: Mapping[str, Any], prefix: str, found: dict[str, Any], shared: set[str]
        ) -> dict[str, Any]:
            for name, part in parts.items():
                found[name] = one(prefix + name, part)
                if isinstance(part, Choice) and part.opens:
                    label = str(point[prefix + name])
                    opened = part.opens.get(label, {})
                    # The label in the path distinguishes equal names that two choices open.
                    clash = not shared.isdisjoint(opened)
                    inner = f"{prefix}{name}={label}." if clash else prefix
                    follow(opened, inner, found, shared)
            return found

        return point, follow(self.parameters, "", {}, self._shared_in(self.parameters))

    def _shared_in(self, parts: Mapping[str, Any]) -> set[str]:
        if id(parts) not in self._shared:
            self._shared[id(parts)] = _shared_names(parts)
        return self._shared[id(parts)]

    def decoded(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of a point.

        >>> from caldera import search
        >>> search.Space({"rate": search.log(1e-4, 1e-1)}).decoded({"rate": 0.01})
        {'rate': 0.01}
        """

        def pick(path: str, dimension: Dimension) -> Stored:
            require(path in point, "space", f"a value for {path}", ", ".join(point) or "none")
            if not dimension.holds(point[path]):
                raise ConfigError.build(
                    f"space {path}", expected=f"a value of {dimension!r}", got=repr(point[path])
                )
            return point[path]

        used, parameters = self.walk(pick)
        unknown = [path for path in point if path not in used]
        if unknown:
            raise ConfigError.build(
                "space",
                expected="a dimension that this point has",
                got=repr(unknown[0]),
                hint=nearest(unknown[0], used),
            )
        return parameters

    def draw(self, random: np.random.Generator) -> Point:
        """Return a point at random."""
        return self.walk(lambda path, dimension: dimension.stored(random.random()))[0]

    def near(
        self,
        point: Mapping[str, Any],
        random: np.random.Generator,
        *,
        width: float = 0.1,
        part: float | None = None,
        path: str | None = None,
    ) -> Point:
        """Return a neighbour of a point, with at least one changed value.

        Each value changes with the probability `part` (default: one value on average). With `path`,
        only the value at this path changes. Parameters that a changed choice opens are drawn at
        random.
        """
        require(point, "Space.near", "a point of the space", "{}")
        chance = 1.0 / len(point) if part is None else part
        forced = list(point)[random.integers(len(point))] if path is None else path

        def pick(here: str, dimension: Dimension) -> Stored:
            if here not in point or not dimension.holds(point[here]):
                return dimension.stored(random.random())
            if here == forced or (path is None and random.random() < chance):
                return dimension.near(point[here], random, width)
            return point[here]

        return self.walk(pick)[0]

    def at(self, units: Mapping[str, float]) -> Point:
        """Return the point at these numbers from 0 to 1, one for each path of `dimensions`."""

        def stored(path: str, dimension: Dimension) -> Stored:
            require(path in units, "Space.at", f"a number for {path!r}")
            return dimension.stored(units[path])

        return self.walk(stored)[0]

    def dimensions(self) -> dict[str, Dimension]:
        """Return all dimensions that any point may have, by path."""
        found: dict[str, Dimension] = {}
        # A choice that opens parameters is taken in each of its ways, all else at its last value,
        # which is the longest list there is.
        pending: list[dict[str, Stored]] = [{}]
        while pending:
            fixed = pending.pop()

            def pick(path: str, dimension: Dimension, fixed: dict[str, Stored] = fixed) -> Stored:
                if path in fixed:
                    return fixed[path]
                if isinstance(dimension, Choice) and dimension.opens and path not in found:
                    pending.extend({**fixed, path: label} for label in dimension.labels[:-1])
                found[path] = dimension
                return dimension.stored(1.0)

            self.walk(pick)
        return found

    def grid(self) -> Iterator[Point]:
        """Yield every point once; a dimension without steps is an error.

        >>> from caldera import search
        >>> space = search.Space({"a": search.integer(1, 2), "b": search.choice(["x", "y"])})
        >>> [tuple(point.values()) for point in space.grid()]
        [(1, 'x'), (1, 'y'), (2, 'x'), (2, 'y')]
        """
        # The way through the space as a number whose digits are the choices; each is one more.
        digits: list[int] = []
        while True:
            sizes: list[int] = []

            def pick(path: str, dimension: Dimension, sizes: list[int] = sizes) -> Stored:
                values = dimension.grid()
                if values is None:
                    raise ConfigError.build(
                        f"grid over {path}",
                        expected="a dimension with steps",
                        got=repr(dimension),
                        hint="write search.uniform(low, high, step=...) or search.choice([...])",
                    )
                at = len(sizes)
                sizes.append(len(values))
                if at == len(digits):
                    digits.append(0)
                return values[digits[at]]

            yield self.walk(pick)[0]
            while digits and digits[-1] + 1 == sizes[len(digits) - 1]:
                digits.pop()
            if not digits:
                return
            digits[-1] += 1

    # --- checking

    def check_build(self, build: Callable[..., Any], given: tuple[str, ...] = ()) -> None:
        """Raise an error unless `build` accepts every name of the space and requires no other.

        `given` are names that the search passes itself if `build` accepts them.
        """
        try:
            parameters = inspect.signature(build).parameters
        except (TypeError, ValueError):
            return
        where = getattr(build, "__name__", "build")
        takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        named = {name: each for name, each in parameters.items() if each.kind in by_name}
        always, possible = self.names()
        unknown = [name for name in possible if name not in named and not takes_all]
        if unknown:
            raise ConfigError.build(
                f"space {unknown[0]}",
                expected=f"a name that {where} takes",
                got=repr(unknown[0]),
                hint=nearest(unknown[0], named) if named else f"{where} takes no names",
            )
        needed = [name for name, each in named.items() if each.default is each.empty]
        missing = [name for name in needed if name not in always and name not in given]
        if missing:
            raise ConfigError.build(
                f"space {missing[0]}",
                expected=f"a dimension for each requirement of {where}",
                got=", ".join(always) or "none of that name",
                hint=f"give {missing[0]} a default, or add it to the space",
            )

    def names(self) -> tuple[list[str], list[str]]:
        """Return the names that `build` always gets, and all names that it may get."""
        possible = [each for name, p in self.parameters.items() for each in (name, *_opened(p))]
        return list(self.parameters), list(dict.fromkeys(possible))

    def describe(self) -> dict[str, Any]:
        """Return plain data that identify the space."""
        return describe(self.parameters)

    def __repr__(self) -> str:
        return f"Space({', '.join(self.names()[1])})"


def check_parameters(parameters: Mapping[str, Any], prefix: str) -> None:
    """Refuse names and values that a space cannot have."""
    taken = set(parameters)
    for name, part in parameters.items():
        _check_one(name, part, prefix)
        opened = set(_opened(part))
        if clash := sorted(opened & taken):
            raise ConfigError.build(
                f"space {prefix}{name}",
                expected="names that no other parameter has",
                got=repr(clash[0]),
                hint="leave it out where a choice does not open it",
            )
        taken |= opened


def _check_one(name: Any, part: Any, prefix: str) -> None:
    require(
        isinstance(name, str) and name and set(name).isdisjoint(".=/"),
        "space",
        "names without . = /",
        repr(name),
    )
    if isinstance(part, Mapping):
        check_parameters(part, f"{prefix}{name}.")
    elif isinstance(part, Choice):
        for opened in part.opens.values():
            check_parameters(opened, f"{prefix}{name}.")
    elif isinstance(part, list | tuple | set | range | np.ndarray) or callable(part):
        raise ConfigError.build(
            f"space {prefix}{name}",
            expected="a dimension or a plain value",
            got=repr(part)[:100],
            hint="write search.choice([...]) for one of several values",
        )


def _opened(part: Any) -> Iterator[str]:
    """Return all names that a choice may open, also by choices inside it."""
    for opened in part.opens.values() if isinstance(part, Choice) else ():
        for name, inner in opened.items():
            yield name
            yield from _opened(inner)


def _shared_names(parameters: Mapping[str, Any]) -> set[str]:
    """Names that more than one choice among these parameters opens, or one choice in two ways."""
    counts = Counter(name for part in parameters.values() for name in _opened(part))
    return {name for name, number in counts.items() if number > 1}


def describe(part: Any) -> Any:
    """Return plain data that identify a part of a space."""
    if isinstance(part, Mapping):
        return {name: describe(each) for name, each in part.items()}
    if isinstance(part, Choice):
        return {**part.describe(), "opens": describe(part.opens)}
    if isinstance(part, Dimension | SpaceNode):
        return part.describe()
    # The address in an object's `repr` differs between processes.
    return {"kind": "fixed", "value": re.sub(r" at 0x[0-9a-f]+", "", repr(part))}
