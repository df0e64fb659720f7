"""Progress of a run: one live line in a terminal or a notebook, plain lines elsewhere.

Between two displays, each step only reads the clock, so that the cost stays far below the cost of a
step, and the loss stays on the device. When a display is due, the values are requested, and shown
once they have arrived: the run never waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from caldera.base.arguments import shown
from caldera.base.registry import optional_import
from caldera.draw.live_line import NotebookLine, live_line, print_line
from caldera.errors import ConfigError
from caldera.train.callbacks import Callback
from caldera.train.tracking.history import shown_number

if TYPE_CHECKING:
    from caldera.train.metric_totals import TotalsReading
    from caldera.train.run import Run

LIVE_EVERY_S = 0.4
LINE_EVERY_S = 10.0
_WIDEST_BAR = 30
_NARROWEST_BAR = 6


class Progress(Callback):
    """Shows the progress of a run.

    `verbose` is 0 (silent), 1 (a live line in a terminal or a notebook; elsewhere a line an epoch,
    and one every ten seconds within a longer one) or 2 (only a line an epoch). `console` is a
    `rich.console.Console`, by default one for the standard output.

    >>> from caldera.train.progress import Progress
    >>> Progress(verbose=3)
    Traceback (most recent call last):
    caldera.errors.ConfigError: verbose: expected 0, 1 or 2, got 3
    """

    def __init__(
        self,
        verbose: int | None = None,
        *,
        console: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if isinstance(verbose, np.ndarray) or verbose not in (None, 0, 1, 2):
            raise ConfigError.build("verbose", expected="0, 1 or 2", got=shown(verbose))
        self.verbose = 1 if verbose is None else int(verbose)
        self._console = console
        self._clock = clock
        self._live: Any = None
        self._next = float("inf")
        self._batches: int | None = None
        self._pace = _Pace(0.0, 0, 0)
        self._is_first = True
        self._reading: TotalsReading | None = None

    # --- moments

    def run_begins(self, run: Run) -> None:
        if not self.verbose:
            return
        if self._console is None:
            # Under mpiexec each rank has a terminal, but its lines may be forwarded to a file.
            plain = False if run.communicator.size > 1 else None
            made = optional_import("rich.console", "rich", "progress").Console
            self._console = made(force_terminal=plain)
        if self.verbose == 1:
            self._live = live_line(self._console)

    def epoch_begins(self, run: Run) -> None:
        if not self.verbose:
            return
        now = self._clock()
        self._reading = None
        self._batches = run.batches
        self._pace = _Pace(now, run.batch, run.loader.position)
        if self._live is not None:
            self._draw(run, now, instead="preparing" if self._is_first else "")
        self._next = now if self._is_first else self._after(now)

    def batch_ends(self, run: Run) -> None:
        now = self._clock()
        if self._reading is not None:
            self._show_if_there(run, now)
        if now < self._next and run.batch != self._batches:
            return
        if self._is_first:
            # The first step makes plans and measures kernels, so its pace is not typical.
            self._is_first = False
            self._pace = _Pace(now, run.batch, run.loader.position)
            self._next = self._after(now)
        elif now >= self._next:
            self._next = float("inf")
            self._reading = run.steps.training_totals.begin_read()
            self._show_if_there(run, now)
        if run.batch == self._batches:
            self._pace.samples_a_second(now, run.loader.position)
            if self._live is not None and run.validation is not None:
                self._draw(run, now, instead="validating")

    def epoch_ends(self, run: Run) -> None:
        if not self.verbose:
            return
        row = run.history.rows[-1]
        seconds = row.pop("seconds", None)
        epoch = row.pop("epoch")
        costs = {} if seconds is None else {"time": f"{seconds:.1f} s"}
        rate = self._pace.samples_a_second(self._clock(), None)
        if rate:
            costs["speed"] = f"{rate:,.0f} samples/s"
        values = {"epoch": f"{epoch + 1}/{run.epochs}", **_shown_values(row)}
        if isinstance(self._live, NotebookLine):
            self._live.add(values | costs)
        else:
            said = [f"{name} {value}" for name, value in values.items()]
            self._print("  ".join([*said, *costs.values()]))

    def run_ends(self, run: Run) -> None:
        self._next = float("inf")
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self.verbose and run.stopped:
            self._print(f"stopped: {run.stopped}")

    # --- showing

    def _after(self, now: float) -> float:
        """Return the time of the next output."""
        if self._live is not None:
            return now + LIVE_EVERY_S
        return now + LINE_EVERY_S if self.verbose == 1 else float("inf")

    def _show_if_there(self, run: Run, now: float) -> None:
        """Show the requested values if they have arrived."""
        if self._reading is None or not self._reading.done():
            return
        values = _values(self._reading.results())
        self._reading = None
        if self._live is not None:
            self._draw(run, now, values)
        else:
            figures = values + self._figures(run, now)
            self._print("  ".join([_where(run), self._count(run), *figures]))
        # Counted from the end: where drawing is slow it must not be all that is done.
        self._next = self._after(self._clock())

    def _print(self, line: str) -> None:
        if self._live is not None:
            # Printing would redraw the outdated live line below.
            self._live.update("", refresh=True)
        print_line(self._console, line)

    def _draw(
        self, run: Run, now: float, values: list[str] | None = None, instead: str = ""
    ) -> None:
        """The live line. It costs half a millisecond: cheap enough for a few times a second."""
        text = optional_import("rich.text", "rich", "progress").Text
        figures = instead or "  ".join([*(values or []), *self._figures(run, now)])
        head, tail = f"{_where(run)} ", f" {self._count(run)}  {figures}"
        line = text(no_wrap=True, overflow="ellipsis")
        line.append(head, style="bold")
        room = self._console.width - len(head) - len(tail) - 1
        width = min(_WIDEST_BAR, room)
        if self._batches and width >= _NARROWEST_BAR:
            done = round(width * run.batch / self._batches)
            has_lines = self._console.encoding.startswith("utf")
            line.append(("\u2501" if has_lines else "=") * done, style="cyan")
            line.append(("\u2501" if has_lines else "-") * (width - done), style="bright_black")
        line.append(tail)
        self._live.update(line, refresh=True)

    def _count(self, run: Run) -> str:
        if self._batches is None:
            return f"{run.batch}"
        return f"{run.batch:>{len(str(self._batches))}}/{self._batches}"

    def _figures(self, run: Run, now: float) -> list[str]:
        if run.batch == 0:
            return []
        parts = []
        rate = self._pace.samples_a_second(now, run.loader.position)
        if rate:
            parts.append(f"{rate:,.0f} samples/s")
        left = self._pace.seconds_left(now, run, self._batches)
        if left is not None:
            parts.append(f"{_duration(left)} left")
        return parts


class _Pace:
    """Speed of this epoch since its start, or since the run was resumed."""

    def __init__(self, start: float, batch: int, position: int) -> None:
        self._start = start
        self._batch = batch
        self._position = position
        self._samples_a_second = 0.0

    def samples_a_second(self, now: float, position: int | None) -> float:
        """Return the mean speed up to `position`; without one, the last result."""
        if position is not None and now > self._start:
            self._samples_a_second = (position - self._position) / (now - self._start)
        return self._samples_a_second

    def seconds_left(self, now: float, run: Run, batches: int | None) -> float | None:
        """Estimate the time to the end of the run from this epoch; None if not possible."""
        done = run.batch - self._batch
        if batches is None or done <= 0:
            return None
        to_do = batches - run.batch + (run.epochs - run.epoch - 1) * batches
        return (now - self._start) / done * to_do


def _where(run: Run) -> str:
    return f"epoch {run.epoch + 1}/{run.epochs}"


def _values(results: dict[str, Any]) -> list[str]:
    """Return the results that are single numbers, with their names."""
    return [f"{name} {value}" for name, value in _shown_values(results).items()]


def _shown_values(results: dict[str, Any]) -> dict[str, str]:
    return {
        name: shown_number(value)
        for name, value in results.items()
        if isinstance(value, int | float)
    }


def _duration(seconds: float) -> str:
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"
