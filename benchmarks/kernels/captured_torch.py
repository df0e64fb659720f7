"""How long a call of PyTorch takes on a card, without what the host takes to launch it."""

from __future__ import annotations

import math
from collections.abc import Callable

CALLS, ROUNDS = 8, 12
"""Calls that are captured together, and replays of them: the best counts."""


def seconds_of_a_call(call: Callable[[], object]) -> float:
    """Seconds by the card's clock, captured in a CUDA graph."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    best = math.inf
    for _ in range(ROUNDS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        torch.cuda.synchronize()
        best = min(best, before.elapsed_time(after) * 1e-3 / CALLS)
    return best
