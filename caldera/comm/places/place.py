"""Interface between users of workers and the system that runs them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caldera.comm.listener import LOOPBACK

_POLL_S = 0.002


class Place(ABC):
    """Starts workers, reports ended workers, and stops workers.

    - `name`: name of the place, for messages.
    - `own_processes`: True if each worker is a separate process, which may exit.
    - `distributes`: True if the place schedules one worker per piece of work.
    """

    name: str
    own_processes = True
    distributes = False

    @abstractmethod
    def start(
        self, count: int, function: Callable[..., object], arguments: Sequence[Any]
    ) -> list[int]:
        """Start workers that call `function(number, *arguments)`; return their numbers."""

    @abstractmethod
    def lost(self) -> Mapping[int, str]:
        """Return how workers have ended, by number: "was killed by SIGKILL"."""

    @abstractmethod
    def stop(self, number: int | None = None, seconds: float = 0.0) -> None:
        """Stop one worker, or the place: workers that have not ended after `seconds` are killed."""

    def capacity(self) -> int | None:
        """Return the number of workers that can run at the same time; None without a limit."""
        return None

    def host(self) -> str:
        """Return the address at which workers reach this process: loopback on one machine."""
        return LOOPBACK

    def share(self, value: Any) -> Any:
        """Return a reference to a large value, to be passed as an argument of `start`."""
        return value

    def how(self, number: int, seconds: float) -> str:
        """Return how a worker has ended, or an empty text if that is unknown after `seconds`."""
        until = time.monotonic() + seconds
        while number not in (lost := self.lost()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        return lost.get(number, "")
