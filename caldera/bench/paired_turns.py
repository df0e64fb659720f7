"""Rounds of the code of before and the present one, each with memory of its own.

How long the same code takes is partly luck: where its arrays lie in memory, what a loader or a
choice of kernels has learnt from a few noisy times. The luck stays as long as the task, and taking
the time again does not average it out: of one code, tasks that were prepared anew differed by 3%
(a standard deviation, adding 4 million numbers) to 14% (shuffled batches), those of different
processes by no more. So a round is a task of its own on each side, and rounds, not times, are what
is counted.
"""

from __future__ import annotations

from functools import partial
from random import Random

from caldera.bench.case_runner import CaseRunner, Entries
from caldera.bench.workloads import Case, TrainingCase

TURNS = 4
"""Of each side in a round, short ones: what slows the machine down for a second slows both."""
ROUNDS_OF_PROCESS = 8
"""After which both sides get new processes; these take longer to start than to measure."""


def paired_round(runner: CaseRunner, case: Case, entries: Entries, number: int) -> None:
    """Prepare everybody anew, and take turns, in an order of which nobody has the better end."""
    order, random = list(entries.items()), Random(number)
    is_large = isinstance(case, TrainingCase) and case.is_large
    if number % ROUNDS_OF_PROCESS == 0:
        _close(entries)
    random.shuffle(order)
    if is_large:
        # Together they would not fit into memory.
        for handle, entry in order:
            runner.attempt(handle, entry, partial(runner.prepare, case))
            runner.attempt(handle, entry, partial(runner.measure, case))
            handle.close()
        return
    for handle, entry in order:
        runner.attempt(handle, entry, partial(runner.prepare, case))
    for turn in range(TURNS):
        random.shuffle(order)
        measure = partial(runner.measure, case, turn=turn, turns=TURNS)
        for handle, entry in order:
            runner.attempt(handle, entry, measure)


def _close(entries: Entries) -> None:
    for handle in entries:
        handle.close()
