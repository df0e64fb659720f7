"""Ordered prefetching of batches on threads.

These threads do not belong to the compute pool: they also wait for disks and for free memory, and
their number may be large. They run only while the consumer reads, and the tuner sets their number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from caldera.base.config import settings
from caldera.base.machine import usable_memory
from caldera.data.loading.batch import Share
from caldera.data.loading.pipeline import Pipeline, StagedBatch
from caldera.data.loading.tuner import BatchTime, Tuner
from caldera.data.random_draws import Draw
from caldera.data.sources.base import Arrays

Job = TypeVar("Job")
Made = TypeVar("Made")


@dataclass
class _Failure:
    """Result of a failed job: the exception."""

    error: BaseException


class Prefetcher(Generic[Job, Made]):
    """Iterator over `make(job)` for each job, in order; one thread at a time reads jobs.

    Without workers, the consumer reads and makes each job. An exception is raised at the position
    of the failed result. `close` stops all threads and waits for them.

    >>> from caldera.data.loading.prefetch import Prefetcher
    >>> with Prefetcher(iter(range(5)), lambda number: number**2) as feeder:
    ...     feeder.resize(workers=3, prefetch=4)
    ...     list(feeder)
    [0, 1, 4, 9, 16]
    """

    def __init__(self, jobs: Iterator[Job], make: Callable[[Job], Made]) -> None:
        self._jobs = jobs
        self._make = make
        self._threads: list[threading.Thread] = []
        # Requested number of threads, and number of threads that have not decided to stop.
        self._wanted = 0
        self._active = 0
        self._prefetch = 0
        # Number of jobs started, and of results returned.
        self._claimed = 0
        self._taken = 0
        # Total number of jobs, once it is known.
        self._end: int | None = None
        self._made: dict[int, Made | _Failure] = {}
        self._asking = threading.Lock()
        lock = threading.Lock()
        self._not_full = threading.Condition(lock)
        self._ready = threading.Condition(lock)

    def resize(self, workers: int, prefetch: int) -> None:
        """Set the number of threads, and of jobs started ahead of the consumer."""
        with self._not_full:
            self._wanted = workers
            self._prefetch = max(prefetch, 1)
            missing = max(workers - self._active, 0)
            self._active += missing
            self._not_full.notify_all()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for _ in range(missing):
            thread = threading.Thread(target=self._work, name="caldera-data", daemon=True)
            self._threads.append(thread)
            thread.start()

    def __next__(self) -> Made:
        # Without workers no thread claims jobs, so these numbers do not change.
        if not self._wanted and self._claimed == self._taken:
            job = next(self._jobs)
            self._claimed += 1
            self._taken += 1
            return self._make(job)
        with self._ready:
            while self._taken not in self._made:
                if self._taken == self._end:
                    raise StopIteration
                self._ready.wait()
            made = self._made.pop(self._taken)
            self._taken += 1
            self._not_full.notify()
        if isinstance(made, _Failure):
            raise made.error
        return made

    def __iter__(self) -> Iterator[Made]:
        return self

    def close(self) -> None:
        """Stop all threads, and wait until each has finished its current job."""
        with self._not_full:
            self._wanted = 0
            self._not_full.notify_all()
        for thread in self._threads:
            thread.join()
        self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in a worker

    def _work(self) -> None:
        while (number := self._claim_and_make()) is not None:
            with self._ready:
                if number == self._taken:
                    self._ready.notify()

    def _claim_and_make(self) -> int | None:
        """Do one job; None if this thread is not needed any longer."""
        with self._asking:
            number = self._claim()
            if number is None:
                return None
            try:
                job = next(self._jobs)
            except StopIteration:
                with self._ready:
                    self._end = number
                    self._ready.notify()
                return None
            except BaseException as error:
                self._made[number] = _Failure(error)
                return number
        try:
            self._made[number] = self._make(job)
        except BaseException as error:
            self._made[number] = _Failure(error)
        return number

    def _claim(self) -> int | None:
        with self._not_full:
            while self._is_needed() and self._claimed - self._taken >= self._prefetch:
                self._not_full.wait()
            if not self._is_needed():
                self._active -= 1
                return None
            self._claimed += 1
            return self._claimed - 1

    def _is_needed(self) -> bool:
        return self._active <= self._wanted and self._end is None


_PART_OF_MEMORY = 1 / 8
_UNKNOWN_MEMORY = 1 << 33


# Neither is frozen: both are made for each batch, and freezing would triple their cost.
@dataclass(slots=True)
class BatchJob:
    """Batch to make; `arrays` is set if it has been read already."""

    share: Share
    indices: NDArray[np.integer]
    draw: Draw
    arrays: Arrays | None = None
    length: int | None = None
    """The steps that sequences are padded to, the same on all ranks."""


@dataclass(slots=True)
class PreparedBatch:
    """A batch that is made, by the first `end` stages, and the seconds it took in all."""

    job: BatchJob
    made: StagedBatch
    end: int | None
    seconds: float
    processor: float


def prefetched(
    pipeline: Pipeline, jobs: Iterator[BatchJob], tuner: Tuner
) -> Generator[PreparedBatch, None, None]:
    """Iterate over the batches of jobs, in order; no thread remains after closing."""

    def make(job: BatchJob) -> PreparedBatch:
        started, processor = time.perf_counter(), time.thread_time()
        end = tuner.setting.host_stages
        if job.arrays is None:
            made = pipeline.make(job.indices, job.draw, end, job.length)
        else:
            indices = job.indices
            made = pipeline.finish(job.arrays, job.draw, lambda i: f"sample {indices[0] + i}", end)
        return PreparedBatch(
            job, made, end, time.perf_counter() - started, time.thread_time() - processor
        )

    with Prefetcher(jobs, make) as feeder:
        setting = tuner.setting
        feeder.resize(setting.workers, setting.prefetch)
        left: float | None = None
        asked = time.perf_counter()
        for ready in feeder:
            came = time.perf_counter()
            pipeline.usage.add(ready.made.seconds, came - asked, setting)
            if left is not None:
                # The first batch of an epoch cannot be made in advance.
                size = sum(array.nbytes for array in ready.made.arrays)
                cost = BatchTime(ready.seconds, ready.processor, came - asked, asked - left, size)
                tuner.observe(cost)
                if tuner.setting is not setting:
                    setting = tuner.setting
                    feeder.resize(setting.workers, setting.prefetch)
            left = time.perf_counter()
            yield ready
            asked = time.perf_counter()


def prefetch_memory() -> float:
    """Return the bytes that batches that are made ahead may take.

    >>> prefetch_memory() > 1e6
    True
    """
    limit = settings.memory_limit
    return _PART_OF_MEMORY * (usable_memory() or _UNKNOWN_MEMORY if limit is None else limit)
