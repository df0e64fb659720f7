"""Options of strategies that count something."""

from __future__ import annotations

import numpy as np

from caldera.errors import ConfigError


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
