"""How much a request may ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from caldera.errors import ConfigError


@dataclass(frozen=True)
class Limits:
    """How much a request may ask for, and how many of them are computed together.

    - `batch_size`: samples that are computed at once.
    - `body`: bytes of a request.
    - `samples`: samples of a request.
    - `pixels`: of an image before it is brought to the size that the model takes.
    - `waiting`: samples that may wait for their turn; who comes then is told to try again.
    - `seconds`: a request has to have come, and its answer has to have been computed, in that time.
    - `connections`: clients at the same time.
    - `drain`: seconds for which a service that has been told to end still takes requests, so that
      clients that are connected learn of it.

    >>> from caldera import serve
    >>> serve.Limits(batch_size=0)
    Traceback (most recent call last):
    caldera.errors.ConfigError: serve.Limits: expected batch_size to be a whole number
    of at least 1, got 0
    """

    batch_size: int = 64
    body: int = 8 << 20
    samples: int = 4096
    pixels: int = 1 << 24
    waiting: int = 8192
    seconds: float = 30.0
    connections: int = 1024
    drain: float = 2.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value, whole = getattr(self, each.name), each.type == "int"
            least = 1 if whole else 0
            if (
                isinstance(value, bool)
                or not isinstance(value, int if whole else int | float)
                or not math.isfinite(value)
                or value < least
            ):
                kind = "a whole number" if whole else "a number"
                raise ConfigError.build(
                    "serve.Limits",
                    expected=f"{each.name} to be {kind} of at least {least}",
                    got=repr(value),
                )
