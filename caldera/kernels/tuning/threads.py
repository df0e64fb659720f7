"""Kernels on a subset of the threads, as further candidates.

A short op can be over before the last thread has its part, or spend more time on fetching data that
other cores have written than on computing. So the fastest kernel for a node is also timed on fewer
threads, and the fastest variant replaces it. The speed of a kernel may depend on values that cannot
be made up, such as indices. Then the first real calls run the variants in turns, however long they
take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from time import perf_counter

from caldera.base.config import settings
from caldera.base.threads import at_most_threads, thread_count
from caldera.kernels.common.binding import restricted
from caldera.kernels.native.codegen import NativeRunner
from caldera.kernels.table import Call, Kernel, Runner

SHORT_S = 5e-4
"""Seconds of a call from which on all threads pay: starting them takes some microseconds."""
RESUME_S, RESUME_RATIO = 7e-6, 1.25
"""Cost of resuming native kernels: seconds, and the slowdown as workers have gone idle.

The slowdown is relative to the time during which the workers were not needed.
"""
TURNS = 2
"""Number of trial runs of each thread count; the better one counts."""


def on_fewer_threads(kernel: Kernel) -> list[Kernel]:
    """Return the same kernel on one thread, on a quarter of the threads, and on half."""
    if kernel.family != "cpu":
        return []
    return [_limited(kernel, each) for each in _fewer_than(settings.threads)]


@lru_cache(maxsize=4096)
def _limited(kernel: Kernel, threads: int) -> Kernel:
    name = f"{kernel.name} on {threads} thread{'s' * (threads > 1)}"
    return restricted(kernel, partial(at_most_threads, threads), name=name, threads=threads)


def _fewer_than(threads: int) -> list[int]:
    return [each for each in sorted({1, threads // 4, threads // 2}) if 0 < each < threads]


def with_thread_counts(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Return the kernels, and each kernel on fewer threads."""
    return [*kernels, *(limited for each in kernels for limited in on_fewer_threads(each))]


def with_a_shared_one(promising: list[Kernel], contenders: Sequence[Kernel]) -> list[Kernel]:
    """Return these kernels, with a contender that uses all threads, if there are several threads.

    The gain from several threads is measured, so a single-threaded library call must be faster.
    """
    if settings.threads == 1 or not all(kernel.serial for kernel in promising):
        return promising
    return [*promising, *[kernel for kernel in contenders if not kernel.serial][:1]]


def seconds_in_plan(kernel: Kernel, seconds: float) -> float:
    """Return the cost of a call of this duration within a plan of several threads.

    A call of a library interrupts a run of native kernels.

    >>> from caldera.kernels.table import Kernel
    >>> seconds_in_plan(Kernel("sum", "cpu", "native", bind=lambda call: lambda: None), 1e-5)
    1e-05
    """
    if not kernel.serial or settings.threads == 1:
        return seconds
    return seconds * RESUME_RATIO + RESUME_S


def is_shared(runner: Runner) -> bool:
    """Return True if several threads compute the kernel."""
    return isinstance(runner, NativeRunner) and any(call.parts > 1 for call in runner.calls)


def taking_turns(bind: Callable[[Call], Runner]) -> Callable[[Call], Runner]:
    """Binds a kernel so that its first calls run on all threads and on fewer by turns, and the
    later ones on as many as were the fastest. For kernels that take longer for some indices than
    for others, and give the same bits on any number of threads."""

    def bound(call: Call) -> Runner:
        shared = bind(call)
        if not is_shared(shared):
            return shared
        runners = {thread_count(): shared}
        for threads in _fewer_than(thread_count()):
            with at_most_threads(threads):
                runners[threads] = bind(call)
        return Turns(runners)

    return bound


class Turns:
    """Runs a call on different numbers of threads by turns, until the fastest is known.

    >>> from caldera.kernels.tuning.threads import TURNS, Turns
    >>> import time
    >>> turns = Turns({2: lambda: time.sleep(0.002), 1: lambda: None})
    >>> for _ in range(2 * TURNS):
    ...     turns()
    >>> turns.threads
    1
    """

    def __init__(self, runners: Mapping[int, Runner]) -> None:
        self._runners = dict(runners)
        self._seconds: dict[int, list[float]] = {threads: [] for threads in runners}
        self.threads: int | None = None
        """The number that is the fastest, once it is known."""

    def __call__(self) -> None:
        if self.threads is not None:
            self._runners[self.threads]()
            return
        next_one = min(self._seconds, key=lambda each: len(self._seconds[each]))
        begin = perf_counter()
        self._runners[next_one]()
        self._seconds[next_one].append(perf_counter() - begin)
        if all(len(each) == TURNS for each in self._seconds.values()):
            self.threads = min(self._seconds, key=lambda each: min(self._seconds[each]))
