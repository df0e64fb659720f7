"""The same work again and again: launches that follow each other become one."""

from __future__ import annotations

import threading
from collections.abc import Callable

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

    >>> from caldera.memory.launch_batching import LaunchBatcher
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
        self._times: Times | None = None
        self._count = 0
        self._enough = 1

    def add(self, times: Times, launch: Launch) -> None:
        """Once more."""
        with self._lock:
            if times != self._times:
                self.settle(launch)
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
            self._times, self._enough = None, 1

    def _run(self, launch: Launch) -> None:
        assert self._times is not None
        count, self._count = self._count, 0
        launch(self._times(count))
