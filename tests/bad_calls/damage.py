"""A valid call, and the same call with arguments of another kind."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Given = Callable[[Callable[..., Any]], Any]
"""A valid call: `lambda f: f(x, axis=1)`, for whatever is called by that name."""


class Thing:
    """An object that nothing knows how to use."""

    def __init__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        return "Thing()"


def bad_values(folder: Path) -> dict[str, Callable[[], Any]]:
    """Values of all kinds by what they are, each made anew for every call."""
    return {
        "None": lambda: None,
        "text": lambda: "no such name",
        "empty text": lambda: "",
        "bytes": lambda: b"bytes",
        "True": lambda: True,
        "0": lambda: 0,
        "-1": lambda: -1,
        "-7": lambda: -7,
        "3": lambda: 3,
        "1e12": lambda: 10**12,
        "2**70": lambda: 2**70,
        "1.5": lambda: 1.5,
        "-0.5": lambda: -0.5,
        "nan": lambda: float("nan"),
        "inf": lambda: float("inf"),
        "-inf": lambda: float("-inf"),
        "complex": lambda: 1j,
        "[]": list,
        "ragged": lambda: [1, [2, 3]],
        "[None]": lambda: [None],
        "[text]": lambda: ["a", "b"],
        "[-1, 0]": lambda: [-1, 0],
        "(2, 2.5)": lambda: (2, 2.5),
        "{}": dict,
        "dict": lambda: {"a": 1},
        "{1: object}": lambda: {1: Thing()},
        "set": lambda: {1, 2},
        "object": Thing,
        "class": lambda: Thing,
        "function": lambda: lambda *a: a,
        "generator": lambda: (i for i in range(2)),
        "...": lambda: ...,
        "slice": lambda: slice(1, 2),
        "array of no axes": lambda: np.float32(2.5),
        "empty array": lambda: np.zeros((0,), np.float32),
        "array (3, 7)": lambda: np.ones((3, 7), np.float32),
        "array (1, 2, 1, 2, 1)": lambda: np.ones((1, 2, 1, 2, 1), np.float32),
        "ints (2,)": lambda: np.array([5, -9]),
        "bools": lambda: np.array([True, False]),
        "texts": lambda: np.array(["a", "b"]),
        "objects": lambda: np.array([1, None], object),
        "complexes": lambda: np.array([1j, 2j]),
        "dates": lambda: np.array(["2020-01-01"], "datetime64[D]"),
        "records": lambda: np.zeros(2, [("a", "i4"), ("b", "f4")]),
        "masked": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
        "missing path": lambda: folder / "missing" / "file",
        "folder": lambda: folder,
        "text with nul": lambda: "a\0b",
    }


@dataclass(frozen=True)
class Damaged:
    """A call of which some arguments are bad."""

    name: str
    call: Callable[[], Any]
    bad: tuple[tuple[str | int, str], ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{place}: {kind}' for place, kind in self.bad)})"


def arguments_of(function: Callable[..., Any], given: Given) -> tuple[list[Any], dict[str, Any]]:
    """What a valid call passes; arguments that it leaves out, with their defaults."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    given(lambda *a, **k: seen.append((a, k)))
    args, named = list(seen[0][0]), dict(seen[0][1])
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **named)
    except (TypeError, ValueError):
        return args, named
    for name, parameter in signature.parameters.items():
        kinds = (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY)
        if name not in bound.arguments and parameter.kind not in kinds:
            named[name] = parameter.default
    return args, named


def damaged(
    name: str,
    function: Callable[..., Any],
    given: Given,
    folder: Path,
    draw: random.Random | None = None,
    count: int = 0,
) -> Iterator[Damaged]:
    """`count` calls with one or two bad arguments; without `draw`, each argument with each kind."""
    kinds = bad_values(folder)
    args, named = arguments_of(function, given)
    places: list[str | int] = [*range(len(args)), *named]
    if not places:
        return

    def call(bad: tuple[tuple[str | int, str], ...]) -> Callable[[], Any]:
        def make() -> Any:
            own_args, own_named = arguments_of(function, given)
            for place, kind in bad:
                if isinstance(place, int):
                    own_args[place] = kinds[kind]()
                else:
                    own_named[place] = kinds[kind]()
            return function(*own_args, **own_named)

        return make

    if draw is None:
        for place in places:
            for kind in kinds:
                yield Damaged(name, call(((place, kind),)), ((place, kind),))
        return
    for _ in range(count):
        chosen = draw.sample(places, min(len(places), draw.choice((1, 1, 1, 2))))
        bad = tuple((place, draw.choice(list(kinds))) for place in chosen)
        yield Damaged(name, call(bad), bad)
