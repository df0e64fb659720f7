"""How far the host may run ahead of the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from caldera.memory import Device, Event

MOST_S = 0.5
"""How far, in seconds. Whoever asks for the time or ends a run means the device, not the queue."""


class LaunchThrottle:
    """Keeps the launches of steps within sight of what the device has done.

    Steps are launched faster than a device computes them, and that is as it should be: it always
    has something to do. But a time limit, Ctrl-C or a progress bar should not speak about a minute
    to come. So now and then the host waits for a step that it launched half a second ago; if the
    device is done with that, nobody waits at all.

    >>> from caldera.memory import device
    >>> from caldera.train.launch_throttle import LaunchThrottle
    >>> ahead = LaunchThrottle(device("loopback"))
    >>> for _ in range(100):
    ...     ahead.step_launched()
    """

    def __init__(self, device: Device, clock: Callable[[], float] = time.perf_counter) -> None:
        self._device = device
        self._clock = clock
        self._next = float("inf") if device.is_host else 0.0
        self._marks: deque[Event] = deque()

    def step_launched(self) -> None:
        """To be called after each launch."""
        now = self._clock()
        if now < self._next:
            return
        if len(self._marks) == 2:
            self._marks.popleft().settle()
            now = self._clock()
        self._marks.append(self._device.stream.record())
        self._next = now + MOST_S / 2
