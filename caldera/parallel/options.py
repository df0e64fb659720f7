"""Checks of what strategies are given."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from caldera.comm import Communicator
from caldera.errors import ConfigError
from caldera.parallel.consistency import check_same


def check_counts(where: str, **counts: object) -> None:
    """Whole numbers of 1 or more; None, where an option was left out.

    >>> check_counts("Example", stages=2, data=None)
    >>> check_counts("Example", stages="2")
    Traceback (most recent call last):
    caldera.errors.ConfigError: Example: expected stages >= 1, a whole number, got '2'
    """
    for name, count in counts.items():
        is_whole = (
            isinstance(count, int | np.integer) and not isinstance(count, bool) and count >= 1
        )
        if count is not None and not is_whole:
            raise ConfigError.build(where, expected=f"{name} >= 1, a whole number", got=repr(count))


def check_choice(where: str, name: str, given: object, choices: Iterable[object]) -> None:
    """One of these.

    >>> check_choice("Example", "start", "old", ["new", "given"])
    Traceback (most recent call last):
    caldera.errors.ConfigError: Example: expected start= 'new' or 'given', got 'old'
    """
    known = list(choices)
    if given not in known:
        expected = f"{name}= " + " or ".join(map(repr, known))
        raise ConfigError.build(where, expected=expected, got=repr(given))


def check_same_options(communicator: Communicator, strategy: object, **options: object) -> None:
    """Raise on all ranks unless all of them make the same strategy.

    The first thing a strategy asks of its communicator: what it is made of takes messages.

    >>> from caldera.comm import SingleProcess
    >>> from caldera.parallel.options import check_same_options
    >>> check_same_options(SingleProcess(), "any", stages=2)
    """
    name = type(strategy).__name__
    if not isinstance(communicator, Communicator):
        raise ConfigError.build(
            f"parallel.{name}",
            expected="a communicator of caldera.comm",
            got=repr(communicator),
            hint="comm.world() has all ranks, and is taken if none is given",
        )
    written = [f"{option}={value}" for option, value in options.items()]
    check_same(communicator, f"parallel.{name}", [name, *written])
