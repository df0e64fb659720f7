"""Seeds, and the numbers that tell random streams apart.

Every random filler and every random op takes the next stream number when it is made, so a program
that makes the same things in the same order gets the same numbers, on whatever device. Threads do
things in no order: one that sets a seed has streams of its own from there on, and so has whatever
is made inside `seeded`, as the parameters of a model are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from caldera.errors import ConfigError


class Streams:
    """A seed, and the next stream number under it.

    `state` is for those who keep the seed on a device as well (see `op.random_state`).

    >>> streams = Streams(5)
    >>> streams.seed, streams.take(), streams.take()
    (5, 0, 1)
    """

    def __init__(self, seed: int = 0, first: int = 0, state: Any = None) -> None:
        self.seed = seed
        self.state = state
        self._next = first
        self._lock = threading.Lock()

    def take(self) -> int:
        """A number that nothing else has had since the seed was set."""
        with self._lock:
            stream = self._next
            self._next += 1
        return stream

    def restart(self, seed: int) -> None:
        """Another seed, and the first stream again."""
        with self._lock:
            self.seed, self._next = seed, 0


_program = Streams()
_thread = threading.local()


def streams() -> Streams:
    """Those of this thread, if it has its own; else those of the program.

    >>> seed(5)
    >>> streams().seed
    5
    """
    own: Streams | None = getattr(_thread, "streams", None)
    return _program if own is None else own


def checked_seed(number: Any, where: str = "seed") -> int:
    """A number that can be a seed.

    >>> checked_seed(-1)
    Traceback (most recent call last):
    caldera.errors.ConfigError: seed: expected an int from 0 to 2**64 - 1, got -1
    """
    is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_int or not 0 <= number < 1 << 64:
        raise ConfigError.build(where, expected="an int from 0 to 2**64 - 1", got=repr(number))
    return int(number)


def seed(number: int) -> None:
    """Set the seed of all random numbers and start again at the first stream.

    The seed is an int from 0 to 2**64 - 1; a program that never sets it has seed 0. In the main
    thread it is that of the program; another thread that calls this has a seed of its own.

    >>> import caldera as cd
    >>> cd.seed(3)
    >>> first = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> second = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> cd.seed(3)
    >>> again = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> first == again, first == second
    (True, False)
    """
    chosen = checked_seed(number)
    is_main = threading.current_thread() is threading.main_thread()
    if streams() is _program and not is_main:
        _thread.streams = Streams(chosen)
    else:
        streams().restart(chosen)


@contextmanager
def seeded(number: int, first: int = 0, state: Any = None) -> Iterator[None]:
    """What this thread makes inside has a seed and streams of its own, counted from `first`.

    >>> seed(5)
    >>> with seeded(7):
    ...     global_seed(), next_stream()
    (7, 0)
    >>> global_seed()
    5
    """
    before = getattr(_thread, "streams", None)
    _thread.streams = Streams(checked_seed(number), first, state)
    try:
        yield
    finally:
        _thread.streams = before


def global_seed() -> int:
    """The seed that was set last; 0 if none was.

    >>> seed(5)
    >>> global_seed()
    5
    """
    return streams().seed


def next_stream() -> int:
    """A stream number that nothing else has had since the seed was set.

    >>> seed(5)
    >>> next_stream(), next_stream()
    (0, 1)
    """
    return streams().take()
