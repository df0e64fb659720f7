"""Self-tuning of the input pipeline: number of workers and of batches ahead.

The objective is the time from one batch to the next. The training thread makes the first batches;
their elapsed and CPU time, compared with the time of a step, estimate the useful number of workers.
The search starts there after a few batches, tries more and fewer, keeps settings that are
measurably better, and starts again when the timing changes. The contents of batches do not depend
on it, so a run has the same results for every setting.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import TypeAlias

MOST_WORKERS = 32
_SPARE = 2
"""Finished batches that may wait in addition to the batches in progress."""
_HAND_OVER_S = 5e-5
"""Seconds to receive a batch from another thread."""
_WORTH_IT_S = 2.5e-4
"""A batch that is made in less time than this is not worth another thread."""
_BETTER = 0.95
"""Required ratio of batch times for a change that costs threads, memory or a new plan."""
_AS_GOOD = 1.02
"""Allowed ratio of batch times for a change that saves threads."""
_STARVED = 0.03
"""The part of the time in which training waits that is worth a search."""
_IDLE = 0.15
_CROWDED = 0.8
_CHANGED = 1.25
_STEP = 1.5
"""Ratio of consecutive numbers of workers to try."""
_HOLD, _LONGEST_HOLD = 8, 512
_FIRST_BATCHES, _LEAST_BATCHES, _LEAST_S = 3, 4, 0.02


@dataclass(frozen=True)
class LoaderSetting:
    """Setting of the input pipeline.

    - `workers`: number of threads that make batches; with 0 the training thread makes them.
    - `prefetch`: maximum number of batches made ahead.
    - `host_stages`: number of stages on the host; the device runs the rest. None means all.

    >>> from caldera.data.loading.tuner import LoaderSetting
    >>> LoaderSetting(workers=2, prefetch=4)
    LoaderSetting(workers=2, prefetch=4, host_stages=None)
    """

    workers: int
    prefetch: int
    host_stages: int | None = None


# Not frozen: one is made for each batch, and freezing would triple its cost.
@dataclass(slots=True)
class BatchTime:
    """Times of a batch in seconds: making it, waiting for it, and the step before it."""

    making: float
    processor: float
    waiting: float
    step: float
    nbytes: int = 0


@dataclass
class SettingWindow:
    """Times of consecutive batches with the same setting."""

    setting: LoaderSetting
    least_batches: int = _LEAST_BATCHES
    least_s: float = _LEAST_S
    costs: list[BatchTime] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, cost: BatchTime) -> None:
        self.costs.append(cost)
        self.seconds += cost.step + cost.waiting

    def is_complete(self) -> bool:
        least = max(self.least_batches, 2 * self.setting.workers)
        return len(self.costs) >= least and self.seconds >= self.least_s

    def close(self) -> SettingWindow:
        """Compute the statistics; called once all times are recorded."""
        self.step = median(cost.step for cost in self.costs)
        self.making = median(cost.making for cost in self.costs)
        self.processor = median(cost.processor for cost in self.costs)
        waiting = fmean(cost.waiting for cost in self.costs)
        # Steps are clipped: a checkpoint or another delay is unrelated to the pipeline.
        steps = fmean(min(cost.step, 4 * self.step) for cost in self.costs)
        self.interval = max(steps + waiting, 1e-9)
        self.starved = waiting / self.interval
        busy = fmean(cost.making for cost in self.costs)
        self.idle = 1 - busy / (self.interval * max(self.setting.workers, 1))
        return self


Search: TypeAlias = Generator[LoaderSetting, SettingWindow, SettingWindow]
"""Generator that yields settings to try, receives their times, and returns the best."""


class Tuner:
    """Search for the best setting: `observe` receives the times of each batch.

    `workers` and `prefetch` fix their values. `splits` contains the numbers of stages that may run
    on the host; the search starts with the first. `memory` is the number of bytes available to
    batches made ahead.

    >>> from caldera.data.loading.tuner import BatchTime, Tuner
    >>> tuner = Tuner(cores=2)
    >>> for _ in range(3):
    ...     tuner.observe(BatchTime(making=0.010, processor=0.010, waiting=0.010, step=0.008))
    >>> tuner.setting
    LoaderSetting(workers=2, prefetch=4, host_stages=None)
    """

    def __init__(
        self,
        cores: int,
        *,
        workers: int | None = None,
        prefetch: int | None = None,
        splits: Sequence[int | None] = (None,),
        memory: float = math.inf,
    ) -> None:
        self._cores = cores
        self._workers = workers
        self._prefetch = prefetch
        self._other_splits = list(splits[1:])
        self._memory = memory
        self._nbytes = 1
        self._split = splits[0]
        self._search = self._tuning()
        self._window = SettingWindow(next(self._search), _FIRST_BATCHES, 0.0)
        # Number of batches to ignore, which were made ahead under another setting.
        self._skip = 0

    @property
    def setting(self) -> LoaderSetting:
        """Current setting."""
        return self._window.setting

    def observe(self, cost: BatchTime) -> None:
        """Record the times of a batch, and change the setting if the search requires it."""
        if self._skip:
            self._skip -= 1
            return
        self._nbytes = max(self._nbytes, cost.nbytes)
        self._window.add(cost)
        if self._window.is_complete():
            before = self.setting
            self._window = SettingWindow(self._search.send(self._window.close()))
            if self.setting != before:
                self._skip = before.prefetch + (4 if self._moved(before) else 1)

    def _moved(self, before: LoaderSetting) -> bool:
        """Return True if stages moved: their plans are compiled in the next steps."""
        return self.setting.host_stages != before.host_stages

    # --- the search

    def _tuning(self) -> Generator[LoaderSetting, SettingWindow, None]:
        window = yield self._of(0 if self._workers is None else self._workers)
        hold = 1
        while True:
            before = window.setting
            window = yield from self._improved(window)
            if window.setting.workers or window.setting != before:
                hold = _HOLD
            settled, changes = window, 0
            for _ in range(hold):
                window = yield settled.setting
                ratio = window.interval / settled.interval
                changes = changes + 1 if not 1 / _CHANGED < ratio < _CHANGED else 0
                if changes == 2:
                    break
            else:
                hold = min(2 * hold, _LONGEST_HOLD) if hold > 1 else 1

    def _improved(self, window: SettingWindow) -> Search:
        if not window.setting.workers:
            window = yield from self._begun(window)
        if window.setting.workers:
            window = yield from self._more(window)
            window = yield from self._fewer(window)
        return (yield from self._moved_stages(window))

    def _begun(self, window: SettingWindow) -> Search:
        """From no workers to as many as should help; fewer if they do not."""
        count = self._useful(window) if self._workers is None else 0
        while count:
            tried = yield self._of(count)
            if tried.interval < window.interval:
                return tried
            count //= 2
        return window

    def _useful(self, window: SettingWindow) -> int:
        """Return the useful number of workers, estimated from batches made without any."""
        if window.making < _WORTH_IT_S:
            return 0
        by_step = window.step + _HAND_OVER_S
        by_cores = window.processor / self._cores

        def expected(workers: int) -> float:
            return max(by_step, by_cores, (window.making + _HAND_OVER_S) / workers)

        # A little more than the mean rate needs, since batches do not take equally long.
        wanted = 1.2 * window.making / max(by_step, by_cores)
        count = min(max(math.ceil(wanted - 0.25), 1), self._most_workers())
        return count if expected(count) < _BETTER * (window.making + window.step) else 0

    def _more(self, window: SettingWindow) -> Search:
        while window.starved > _STARVED:
            setting = self._larger(window)
            if setting == window.setting:
                break
            tried = yield setting
            if tried.interval > _BETTER * window.interval:
                break
            window = tried
        return window

    def _larger(self, window: SettingWindow) -> LoaderSetting:
        """More workers; or a longer queue, where workers wait for room while training waits."""
        now = window.setting
        if window.idle > _IDLE or self._workers is not None:
            if self._prefetch is not None:
                return now
            longer = min(2 * now.prefetch, self._most_prefetch())
            return replace(now, prefetch=max(longer, now.prefetch))
        workers = min(math.ceil(_STEP * now.workers), self._most_workers())
        return self._of(max(workers, now.workers), now)

    def _fewer(self, window: SettingWindow) -> Search:
        while self._workers is None and (window.idle > 2 * _IDLE or self._crowded(window)):
            now = window.setting
            count = math.floor(now.workers / _STEP)
            # Working without threads cannot be faster if making a batch and its step together take
            # longer.
            if not count and window.making + window.step > _AS_GOOD * window.interval:
                break
            tried = yield self._of(count, now)
            if tried.interval > _AS_GOOD * window.interval:
                break
            window = tried
            if not count:
                break
        return window

    def _crowded(self, window: SettingWindow) -> bool:
        """Return True if workers compete: more workers than cores, and all busy."""
        cores = window.processor / window.interval
        return window.setting.workers > self._cores and cores > _CROWDED * self._cores

    def _moved_stages(self, window: SettingWindow) -> Search:
        while self._other_splits:
            place = self._other_splits.pop(0)
            tried = yield replace(window.setting, host_stages=place)
            if tried.interval < _BETTER * window.interval:
                self._split = place
                window = yield from self._improved(tried)
        return window

    # --- what is possible

    def _of(self, workers: int, now: LoaderSetting | None = None) -> LoaderSetting:
        """Return a setting with this number of workers, and a queue that keeps them busy."""
        # A longer queue from an earlier step of the search is kept.
        longer = 0 if now is None else now.prefetch - now.workers + workers
        prefetch = min(max(workers + _SPARE, longer), self._most_prefetch()) if workers else 0
        fixed = self._prefetch
        return LoaderSetting(workers, prefetch if fixed is None else fixed, self._split)

    def _most_workers(self) -> int:
        most = self._most_prefetch() if self._prefetch is None else self._prefetch
        return max(1, min(MOST_WORKERS, most))

    def _most_prefetch(self) -> int:
        return int(max(2, min(4 * MOST_WORKERS, self._memory / self._nbytes)))


@dataclass
class PipelineStatistics:
    """Adds up what batches took.

    >>> from caldera.data.loading.tuner import LoaderSetting
    >>> from caldera.data.loading.tuner import PipelineStatistics
    >>> usage = PipelineStatistics()
    >>> usage.add((0.002, 0.004), waiting=0.001, setting=LoaderSetting(2, 4))
    >>> print(usage.text(["Crop"]))
    stage         ms a batch
    read               2.000
    Crop               4.000
    2 workers, at most 4 batches ahead; 1 batch, waited for 1.000 ms each
    """

    batches: int = 0
    waited: float = 0.0
    seconds: Counter[int] = field(default_factory=Counter)
    counts: Counter[int] = field(default_factory=Counter)
    setting: LoaderSetting = field(default_factory=lambda: LoaderSetting(0, 0))

    def add(self, seconds: tuple[float, ...], waiting: float, setting: LoaderSetting) -> None:
        """Record a batch: the seconds of each stage, and the seconds that training waited."""
        self.batches += 1
        self.waited += waiting
        self.setting = setting
        self.seconds.update(dict(enumerate(seconds)))
        self.counts.update(range(len(seconds)))

    def text(self, stages: list[str]) -> str:
        """Return a table of the stages with these names, and how it was tuned."""
        lines = ["stage         ms a batch"]
        host = self.setting.host_stages
        for number, name in enumerate(["read", *stages]):
            if host is not None and number > host:
                lines.append(f"{name:<12} on the device")
            elif number in self.counts:
                mean = self.seconds[number] / self.counts[number]
                lines.append(f"{name:<12} {1e3 * mean:>11.3f}")
        workers = "no workers: prepared by the training thread"
        if self.setting.workers:
            ahead = _counted(self.setting.prefetch, "batch")
            workers = f"{_counted(self.setting.workers, 'worker')}, at most {ahead} ahead"
        wait = 1e3 * self.waited / max(self.batches, 1)
        lines.append(f"{workers}; {_counted(self.batches, 'batch')}, waited for {wait:.3f} ms each")
        return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural.

    >>> _counted(1, "batch"), _counted(2, "batch"), _counted(2, "worker")
    ('1 batch', '2 batches', '2 workers')
    """
    plural = "es" if noun.endswith("h") else "s"
    return f"{count} {noun}{'' if count == 1 else plural}"
