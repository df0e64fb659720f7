"""Kernels on fewer threads than there are, as further candidates.

A short op can be over before the last thread has its part, or spend more time on fetching what
other cores have written than on computing. So the fastest kernel for a node is tried on some of the
threads as well, and the best of these takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial

from caldera.config import settings
from caldera.graph.node import Node
from caldera.kernels.table import Call, Kernel, Runner
from caldera.threads import at_most_threads

SHORT_S = 5e-4
"""Seconds of a call from which on all threads pay: starting them takes some microseconds."""
RESUME_S, RESUME_RATIO = 7e-6, 1.25
"""Seconds to start a run of native kernels again, and what it costs that workers have gone
meanwhile, as a part of the time for which they were not needed."""
_WORD = " on {} thread"


def on_fewer_threads(kernel: Kernel) -> list[Kernel]:
    """The same kernel on one thread, on a quarter of them, and on half of them."""
    if kernel.family != "cpu":
        return []
    counts = {1, settings.threads // 4, settings.threads // 2} - {0}
    return [_limited(kernel, each) for each in sorted(counts) if each < settings.threads]


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
        kernel, name=kernel.name + word, bind=partial(_bind, kernel, threads),
        workspace=partial(_workspace, kernel, threads),
    )  # fmt: skip


def _bind(kernel: Kernel, threads: int, call: Call) -> Runner:
    with at_most_threads(threads):
        return kernel.bind(call)


def _workspace(kernel: Kernel, threads: int, node: Node) -> int:
    with at_most_threads(threads):
        return kernel.workspace(node)
