"""Callbacks of a study: the live table in a terminal, and event files for TensorBoard."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caldera.base.arguments import shown
from caldera.base.formatting import shortened
from caldera.base.registry import optional_import
from caldera.comm import world
from caldera.draw.live_line import live_line, print_line
from caldera.errors import ConfigError
from caldera.io.events import EventFile
from caldera.search.charts import cell_text
from caldera.search.scheduler import StudyCallback
from caldera.search.trial import DONE, FAILED, RUNNING, STOPPED, Trial
from caldera.train.progress import _duration

if TYPE_CHECKING:
    from caldera.search.study import Study


EVERY_S = 0.25
_BAR = 30
_MOST_ROWS = 8


class LiveTable(StudyCallback):
    """Live table of a search: best value, running and stopped trials, remaining time.

    `verbose` is 0 (silent), 1 (a live table in a terminal or a notebook, no output elsewhere; the
    default) or 2 (a line for each finished trial). `trials` is the planned number of trials, if it
    is known. `console` is a `rich.console.Console`.

    >>> LiveTable(verbose=3)
    Traceback (most recent call last):
    caldera.errors.ConfigError: verbose: expected 0, 1 or 2, got 3
    """

    def __init__(
        self,
        verbose: int | None = None,
        *,
        trials: int | None = None,
        console: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if verbose not in (None, 0, 1, 2):
            raise ConfigError.build("verbose", expected="0, 1 or 2", got=shown(verbose))
        self.verbose = 1 if verbose is None else int(verbose)
        self._console, self._clock, self._planned = console, clock, trials
        self._live: Any = None
        self._next = 0.0

    # --- moments

    def study_begins(self, study: Study) -> None:
        self._started, self._over_before = self._clock(), _over(study)
        if not self.verbose:
            return
        if self._console is None:
            # mpiexec provides each rank with a terminal but forwards its lines to any destination.
            plain = False if world().size > 1 else None
            made = optional_import("rich.console", "rich", "progress").Console
            self._console = made(force_terminal=plain)
        if self.verbose == 1:
            self._live = live_line(self._console)

    def trial_begins(self, study: Study, trial: Trial) -> None:
        self._draw(study)

    trial_reports = trial_begins

    def trial_ends(self, study: Study, trial: Trial) -> None:
        if self.verbose == 2:
            mark = "  best so far" if study.best_or_none() is trial else ""
            print_line(self._console, f"{_one(study, trial)}{mark}")
        self._draw(study)

    def study_ends(self, study: Study) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self.verbose == 2 or live is not None:
            print_line(self._console, f"{self._counts(study)}  {_best_text(study)}")

    # --- showing

    def _draw(self, study: Study) -> None:
        now = self._clock()
        if self._live is None or now < self._next:
            return
        lines = [self._headline(study, now), *self._running(study)]
        self._live.update(_text("\n").join(lines), refresh=True)
        # Counted from the end: where drawing is slow it must not be all that is done.
        self._next = self._clock() + EVERY_S

    def _headline(self, study: Study, now: float) -> Any:
        over = _over(study)
        line = _text("")
        line.append("search ", style="bold")
        if self._planned:
            done = round(_BAR * min(over / self._planned, 1.0))
            line.append("\u2501" * done, style="cyan")
            line.append("\u2501" * (_BAR - done), style="bright_black")
            line.append(" ")
        left = self._seconds_left(study, over, now)
        figures = [self._counts(study), _best_text(study)]
        if left is not None:
            figures.append(f"{_duration(left)} left")
        line.append("  ".join(figures))
        return line

    def _counts(self, study: Study) -> str:
        counts = study.counts()
        more = [f"{counts[state]} {state}" for state in (RUNNING, STOPPED, FAILED) if counts[state]]
        of = f"/{self._planned}" if self._planned else ""
        return f"{_over(study)}{of} trials" + (f" ({', '.join(more)})" if more else "")

    def _seconds_left(self, study: Study, over: int, now: float) -> float | None:
        """Estimate the remaining time from the finished trials; None if there are none."""
        done = over - self._over_before
        if self._planned is None or done <= 0:
            return None
        return (now - self._started) / done * max(self._planned - over, 0)

    def _running(self, study: Study) -> Iterator[Any]:
        """Yield a line for each trial that runs: its last value, its parameters."""
        running = study.of_state(RUNNING)
        for trial in running[:_MOST_ROWS]:
            yield _text(f"  {_one(study, trial)}", style="dim")
        if len(running) > _MOST_ROWS:
            yield _text(f"  and {len(running) - _MOST_ROWS} more", style="dim")


def _over(study: Study) -> int:
    return len(study.of_state(DONE, STOPPED, FAILED))


def _text(content: str, **how: Any) -> Any:
    """Return a line for a live table, cut where the terminal ends."""
    made = optional_import("rich.text", "rich", "progress").Text
    return made(content, no_wrap=True, overflow="ellipsis", **how)


def _one(study: Study, trial: Trial) -> str:
    """Return a trial in a line."""
    parts = [f"trial {trial.number}", trial.state]
    if trial.values is not None:
        names = zip(study.objective.names(), trial.values, strict=True)
        parts += [f"{name} {value:.5g}" for name, value in names]
    elif trial.state == RUNNING and trial.curve:
        row = trial.curve[-1]
        name = next((each for each in study.objective.columns() if each in row), next(iter(row)))
        parts.append(f"step {len(trial.curve)}: {name} {row[name]:.5g}")
    if trial.reason and trial.state == FAILED:
        parts.append(shortened(trial.reason, 80))
    parts.append(", ".join(f"{name} {cell_text(value)}" for name, value in trial.point.items()))
    return "  ".join(parts)


def _best_text(study: Study) -> str:
    best = study.best_or_none()
    if best is None or best.values is None:
        return "no trial is done yet"
    return f"best {study.objective.names()[0]} {best.values[0]:.5g} in trial {best.number}"


class TrialTensorBoard(StudyCallback):
    """Writer of TensorBoard event files, one folder for each finished trial.

    The files contain the parameters, the metrics of each step and the final values. The HParams
    page of `tensorboard --logdir FOLDER` compares the trials.

    Neither TensorBoard nor TensorFlow is required to write event files.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from caldera import search
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = search.run(lambda x: x * x, {"x": search.integer(0, 1)}, method="grid",
    ...                    callbacks=[search.TensorBoard(folder)], verbose=0)
    ...     sorted(each.name for each in Path(folder).iterdir())
    ['trial-0', 'trial-1']
    """

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)

    def trial_ends(self, study: Study, trial: Trial) -> None:
        with EventFile(self.folder / f"trial-{trial.number}") as events:
            settings = {
                name: "none" if value is None else value for name, value in trial.point.items()
            }
            events.hyper_parameters({**settings, "state": trial.state})
            for step, row in enumerate(trial.curve, 1):
                events.scalars(step, {name: v for name, v in row.items() if math.isfinite(v)})
            if trial.values is not None:
                named = zip(study.objective.names(), trial.values, strict=True)
                found = {f"objective/{name}": v for name, v in named if math.isfinite(v)}
                events.scalars(max(len(trial.curve), 1), found)
            events.ended(well=trial.state != FAILED)
