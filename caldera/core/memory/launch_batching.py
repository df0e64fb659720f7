"""The same work again and again: launches that follow each other become one."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

Call = Callable[[], object]
Times = Callable[[int], Call]
"""What runs some work so many times."""
Launch = Callable[[Call], None]
MOST = 16
"""LaunchBatcher in one launch."""


class LaunchBatcher:
    """Holds repeats back until there are enough of them for a launch, or somebody wants to know.

    The first is launched at once, and then twice as many each time: a device that has nothing to do
    does not wait. Whoever else uses the stream has to `settle` first.

    >>> from caldera.core.memory.launch_batching import LaunchBatcher
    >>> seen = []
    >>> repeats = LaunchBatcher()
    >>> times = lambda count: lambda: seen.append(count)
    >>> for _ in range(5):
    ...     repeats.add(times, lambda call: call())
    >>> seen
    [1, 2]
    >>> repeats.settle(lambda call: call())
    >>> seen
    [1, 2, 2]
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # What was launched is not held on to: the work may be over for good.
        self._times: Times | None = None
        self._last: Callable[[], Times | None] = _nothing
        self._count = 0
        self._enough = 1

    def add(self, times: Times, launch: Launch) -> None:
        """Once more."""
        with self._lock:
            if times != self._last():
                self.settle(launch)
                self._last = _reference(times)
            self._times = times
            self._count += 1
            if self._count >= self._enough:
                self._run(launch)
                self._enough = min(2 * self._enough, MOST)

    def settle(self, launch: Launch) -> None:
        """Launch what was held back."""
        with self._lock:
            if self._count:
                self._run(launch)
            self._last, self._enough = _nothing, 1

    def _run(self, launch: Launch) -> None:
        times, count = self._times, self._count
        assert times is not None
        self._times, self._count = None, 0
        launch(times(count))


def _nothing() -> None:
    return None


def _reference(times: Times) -> Callable[[], Times | None]:
    bound: Any = times
    return weakref.WeakMethod(bound) if hasattr(times, "__self__") else weakref.ref(times)
