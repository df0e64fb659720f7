"""`Scheduler`: assigns trials to workers and records their results.

It does not depend on where trials run. All runners (this thread, threads, processes, MPI ranks)
have the same loop:

    while (task := scheduler.next()) is not None:
        scheduler.finish(job.run(task, scheduler.report))

Calls must not overlap. `next()` returns None if no trial is available now. The search has finished
when `is_over` is true; otherwise a trial becomes available when a running one finishes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from caldera.base.arguments import require
from caldera.search.method import Method, TrialProposal, as_proposal
from caldera.search.objective import MissingMetric
from caldera.search.record import apply, now
from caldera.search.study import Study
from caldera.search.trial import FAILED, RUNNING, WAITING, Row, Trial, TrialResult, TrialTask

_FIRST_FAILURES = 20
"""Number of failed trials, without any other outcome, after which the search stops."""


class StudyCallback:
    """Observer of a running search: override hooks, pass to `search.run(callbacks=[...])`.

    >>> from caldera import search
    >>> class Printer(search.StudyCallback):
    ...     def trial_ends(self, study, trial):
    ...         print(trial.parameters, trial.value)
    >>> space = {"x": search.integer(1, 2)}
    >>> _ = search.run(lambda x: x, space, method="grid", callbacks=[Printer()], verbose=0)
    {'x': 1} 1.0
    {'x': 2} 2.0
    """

    def study_begins(self, study: Study) -> None:
        """Run before the first trial."""

    def trial_begins(self, study: Study, trial: Trial) -> None:
        """Run when a trial is assigned to a worker."""

    def trial_reports(self, study: Study, trial: Trial) -> None:
        """Run after a step of a trial; `trial.curve[-1]` has its results."""

    def trial_ends(self, study: Study, trial: Trial) -> None:
        """Run after a trial is done, was stopped or has failed."""

    def study_ends(self, study: Study) -> None:
        """Run after the last trial, also if the search ends by Ctrl-C or an error."""


class Scheduler:
    """Assigns the trials of a study to workers, and records their results."""

    def __init__(
        self,
        study: Study,
        method: Method,
        stoppers: Sequence[Method] = (),
        seed: int = 0,
        trials: int | None = None,
        seconds: float | None = None,
        callbacks: Sequence[StudyCallback] = (),
    ) -> None:
        self.study, self.method, self.seed = study, method, seed
        self.stoppers = [method, *stoppers]
        self.budget, self.seconds = trials, seconds
        self.callbacks = list(callbacks)
        self.is_cancelled = False
        """Set it to hand out nothing more."""
        self._started = time.monotonic()
        self._told = sum(trial.told is not None for trial in study.trials)
        self._asked_after = 0
        self._proposal: TrialProposal | None = None
        self._is_shared = study.record.database is not None
        self._queue: list[Trial] = []
        self._queue_waiting()
        assert study.space is not None
        self._epochs = epochs = None if study.job is None else study.job.epochs
        best = study.best_or_none()
        self._best = None if best is None else list(study.losses(best))
        for each in self.stoppers:
            each.begin(study.space, study.objective, seed, study.trials, trials, epochs)
            if study.trials:
                each.restore()

    # --- for runners

    def next(self) -> TrialTask | None:
        """Return the next trial to run, if there is one now."""
        with self._turn():
            trial = self._queue.pop(0) if self._queue and not self.is_cancelled else self._create()
            if trial is None:
                return None
            trial.state = RUNNING
        trial.curve = []
        self.call_callbacks("trial_begins", trial)
        return trial.task(self._best)

    def prepare(self) -> None:
        """Prepare the next trial while all workers are busy."""
        # In a shared study another program might propose the same trial.
        if self.method.asks_ahead and not self._queue and not self._is_shared:
            self._next_proposal()

    def report(self, number: int, row: Row) -> str:
        """Record a report; return the reason to stop the trial, or an empty string."""
        trial = self.study.trials[number]
        trial.curve.append(row)
        loss = self.study.objective.loss(row)
        if not math.isnan(loss):
            self.study.record.report(trial, self.study.objective.measure(row))
        self.call_callbacks("trial_reports", trial)
        step = len(trial.curve)
        if math.isnan(loss) or step == (trial.epochs or self._epochs):
            # A trial after its last step is done, even if a method would stop it.
            return ""
        for each in self.stoppers:
            if each.stop(trial, step, loss):
                return f"stopped by {each!r} after step {step}"
        return ""

    def finish(self, outcome: TrialResult) -> Trial:
        """Record the result of a finished trial, and return the trial."""
        trial = self.study.trials[outcome.number]
        with self._turn():
            if trial.is_over:
                # The trial was restarted because its worker seemed dead; both have finished it.
                return trial
            outcome = self.study.record.with_kept_conditions(outcome)
            apply(trial, outcome, self._told, now())
            self.study.record.finish(trial, outcome)
        self._notify_methods(trial)
        self.call_callbacks("trial_ends", trial)
        self._check(trial, outcome)
        return trial

    def _notify_methods(self, trial: Trial) -> None:
        """Notify the methods of a trial that is over, here or in another program."""
        self._told += 1
        losses = list(self.study.losses(trial))
        if math.isfinite(losses[0]) and (self._best is None or losses < self._best):
            self._best = losses
        for each in self.stoppers:
            each.tell(trial)

    def again(self, number: int) -> None:
        """Queue the trial of a lost worker again."""
        trial = self.study.trials[number]
        if not trial.is_over:
            trial.state = WAITING
            self._queue.append(trial)

    @property
    def running(self) -> list[Trial]:
        """The trials that are with workers."""
        return self.study.of_state(RUNNING)

    @property
    def is_over(self) -> bool:
        """True if no trial is running and none will be proposed."""
        return not self.running and not self._queue and self._next_proposal() is None

    # --- inside

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Exclude other programs of a shared study, and read their changes first."""
        with self.study.record.turn():
            if self._is_shared:
                for trial in self.study.catch_up():
                    self._notify_methods(trial)
                    self.call_callbacks("trial_ends", trial)
                self._queue_waiting()
                self._proposal = None
            yield

    def _queue_waiting(self) -> None:
        """Queue the trials that were running when their program died."""
        known = {trial.number for trial in self._queue}
        for trial in self.study.of_state(WAITING):
            if trial.number not in known:
                self.study.record.claim(trial.number)
                self._queue.append(trial)

    def _create(self) -> Trial | None:
        """Return the next trial of the method."""
        proposal = self._next_proposal()
        if proposal is None:
            return None
        self._proposal = None
        assert self.study.space is not None
        number = len(self.study.trials)
        trial = Trial(
            number,
            proposal.point,
            self.study.space.decoded(proposal.point),
            self._seed_of(proposal, number),
            WAITING,
            parent=proposal.parent,
            epochs=proposal.epochs,
            keep=proposal.keep,
            note=proposal.note,
            after=self._asked_after,
            started=now(),
        )
        self.study.add(trial)
        return trial

    def _next_proposal(self) -> TrialProposal | None:
        """Return the method's next proposal, cached until a trial is created from it."""
        if self._proposal is None:
            self._asked_after = self._told
            self._proposal = self._ask()
        return self._proposal

    def _ask(self) -> TrialProposal | None:
        number = len(self.study.trials)
        late = self.seconds is not None and time.monotonic() - self._started >= self.seconds
        if self.is_cancelled or late or (self.budget is not None and number >= self.budget):
            return None
        asked = self.method.ask(number)
        return None if asked is None else as_proposal(asked)

    def _seed_of(self, proposal: TrialProposal, number: int) -> int:
        """Return the seed of a trial, which is its parent's seed if it continues one."""
        if proposal.parent is not None:
            return self.study.trials[proposal.parent].seed
        return trial_seed(self.seed, number)

    def call_callbacks(self, moment: str, *trial: Trial) -> None:
        """Call the method `moment` of all callbacks, with the study and the trial, if given."""
        for callback in self.callbacks:
            getattr(callback, moment)(self.study, *trial)

    def _check(self, trial: Trial, outcome: TrialResult) -> None:
        """End the search if all trials fail in the same way from the beginning."""
        if any(each.is_over and each.state != FAILED for each in self.study.trials):
            return
        over = [each for each in self.study.trials if each.is_over]
        if outcome.misconfigured:
            raise MissingMetric(trial.reason.partition(": ")[2])
        require(
            len(over) < _FIRST_FAILURES,
            "search",
            f"a trial among the first {len(over)} that does not fail",
            f"only failed ones, the last by {trial.reason}",
        )


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial: the same for the same search and number.

    >>> trial_seed(0, 3) == trial_seed(0, 3) != trial_seed(0, 4)
    True
    """
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
