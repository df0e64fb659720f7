"""MagmaDNN, figures 5 to 7: a graph before and after fusion, and what that gains."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.bench.reproduce.experiment import (
    BESIDE,
    LEAST_TURNS,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import compile

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
SMALL = 1 << 14
"""Numbers that lie in the first cache: there is nothing to gain."""
EQUAL = 1e-5


@claim(
    "fusion",
    "MagmaDNN, figures 5 to 7",
    "Operations that can be performed in one pass over the data are fused, which is faster",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """A chain of element-wise operations with fusion and without, over sizes."""
    sizes = SIZES[:3] if context.quick else SIZES
    lines: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
    samples, rows = {}, []
    for size in sizes:
        context.tell(f"{size} numbers")
        x = op.var("x", (size,), fill=np.linspace(-2, 2, size, dtype=np.float32), device="cpu")
        y = op.sigmoid(op.tanh(x * 0.5 + 1.0) * x - op.exp(-op.square(x)))
        plans = {"before": compile([y], without=["fuse"]), "after": compile([y])}
        apart = float(np.abs(np.subtract(*(p.run()[0].numpy() for p in plans.values()))).max())
        turns = max(LEAST_TURNS, context.repeats)
        found = in_turns({name: plan.run for name, plan in plans.items()}, turns)
        for name, seconds in found.items():
            lines[name].append((float(size), 1e6 * min(seconds)))
            samples[f"{name}, {size} numbers: s"] = seconds
        gain, verdict = faster(found["after"], found["before"])
        rows.append(
            ComparisonRow(
                f"fused, {size} numbers: times as fast",
                "faster",
                gain,
                verdict if size > SMALL else BESIDE,
            )
        )
        rows.append(
            ComparisonRow(
                f"fused, {size} numbers: equal to before",
                "the same",
                f"{apart:.0e}",
                holds(apart < EQUAL),
            )
        )
    count = {name: len(plan.explain(time=False).rows) for name, plan in plans.items()}
    rows.append(
        ComparisonRow(
            "kernels of the chain",
            "one pass over the data",
            f"{count['before']}, then {count['after']}",
            holds(count["after"] == 1),
        )
    )
    plot = Plot("A chain of eight", "numbers", "us", lines, log=True)
    return ExperimentResult(
        rows,
        [plot],
        samples,
        [*context.skipped(f"{SIZES[-1]} numbers"), "half precision on tensor cores: needs a card"],
    )
