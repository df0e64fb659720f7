"""What a user sees of a run: in a terminal, in a log, or not at all."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from caldera.errors import ConfigError
from caldera.train.progress import LINE_EVERY_S, LIVE_EVERY_S, Progress
from caldera.train.tracking.history import History
from tests.unit.train.small import classifier, points


class MetricTotals:
    """Counts how often somebody asks for the results, which are there `late` questions later."""

    def __init__(self, late: int = 0) -> None:
        self.asked = 0
        self.late = late
        self.missing = 0

    def begin_read(self) -> MetricTotals:
        self.asked += 1
        self.missing = self.late
        return self

    def done(self) -> bool:
        self.missing -= 1
        return self.missing < 0

    def results(self) -> dict[str, Any]:
        assert self.missing < 0, "somebody waits"
        return {"loss": 0.25, "accuracy": 0.9, "confusion": [[1, 2], [3, 4]]}


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rehearsal:
    """A run of `epochs` times `batches` steps that each take `step_s` by a clock of their own."""

    def __init__(
        self, *, epochs: int = 2, batches: int | None = 100, step_s: float = 0.001, late: int = 0
    ) -> None:
        self.clock = Clock()
        self.totals = MetricTotals(late)
        self.steps = self
        self.training_totals = self.totals
        self.loader = self
        self.position = 0
        self.history = History()
        self.validation = object()
        self.stopped = ""
        self.epoch = self.batch = self.step = 0
        self.epochs = epochs
        self.batches = batches
        self._step_s = step_s

    def go(self, progress: Progress) -> None:
        run: Any = self
        progress.run_begins(run)
        while self.epoch < self.epochs:
            self.position = 0
            progress.epoch_begins(run)
            for _ in range(self.batches or 100):
                self.clock.now += self._step_s
                self.position += 10
                self.batch += 1
                self.step += 1
                progress.batch_ends(run)
            self.history.add(self.epoch, {"loss": 0.25, "val_loss": 0.5, "seconds": 1.5})
            self.epoch += 1
            self.batch = 0
            progress.epoch_ends(run)
        progress.run_ends(run)


def shown(
    rehearsal: Rehearsal, verbose: int | None, *, terminal: bool, width: int = 100
) -> list[str]:
    """The lines that come out, without the codes that move the cursor."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=width, color_system=None)
    rehearsal.go(Progress(verbose, console=console, clock=rehearsal.clock))
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]


def test_silence_is_complete() -> None:
    rehearsal = Rehearsal()
    assert shown(rehearsal, 0, terminal=True) == []
    assert rehearsal.totals.asked == 0


@pytest.mark.parametrize("terminal", [True, False])
def test_one_line_an_epoch_without_a_terminal_or_if_asked(terminal: bool) -> None:
    lines = shown(Rehearsal(epochs=3), 2 if terminal else 1, terminal=terminal)
    assert len(lines) == 3
    assert lines[1].startswith("epoch 2/3  loss 0.2500  val_loss 0.5000  1.5 s  ")
    assert lines[1].endswith("10,000 samples/s")


def test_long_epochs_have_a_line_every_ten_seconds_in_a_log() -> None:
    lines = shown(Rehearsal(epochs=1, batches=1000, step_s=0.0351), 1, terminal=False)
    assert len(lines) == 4
    assert lines[0].startswith("epoch 1/1   286/1000  loss 0.2500  accuracy 0.9000  285 samples/s")
    assert lines[0].endswith("25 s left")
    assert "confusion" not in lines[0]


def test_lines_of_a_log_are_never_wrapped() -> None:
    lines = shown(Rehearsal(epochs=1), 1, terminal=False, width=20)
    assert len(lines) == 1


def test_verbose_2_says_nothing_within_an_epoch() -> None:
    rehearsal = Rehearsal(epochs=1, batches=1000, step_s=0.1)
    assert len(shown(rehearsal, 2, terminal=True)) == 1
    assert rehearsal.totals.asked == 0


def test_a_terminal_shows_a_live_line() -> None:
    lines = shown(Rehearsal(epochs=1, batches=1000), 1, terminal=True)
    assert "preparing" in lines[0]
    live = next(line for line in lines if "loss" in line)
    assert re.match(r"epoch 1/1 \u2501+ +\d+/1000  loss 0.2500  accuracy 0.9000", live)
    assert "10,000 samples/s" in live
    assert any("1000/1000  validating" in line for line in lines)
    assert lines[-1].startswith("epoch 1/1  loss 0.2500  val_loss 0.5000")


def test_the_device_is_asked_a_few_times_a_second_at_most() -> None:
    rehearsal = Rehearsal(epochs=2, batches=5000)
    shown(rehearsal, 1, terminal=True)
    seconds = 2 * 5000 * 0.001
    assert seconds < rehearsal.totals.asked <= seconds / LIVE_EVERY_S + 2
    assert LINE_EVERY_S == 10


def test_values_are_shown_when_they_have_arrived() -> None:
    rehearsal = Rehearsal(epochs=1, batches=1000, step_s=0.0351, late=3)
    lines = shown(rehearsal, 1, terminal=False)
    # As without the delay, but for the number of the step.
    assert len(lines) == 4
    assert lines[0].startswith("epoch 1/1   289/1000  loss 0.2500  accuracy 0.9000")
    assert rehearsal.totals.asked == 3


def test_a_narrow_terminal_gets_one_line_without_a_bar() -> None:
    lines = shown(Rehearsal(epochs=1, batches=1000), 1, terminal=True, width=30)
    assert all(len(line) <= 30 for line in lines[:-1])
    assert not any("\u2501" in line for line in lines if "loss" in line)


def test_a_stream_without_length_is_shown_without_a_bar() -> None:
    lines = shown(Rehearsal(epochs=1, batches=None, step_s=0.2), 1, terminal=True)
    assert any(line.startswith("epoch 1/1  ") and "loss" in line for line in lines)
    assert not any("left" in line for line in lines)


def test_the_time_left_counts_the_epochs_to_come() -> None:
    lines = shown(Rehearsal(epochs=3, batches=1000, step_s=0.1), 1, terminal=False)
    # After 101 of 3000 steps of a tenth of a second.
    assert lines[0].endswith("4:50 left")


def test_a_run_that_was_stopped_says_why() -> None:
    rehearsal = Rehearsal(epochs=1)
    rehearsal.stopped = "the time limit of 5 s"
    assert shown(rehearsal, 1, terminal=False)[-1] == "stopped: the time limit of 5 s"


def test_another_verbosity_is_refused() -> None:
    with pytest.raises(ConfigError, match="verbose: expected 0, 1 or 2"):
        Progress(3)


def test_fit_prints_plain_lines_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    classifier().fit(points(), validation=points(10), epochs=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert re.match(r"epoch 2/2  loss \S+  accuracy \S+  val_loss \S+  val_accuracy \S+", lines[1])
