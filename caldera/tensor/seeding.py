"""The seed of the program, and the numbers that tell its random streams apart.

Every random filler and every random op takes the next stream number when it is made, so a program
that makes the same things in the same order gets the same numbers, on whatever device.
"""

from __future__ import annotations

from threading import Lock

import numpy as np

from caldera.errors import ConfigError

_lock = Lock()
_seed = 0
_next_stream = 0


def seed(number: int) -> None:
    """Set the seed of all random numbers and start again at the first stream.

    The seed is an int from 0 to 2**64 - 1; a program that never sets it has seed 0.

    >>> import caldera as cd
    >>> cd.seed(3)
    >>> first = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> second = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> cd.seed(3)
    >>> again = cd.Tensor((4,), fill=cd.uniform()).tolist()
    >>> first == again, first == second
    (True, False)
    """
    global _seed, _next_stream
    is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_int or not 0 <= number < 1 << 64:
        raise ConfigError.build("seed", expected="an int from 0 to 2**64 - 1", got=repr(number))
    with _lock:
        _seed = int(number)
        _next_stream = 0


def global_seed() -> int:
    """The seed that was set last; 0 if none was.

    >>> seed(5)
    >>> global_seed()
    5
    """
    return _seed


def next_stream() -> int:
    """A stream number that nothing else has had since the seed was set.

    >>> seed(5)
    >>> next_stream(), next_stream()
    (0, 1)
    """
    global _next_stream
    with _lock:
        stream = _next_stream
        _next_stream += 1
    return stream
