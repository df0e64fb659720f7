"""How much of one workspace each node of a plan may use, so that all together take least time."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.base.config import settings
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import detached
from caldera.kernels.choose import Choices, Fixed
from caldera.kernels.microbatch import SLICED
from caldera.kernels.table import Kernel
from caldera.kernels.workspace_share import WorkspaceOption, best_options

MOST_OPTIONS = 12
"""Limits under which a node is tried."""


def shared_limits(
    choices: Choices,
    nodes: Sequence[Node],
    family: str,
    total: int,
    *,
    measure: bool = True,
    fixed: Fixed | None = None,
) -> dict[Node, int]:
    """The bytes of workspace that each of these nodes whose batch can be cut may use, so that all
    of them use no more than `total` and take as little time as they can."""
    layers = [node for node in nodes if node.op.name in SLICED]
    known: dict[Node, list[tuple[int, Kernel, float | None]]] = {}
    for node in layers:
        if detached(node) not in known:
            known[detached(node)] = _under_limits(choices, node, family, total, measure, fixed)
    is_timed = all(time is not None for row in known.values() for _, _, time in row)
    rows = [
        [
            WorkspaceOption(
                kernel.workspace(node), time if is_timed and time else kernel.estimate(node)
            )
            for _, kernel, time in known[detached(node)]
        ]
        for node in layers
    ]
    chosen = best_options(rows, total)
    return {
        node: known[detached(node)][position][0]
        for node, position in zip(layers, chosen, strict=True)
    }


def _under_limits(
    choices: Choices, node: Node, family: str, total: int, measure: bool, fixed: Fixed | None
) -> list[tuple[int, Kernel, float | None]]:
    """What serves a node under ever smaller limits, and how long it takes, if that is known."""
    found: list[tuple[int, Kernel, float | None]] = []
    limit = min(total, settings.workspace_limit)
    while len(found) < MOST_OPTIONS:
        verdict = choices.verdict(node, family, measure=measure, limit=limit, fixed=fixed)
        kernel, times = verdict.kernel, verdict.times
        if times is None:
            times = choices.seconds_within(node, kernel, limit, measure=measure)
        found.append((limit, kernel, None if times is None else times.get(kernel.name)))
        needed = kernel.workspace(node)
        if not needed or needed > limit:
            break
        limit = needed * 3 // 4
    return found
