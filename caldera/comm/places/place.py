"""The protocol between those who need workers and the place where these run."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caldera.comm.listener import LOOPBACK

_POLL_S = 0.002


class Place(ABC):
    """Starts workers, reports those that have ended, and stops them.

    - `name`: of the place, for messages.
    - `own_processes`: True if each worker is a process of its own, which may exit.
    - `distributes`: True if the place wants a worker for each piece of work, which it places.
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
        """Return an argument for `start` that stands for a large value."""
        return value

    def how(self, number: int, seconds: float) -> str:
        """Return how a worker has ended, if that is known within `seconds`; else nothing."""
        until = time.monotonic() + seconds
        while number not in (lost := self.lost()) and time.monotonic() < until:
            time.sleep(_POLL_S)
        return lost.get(number, "")
