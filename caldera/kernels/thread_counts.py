"""Kernels on fewer threads than there are, as further candidates.

A short op can be over before the last thread has its part, or spend more time on fetching what
other cores have written than on computing. So the fastest kernel for a node is tried on some of the
threads as well, and the best of these takes its place. How fast a kernel is may depend on values
that nobody can make up, as indices are: then the first calls in earnest take turns, however long.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from time import perf_counter

from caldera.base.config import settings
from caldera.base.threads import at_most_threads, thread_count
from caldera.core.graph.node import Node
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.table import Call, Kernel, Runner

SHORT_S = 5e-4
"""Seconds of a call from which on all threads pay: starting them takes some microseconds."""
RESUME_S, RESUME_RATIO = 7e-6, 1.25
"""Seconds to start a run of native kernels again, and what it costs that workers have gone
meanwhile, as a part of the time for which they were not needed."""
TURNS = 2
"""That each number of threads has where they take turns: the better one counts."""
_WORD = " on {} thread"


def on_fewer_threads(kernel: Kernel) -> list[Kernel]:
    """The same kernel on one thread, on a quarter of them, and on half of them."""
    if kernel.family != "cpu":
        return []
    return [_limited(kernel, each) for each in _fewer_than(settings.threads)]


def _fewer_than(threads: int) -> list[int]:
    return [each for each in sorted({1, threads // 4, threads // 2}) if 0 < each < threads]


def taking_turns(bind: Callable[[Call], Runner]) -> Callable[[Call], Runner]:
    """Binds a kernel so that its first calls run on all threads and on fewer by turns, and the
    later ones on as many as were the fastest. For kernels that take longer for some indices than
    for others, and give the same bits on any number of threads."""

    def bound(call: Call) -> Runner:
        shared = bind(call)
        if not is_shared(shared):
            return shared
        fewer = {each: _bind(bind, each, call) for each in _fewer_than(thread_count())}
        return Turns({thread_count(): shared, **fewer})

    return bound


def is_shared(runner: Runner) -> bool:
    """Whether several threads compute it."""
    return isinstance(runner, NativeRunner) and any(call.parts > 1 for call in runner.calls)


class Turns:
    """Runs a call on different numbers of threads by turns, until the fastest is known.

    >>> from caldera.kernels.thread_counts import TURNS, Turns
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


def seconds_in_plan(kernel: Kernel, seconds: float) -> float:
    """What a call that takes so long by itself costs within a plan of several threads: one of a
    library ends a run of native kernels.

    >>> from caldera.kernels.table import Kernel
    >>> seconds_in_plan(Kernel("sum", "cpu", "native", bind=lambda call: lambda: None), 1e-5)
    1e-05
    """
    if not kernel.serial or settings.threads == 1:
        return seconds
    return seconds * RESUME_RATIO + RESUME_S


def with_a_shared_one(near: list[Kernel], rivals: Sequence[Kernel]) -> list[Kernel]:
    """These kernels, with one of the rivals that uses all threads, if there are several: how much
    several threads gain is for a race to say, which a call of a library on one of them must win."""
    if settings.threads == 1 or not all(kernel.serial for kernel in near):
        return near
    return [*near, *[kernel for kernel in rivals if not kernel.serial][:1]]


def with_thread_counts(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels, and all of them on fewer threads."""
    return [*kernels, *(limited for each in kernels for limited in on_fewer_threads(each))]


def name_on_all_threads(name: str) -> str:
    """The name of a kernel without the number of its threads, which stands at its end.

    >>> name_on_all_threads("packed on 4 threads"), name_on_all_threads("blas")
    ('packed', 'blas')
    """
    return re.sub(_WORD.format(r"\d+") + "s?$", "", name)


@lru_cache(maxsize=4096)
def _limited(kernel: Kernel, threads: int) -> Kernel:
    word = _WORD.format(threads) + ("s" if threads > 1 else "")
    return replace(
        kernel,
        name=kernel.name + word,
        bind=partial(_bind, kernel.bind, threads),
        workspace=partial(_workspace, kernel, threads),
        source=kernel.origin,
    )


def _bind(bind: Callable[[Call], Runner], threads: int, call: Call) -> Runner:
    with at_most_threads(threads):
        return bind(call)


def _workspace(kernel: Kernel, threads: int, node: Node) -> int:
    with at_most_threads(threads):
        return kernel.workspace(node)
