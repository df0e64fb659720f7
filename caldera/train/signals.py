"""Signals that ask a run to end: it does so between two steps, when everything is consistent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from caldera.train.callbacks import Callback

if TYPE_CHECKING:
    from caldera.train.run import Run

INTERRUPT = (signal.SIGINT,)
"""Ctrl-C."""
WARNINGS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""What a batch system sends before it ends a job."""


class StopOnSignal(Callback):
    """Ends the run after the step during which a signal came; a second Ctrl-C does not wait.

    Handlers are installed while the run goes on and put back afterwards, in the main thread only
    (elsewhere Python allows none). A signal that was ignored stays ignored. `received` is the last
    signal that came, or None.

    >>> from caldera.train.signals import INTERRUPT, StopOnSignal
    >>> StopOnSignal(INTERRUPT).received is None
    True
    """

    def __init__(self, signals: Sequence[signal.Signals] = (*INTERRUPT, *WARNINGS)) -> None:
        self.signals = tuple(signals)
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def run_begins(self, run: Run) -> None:
        self.received = None
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.signals:
            # None is a handler that Python did not install, and could not put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._receive)

    def batch_ends(self, run: Run) -> None:
        if self.received is not None:
            name = self.received.name
            run.stop("interrupted" if name == "SIGINT" else f"signal {name}")

    def epoch_ends(self, run: Run) -> None:
        self.batch_ends(run)

    def run_ends(self, run: Run) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = signal.Signals(number)
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
