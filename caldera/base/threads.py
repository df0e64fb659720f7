"""The thread pool of a process: kernels, loaders and communication share its budget.

It has `settings.threads` workers, starts when first used, follows a change of the setting, and is
recreated in a child after a fork. The pool does not include threads that prepare batches ahead of
training (`data/loading/prefetcher.py`). They mostly wait for disks or for free memory, so there may
be more threads than cores. Their number is found by measuring, with `settings.threads` as the
number of cores.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

from caldera.base.config import settings

Result = TypeVar("Result")

_lock = threading.Lock()
_pool: ThreadPool | None = None
_this_thread = threading.local()
_most_threads: ContextVar[int | None] = ContextVar("most_threads", default=None)


def _mark_as_worker() -> None:
    _this_thread.is_worker = True


class ThreadPool:
    """A fixed number of worker threads that run single tasks and parallel loops.

    >>> from caldera.base.threads import ThreadPool
    >>> workers = ThreadPool(2)
    >>> workers.submit(lambda: 6 * 7).result()
    42
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._executor = ThreadPoolExecutor(size, "caldera", initializer=_mark_as_worker)

    def submit(self, task: Callable[[], Result]) -> Future[Result]:
        """Run `task` on a worker; the future has its result or its exception."""
        return self._executor.submit(task)

    def parallel_for(self, function: Callable[[int, int], object], count: int) -> None:
        """Run `function(worker_index, workers)` once for each worker that takes part.

        `count` is the number of pieces of work, and the maximum number of workers. The caller is a
        worker too and does the work that busy workers leave, so the call cannot get stuck; for the
        same reason one part must not wait for another. Called from a worker, everything runs in
        place as `function(0, 1)`. The first exception is raised after all parts have ended.
        """
        workers = min(count, self.size)
        if workers <= 0:
            return
        if workers == 1 or is_worker():
            function(0, 1)
            return
        loop = _Loop(function, workers)
        for _ in range(workers - 1):
            self._executor.submit(loop.take_part)
        loop.take_part()
        loop.finish()


@dataclass(eq=False)
class _Loop:
    """One parallel loop: parts are claimed one at a time by whichever thread is free."""

    _function: Callable[[int, int], object] | None
    _workers: int
    _claimed: int = 0
    _running: int = 0
    _failure: BaseException | None = None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take_part(self) -> None:
        while True:
            with self._changed:
                function = self._function
                if function is None or self._claimed == self._workers or self._failure is not None:
                    return
                part = self._claimed
                self._claimed += 1
                self._running += 1
            failure: BaseException | None = None
            try:
                function(part, self._workers)
            except BaseException as error:  # raised in the caller of the loop
                failure = error
            with self._changed:
                self._failure = self._failure or failure
                self._running -= 1
                self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            while self._running:
                self._changed.wait()
            # Entries still queued behind busy workers must not keep the function's arrays alive.
            self._function = None
            failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                # The traceback holds this frame: without this, frame and exception form a cycle.
                del failure


def pool() -> ThreadPool:
    """Return the pool of this process, started now if it is not running yet.

    >>> import caldera as cd
    >>> from caldera.base.threads import pool
    >>> pool().size == cd.settings.threads
    True
    """
    global _pool
    current = _pool
    if current is not None and current.size == settings.threads:
        return current
    with _lock:
        if _pool is None or _pool.size != settings.threads:
            # A pool that is replaced ends its threads once its last task is done and forgotten.
            _pool = ThreadPool(settings.threads)
        return _pool


def parallel_for(function: Callable[[int, int], object], count: int) -> None:
    """Run `function(worker_index, workers)` on the pool, see `ThreadPool.parallel_for`.

    >>> import numpy as np
    >>> from caldera.base.threads import parallel_for
    >>> squares = np.zeros(10)
    >>> def fill(worker, workers):
    ...     for index in range(worker, 10, workers):
    ...         squares[index] = index ** 2
    >>> parallel_for(fill, 10)
    >>> int(squares.sum())
    285
    """
    pool().parallel_for(function, count)


def thread_count() -> int:
    """Return the number of threads that an op prepared now may use.

    >>> import caldera as cd
    >>> from caldera.base.threads import thread_count
    >>> thread_count() == cd.settings.threads
    True
    """
    most = _most_threads.get()
    return settings.threads if most is None else min(most, settings.threads)


def is_limited() -> bool:
    """Return True if an op prepared now must not use all threads.

    It then has no more parts than threads it may use, as any free thread takes a part.

    >>> from caldera.base.threads import is_limited
    >>> is_limited()
    False
    """
    return thread_count() < settings.threads


MANY_THREADS, PARTS_A_THREAD = 12, 4
"""With 16 threads, matrix products in four parts per thread take 0.87 times as long as in a single
part per thread in an MLP, and 0.74 to 0.93 times in a GPT. With eight threads they are no faster.
Loops over elements do not gain: the input of a part is no longer in the cache of the thread that
takes it (an LSTM took 1.15 times as long).
"""


def part_count(threads: int, each: int = 1) -> int:
    """Return the number of parts for the work of `threads` threads, at least `each` per thread.

    Many threads are not equally fast: they get several parts each, and a thread that has finished
    takes a part from another thread.

    >>> from caldera.base.threads import part_count
    >>> part_count(2), part_count(2, each=2)
    (2, 4)
    """
    if is_limited():
        return threads
    return threads * max(each, PARTS_A_THREAD if threads >= MANY_THREADS else 1)


@contextmanager
def at_most_threads(count: int) -> Iterator[None]:
    """Ops that are made ready inside use no more threads than this, whenever they run.

    >>> from caldera.base.threads import at_most_threads, thread_count
    >>> with at_most_threads(1):
    ...     thread_count()
    1
    """
    before = _most_threads.set(count)
    try:
        yield
    finally:
        _most_threads.reset(before)


def is_worker() -> bool:
    """Return True if the calling thread belongs to the pool; it must then not submit work and wait.

    >>> from caldera.base.threads import is_worker, submit
    >>> is_worker(), submit(is_worker).result()
    (False, True)
    """
    return getattr(_this_thread, "is_worker", False)


def submit(task: Callable[[], Result]) -> Future[Result]:
    """Run `task` on a worker of the pool.

    >>> from caldera.base.threads import submit
    >>> submit(lambda: "done").result()
    'done'
    """
    return pool().submit(task)


def _forget_pool_of_parent() -> None:
    """Reset in a child after a fork: the parent's threads are gone, its lock may be locked."""
    global _pool, _lock, _this_thread
    _pool = None
    _lock = threading.Lock()
    _this_thread = threading.local()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool_of_parent)
