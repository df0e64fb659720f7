"""One limit on the workspace shared by all layers: which of its options each of them gets.

A multiple-choice knapsack: every layer takes one of its options, the workspaces add up to no more
than the limit, and the times to as little as they can. Dynamic programming over the bytes spent
answers it exactly, up to the unit in which bytes are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from caldera.core.graph.node import Node
from caldera.kernels.common.binding import at_most_workspace
from caldera.kernels.table import Call, Kernel, Runner

UNITS = 1 << 14
"""Into how many units the limit is cut. Options are rounded up to them, so the limit is kept."""


@dataclass(frozen=True)
class WorkspaceOption:
    """One way to run a layer: its bytes of workspace, and what it takes."""

    workspace: int
    seconds: float


def best_options(layers: Sequence[Sequence[WorkspaceOption]], limit: int) -> list[int]:
    """For each layer the position of the option it gets.

    Where not even the smallest options fit together, each gets its smallest.

    >>> small, large = WorkspaceOption(1, 3.0), WorkspaceOption(5, 1.0)
    >>> best_options([[small, large], [small, WorkspaceOption(5, 2.0)]], limit=6)
    [1, 0]
    """
    smallest = [min(range(len(row)), key=lambda i: (row[i].workspace, i)) for row in layers]
    unit = -(-limit // UNITS) or 1
    room = limit // unit
    least = np.zeros(room + 1)
    taken = np.zeros((len(layers), room + 1), np.int16)
    for index, row in enumerate(layers):
        best = np.full(room + 1, np.inf)
        for choice, option in enumerate(row):
            units = -(-option.workspace // unit)
            if units <= room:
                with_it = least[: room + 1 - units] + option.seconds
                better = with_it < best[units:]
                best[units:][better] = with_it[better]
                taken[index, units:][better] = choice
        least = best
    if not np.isfinite(least[room]):
        return smallest
    found = []
    for index in reversed(range(len(layers))):
        choice = int(taken[index, room])
        found.append(choice)
        room -= -(-layers[index][choice].workspace // unit)
    return found[::-1]


@lru_cache(maxsize=4096)
def keeping_to(kernel: Kernel, limit: int) -> Kernel:
    """The same kernel with this many bytes of workspace, whatever the settings say."""
    return replace(
        kernel,
        limit=limit,
        bind=partial(_bind, kernel, limit),
        workspace=partial(_workspace, kernel, limit),
    )


def _bind(kernel: Kernel, limit: int, call: Call) -> Runner:
    with at_most_workspace(limit):
        return kernel.bind(call)


def _workspace(kernel: Kernel, limit: int, node: Node) -> int:
    with at_most_workspace(limit):
        return kernel.workspace(node)
