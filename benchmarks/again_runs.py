"""Does `caldera bench --again` tell equal runs from slower ones? Twenty real runs of each.

    python benchmarks/again_runs.py > benchmarks/results/again-$(uname -m).md

A run is rounds of times of one product of matrices, as the bench takes them. Runs come in threes:
one, the same again, and one whose calls each wait for a tenth of their time more. The second must
be called equal to the first and the third slower, 19 times of 20. What other programs do to this
machine meanwhile is in the times, and the load is in the first line.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import numpy as np

from caldera.bench.again import SLOWER, WITHIN, compare

RUNS, ROUNDS, CALLS, SIZE, SLOWED = 20, 15, 20, 128, 0.1


def work(left: np.ndarray) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    left @ left
    return time.perf_counter() - start


def rounds(call: Callable[[], float]) -> list[list[float]]:
    """The times of a run."""
    return [[call() for _ in range(CALLS)] for _ in range(ROUNDS)]


def main() -> None:
    left = np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)

    def plain() -> float:
        return sum(work(left) for _ in range(10))

    usual = float(np.min([plain() for _ in range(200)]))

    def slowed() -> float:
        start = time.perf_counter()
        plain()
        until = time.perf_counter() + SLOWED * usual
        while time.perf_counter() < until:
            pass
        return time.perf_counter() - start

    load = os.getloadavg()[0]
    equal, slower, ratios = 0, 0, []
    for _ in range(RUNS):
        first, second, third = rounds(plain), rounds(plain), rounds(slowed)
        equal += compare("same", first, second).verdict == WITHIN
        found = compare("slower", first, third)
        slower += found.verdict == SLOWER
        ratios.append(found.ratio)
    print(f"# `caldera bench --again`, {RUNS} runs of each\n")
    print(f"`python benchmarks/again_runs.py` on {platform.machine()}, {os.cpu_count()} cores, "
          f"load {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end; "
          f"{ROUNDS} rounds of {CALLS} times each.\n")  # fmt: skip
    print("| run | called | times of 20 |\n|---|---|---|")
    print(f"| the same again | within noise | {equal} |")
    print(f"| 10% slower | slower | {slower} |")
    print(f"\nFound for the slower one: {np.median(ratios) - 1:+.1%} "
          f"({min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}).")  # fmt: skip


if __name__ == "__main__":
    main()
