"""Calls all public functions, classes and methods with arguments that make no sense: each call is
refused in words, or works.

    python -m tests.fuzz.wrong_calls --count 3000
    python -m tests.fuzz.wrong_calls --seed 7 --count 200 --name op.conv2d

Beside the values of `tests/bad_calls` there are objects whose own methods fail, arguments that are
left out, doubled, exchanged or misspelt, and calls that are put together from the signature alone.
"""

from __future__ import annotations

import argparse
import inspect
import os
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import caldera as cd
from caldera import op
from tests.bad_calls import calls_of_methods, methods_of_services
from tests.bad_calls.calls_of_rooms import find
from tests.bad_calls.damage import Damaged, Given, arguments_of, bad_values
from tests.bad_calls.outcome import raw_exception
from tests.bad_calls.test_calls import CALLS, NEED_MORE

LONG = {"1e12", "2**70", "Decimal", "Fraction", "a billion"}
"""Numbers of epochs, trials or calls that may be meant."""
CALLS_BACK = {"op.cond", "op.while_loop", "op.scan"}
"""Their functions have as many arguments as operands are given: an error of a function's own."""
SLOW = ("NeuralNetwork", "search.run", "search.Study", *methods_of_services.METHODS)
MADE_OFTEN = {"MemoryManager", "data.Draw", "data.Share", "device", "optim.Minimum"}
"""Not checked for names of arguments, which would cost each tensor and each batch; a result."""
ALONE = {"comm.launch", "comm.run_processes", "dmath.local", "dmath.spawn"}
"""They start processes."""


class HostileError(Exception):
    """Raised by an object that the call passed."""


class Hostile:
    """An object whose own methods fail: their error is passed on."""

    def _fail(self, *_: object) -> Any:
        raise HostileError("this object does nothing")

    __len__ = __iter__ = __index__ = __float__ = __bool__ = __array__ = __getitem__ = _fail
    __eq__ = __lt__ = __contains__ = _fail  # type: ignore[assignment]
    __hash__ = object.__hash__


class Silent:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise HostileError("no words")


class OddText(str):
    """A text of another class."""


def wrong_values(folder: Path) -> dict[str, Callable[[], Any]]:
    """Values of all kinds by what they are, each made anew for every call."""
    more: dict[str, Callable[[], Any]] = {
        "Decimal": lambda: Decimal("1.5"),
        "Fraction": lambda: Fraction(1, 3),
        "date": lambda: date(2020, 1, 1),
        "range": lambda: range(3),
        "bytearray": lambda: bytearray(b"ab"),
        "memoryview": lambda: memoryview(b"abcd"),
        "odd text": lambda: OddText("sum"),
        "surrogate": lambda: "a\udc80b",
        "long text": lambda: "x" * 100_000,
        "lines": lambda: "a\nb\r\n",
        "a billion": lambda: 10**9,
        "-2**63": lambda: -(2**63),
        "-0.0": lambda: -0.0,
        "1e-320": lambda: 1e-320,
        "NumPy bool": lambda: np.bool_(True),
        "NumPy int": lambda: np.int8(-3),
        "NumPy text": lambda: np.str_("sum"),
        "array of one": lambda: np.array([3]),
        "0-d ints": lambda: np.array(2),
        "not contiguous": lambda: np.ones((4, 6), np.float32)[::2, ::-3],
        "big-endian": lambda: np.ones(3, ">f4"),
        "float16": lambda: np.ones(3, np.float16),
        "nan array": lambda: np.full((2, 3), np.nan),
        "list of itself": _endless,
        "nested": _nested,
        "tensor": lambda: cd.tensor(np.ones((2, 3), np.float32)),
        "expression": lambda: op.input("x", (2, 3)),
        "layer": lambda: cd.nn.Dense(3),
        "model class": lambda: cd.NeuralNetwork,
        "module": lambda: np,
        "exception": lambda: ValueError("bad"),
        "type": lambda: int,
        "dict of bytes": lambda: {b"a": 1, None: 2},
        "empty tuple": tuple,
        "empty set": set,
        "NotImplemented": lambda: NotImplemented,
        "silent": Silent,
        "hostile": Hostile,
    }
    return bad_values(folder) | more


def _endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _nested() -> list[Any]:
    found: list[Any] = [1]
    for _ in range(20):
        found = [found]
    return found


@dataclass(frozen=True)
class Target:
    """Something public that can be called, and a valid call of it, if one is known."""

    name: str
    function: Callable[..., Any]
    given: Given


def targets() -> list[Target]:
    """All public callables that users call, methods too. Estimators are scikit-learn's to check."""
    found = [
        Target(name, find(name), given)
        for name, given in CALLS.items()
        if name not in NEED_MORE | MADE_OFTEN and "sklearn" not in name
    ]
    found += [
        Target(name, function, given) for name, (function, given) in calls_of_methods.CALLS.items()
    ]
    return [each for each in found if each.name not in ALONE]


def wrong_call(target: Target, folder: Path, random: Random) -> Damaged | None:
    """One call that is wrong in one of several ways."""
    kinds = wrong_values(folder)
    names = list(kinds)
    if target.name.startswith(SLOW):
        names = [each for each in names if each not in LONG]
    how = random.choice(["values", "values", "values", "values", "places", "signature"])
    try:
        parameters = list(inspect.signature(target.function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if how == "signature":
        count = random.randint(0, len(parameters) + 1)
        chosen = [random.choice(names) for _ in range(count)]
        if target.name.startswith("code.compile"):
            return None
        return Damaged(
            target.name,
            lambda: target.function(*(kinds[each]() for each in chosen)),
            tuple(enumerate(chosen)),
        )
    given = target.given
    args, named = arguments_of(target.function, given)
    places: list[str | int] = [*range(len(args)), *named]
    if how == "values" and places:
        some = random.sample(places, min(len(places), random.choice((1, 1, 2, 3))))
        bad = tuple((place, random.choice(names)) for place in some)

        def call() -> Any:
            own, own_named = arguments_of(target.function, given)
            for place, kind in bad:
                if isinstance(place, int):
                    own[place] = kinds[kind]()
                else:
                    own_named[place] = kinds[kind]()
            return target.function(*own, **own_named)

        return Damaged(target.name, call, bad)
    return _misplaced(target, given, random)


def _misplaced(target: Target, given: Given, random: Random) -> Damaged:
    """A call whose arguments are exchanged, left out, doubled or misspelt."""
    way = random.choice(["exchanged", "left out", "one more", "misspelt", "twice"])

    def call() -> Any:
        args, named = arguments_of(target.function, given)
        if way == "exchanged":
            args = args[::-1]
        elif way == "left out":
            args = args[:-1]
        elif way == "one more":
            args = [*args, *([None] * 9)]
        elif way == "twice" and args:
            args = [args[0], *args]
        else:
            named |= {"no_such_name": 1}
        return target.function(*args, **named)

    return Damaged(target.name, call, ((way, ""),))


def wrong_calls(
    count: int, seed: int, folder: Path, only: str = ""
) -> Iterator[tuple[Damaged, BaseException | None]]:
    """So many calls over all targets, and what each raised that is no error of Caldera's."""
    random = Random(seed)
    chosen = [each for each in targets() if only in each.name]
    for number in range(count):
        target = chosen[number] if number < len(chosen) else random.choice(chosen)
        call = wrong_call(target, folder, random)
        if call is not None:
            error = raw_exception(call.call)
            is_own = isinstance(error, HostileError) or (
                target.name in CALLS_BACK and isinstance(error, TypeError)
            )
            yield call, None if is_own else error


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any call ends in an exception that is not Caldera's."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="calls")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="", help="of those whose name has this in it alone")
    options = parser.parse_args(arguments)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), hard))
    raw: Counter[str] = Counter()
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for call, error in wrong_calls(options.count, options.seed, Path(folder), options.name):
            done += 1
            if error is not None:
                raw[call.name] += 1
                print(f"{call}: {type(error).__name__}: {str(error)[:160]}", flush=True)
    print(f"{done} calls, {sum(raw.values())} raw exceptions in {len(raw)} callables")
    return int(bool(raw))


if __name__ == "__main__":
    sys.exit(main())
