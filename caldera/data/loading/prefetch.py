"""Batches made ahead of training, as far and by as many threads as its tuner says."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caldera.base.config import settings
from caldera.base.machine import usable_memory
from caldera.data.loading.batch import Share
from caldera.data.loading.pipeline import Pipeline, StagedBatch
from caldera.data.loading.prefetcher import Prefetcher
from caldera.data.loading.tuner import Cost, Tuner
from caldera.data.random_draws import Draw
from caldera.data.sources.base import Arrays

_PART_OF_MEMORY = 1 / 8
_UNKNOWN_MEMORY = 1 << 33


# Neither is frozen: both are made for each batch, and freezing would triple their cost.
@dataclass(slots=True)
class BatchJob:
    """A batch that is to be made; `arrays` are there where it has been read already."""

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
    """What a pipeline makes of jobs, in their order. No thread is left when it is closed."""

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
        while True:
            asked = time.perf_counter()
            try:
                ready = next(feeder)
            except StopIteration:
                return
            came = time.perf_counter()
            pipeline.usage.add(ready.made.seconds, came - asked, setting)
            if left is not None:
                # The first batch of an epoch has nobody to make it in advance.
                size = sum(array.nbytes for array in ready.made.arrays)
                cost = Cost(ready.seconds, ready.processor, came - asked, asked - left, size)
                tuner.observe(cost)
                if tuner.setting is not setting:
                    setting = tuner.setting
                    feeder.resize(setting.workers, setting.prefetch)
            left = time.perf_counter()
            yield ready


def prefetch_memory() -> float:
    """The bytes that batches that are made ahead may take.

    >>> prefetch_memory() > 1e6
    True
    """
    limit = settings.memory_limit
    return _PART_OF_MEMORY * (usable_memory() or _UNKNOWN_MEMORY if limit is None else limit)
