"""MagmaDNN, figures 5 to 7: half precision products, fusion, and both, in one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera import op
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    claim,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan

SIZES = (128, 512, 1024)
BATCH = 256
_FUSING = ("fuse", "epilogue")
WAYS: Mapping[str, Mapping[str, Any]] = {
    "before": {"without": _FUSING},
    "fused": {},
    "half precision products": {"without": _FUSING, "precision": "bfloat16"},
    "both": {"precision": "bfloat16"},
}
NEAR = 0.05
"""Of the largest number: bfloat16 has eight bits."""


@claim(
    "mixed-precision",
    "MagmaDNN, figures 5 to 7",
    "A graph with half precision products, fused, and both, gives the same and is faster",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """Two dense layers and their gradients, compiled four ways."""
    sizes = SIZES[:2] if context.quick else SIZES
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    rows, samples = [], {}
    plans: dict[str, Plan] = {}
    for size in sizes:
        context.tell(f"layers of {size}")
        outputs = _step(size)
        plans = {name: compile(outputs, **options) for name, options in WAYS.items()}
        values = {name: plan.run()[0].numpy() for name, plan in plans.items()}
        found = in_turns({name: plan.run for name, plan in plans.items()}, context.repeats)
        times = {name: min(seconds) for name, seconds in found.items()}
        for name, seconds in found.items():
            lines[name].append((float(size), 1e3 * times[name]))
            samples[f"{name}, {size}: s"] = seconds
        largest = np.abs(values["before"]).max()
        for name in list(WAYS)[1:]:
            apart = float(np.abs(values[name] - values["before"]).max() / largest)
            gain = times["before"] / times[name]
            # Whether half precision is faster depends on the machine: MagmaDNN's has tensor cores.
            judged = holds(apart < NEAR) if name != "fused" else holds(apart < 1e-4)
            rows.append(
                ComparisonRow(
                    f"layers of {size}, {name}: equal to before", "near", f"{apart:.0e}", judged
                )
            )
            rows.append(
                ComparisonRow(
                    f"layers of {size}, {name}: times as fast",
                    "1.2 to 2 on tensor cores" if name != "fused" else "faster",
                    f"{gain:.2f}",
                    BESIDE,
                )
            )
    count = {name: len(plan.explain(time=False).rows) for name, plan in plans.items()}
    rows.append(
        ComparisonRow(
            "kernels: before, fused, both",
            "fewer after fusing",
            f"{count['before']}, {count['fused']}, {count['both']}",
            holds(count["fused"] < count["before"]),
        )
    )
    plot = Plot("Two dense layers and their gradients", "units", "ms", lines, log=True)
    return ExperimentResult(
        rows,
        [plot],
        samples,
        [*context.skipped(f"layers of {SIZES[-1]}"), "tensor cores: need a card"],
    )


def _step(size: int) -> list[Expr]:
    draw = np.random.default_rng(0)

    def made(name: str, *shape: int) -> Expr:
        values = (draw.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return op.var(name, shape, fill=values, device="cpu")

    x, w, b = made("x", BATCH, size), made("w", size, size), made("b", size)
    v = made("v", size, size)
    hidden = op.sigmoid(x @ w + b)
    loss = op.mean(op.square(op.tanh(hidden @ v) - x))
    return [hidden, *op.grad(loss, [w, b, v])]
