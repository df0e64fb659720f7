"""The keynote's micro-batching: a convolution whose fast kernels need more memory than allowed."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.base.config import settings
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
from caldera.kernels.table import TABLE
from caldera.kernels.tuning.choice_store import ORACLE
from caldera.kernels.tuning.choose import choices

SHAPES = {"3 x 3, 64 channels of 28": (64, 64, 28, 3), "5 x 5, 64 channels of 27": (64, 64, 27, 5)}
"""Batch, channels, pixels, kernel: as in VGG, and AlexNet's second layer."""
LIMITS = (1 << 30, 1 << 20, 1 << 18, 1 << 17, 1 << 16, 1 << 15)
SLICED = " by "
"""In the name of a division of a batch, as in `2 x 16 by winograd 2x2`."""
_EQUAL = 1e-3


@claim(
    "micro-batching",
    "Keynote, micro-batching",
    "Under a limit on the workspace, fast algorithms on parts of a batch beat slow ones on "
    "the whole",
)
def run(context: ExperimentContext) -> ExperimentResult:
    """The fastest kernel within a limit that takes the whole batch, and that may cut it."""
    shapes = list(SHAPES.items())[: 1 if context.quick else 2]
    limits = LIMITS[::2] if context.quick else LIMITS
    rows, plots, most, needed = [], [], 0.0, 0
    samples: dict[str, list[float]] = {}
    for name, shape in shapes:
        expression, free = _convolution(*shape), 0.0
        lines: dict[str, list[tuple[float, float]]] = {"whole batch": [], "micro-batches": []}
        for limit in limits:
            context.tell(f"{name}, {limit >> 10} KiB")
            with settings.override(workspace_limit=limit):
                plans = _plans(expression)
                found = in_turns({each: plan.run for each, plan in plans.items()}, context.repeats)
            times = {each: min(seconds) for each, seconds in found.items()}
            samples |= {f"{name}, {limit} B, {k}: s": seconds for k, seconds in found.items()}
            # The oracle is no algorithm that anybody would choose.
            whole = {
                each: taken
                for each, taken in times.items()
                if SLICED not in each and each != ORACLE
            }
            best = min(times, key=times.__getitem__)
            free = free or times[best]
            lines["micro-batches"].append((limit / 2**20, 1e3 * times[best]))
            found_text = f"only {best} fits, {times[best] / free:.2f} of the time without a limit"
            needed += not whole
            if whole:
                alone = min(whole, key=whole.__getitem__)
                gain = whole[alone] / times[best]
                most = max(most, gain)
                lines["whole batch"].append((limit / 2**20, 1e3 * whole[alone]))
                found_text = f"{gain:.2f} ({best}; whole: {alone})"
            rows.append(
                ComparisonRow(
                    f"{name}, at most {limit >> 10} KiB: times as fast",
                    "up to 4.54",
                    found_text,
                    BESIDE,
                )
            )
        plots.append(Plot(name, "MiB of workspace", "ms", lines, log=True))
    # Where nothing takes the whole batch there is nothing to be faster than.
    rows.append(
        ComparisonRow(
            "micro-batches",
            "faster",
            f"up to {most:.2f} times as fast; alone under {needed} of {len(rows)} limits",
            BESIDE if needed and most <= 1.0 else holds(most > 1.0),
        )
    )
    return ExperimentResult(
        rows,
        plots,
        samples,
        [*context.skipped("5 x 5, half of the limits"), "cuDNN's kernels: need a card"],
    )


def _convolution(batch: int, channels: int, pixels: int, kernel: int) -> Expr:
    draw = np.random.default_rng(0)
    values = draw.standard_normal((batch, channels, pixels, pixels)).astype(np.float32)
    weights = draw.standard_normal((channels, channels, kernel, kernel)).astype(np.float32)
    x = op.var("x", values.shape, fill=values, device="cpu")
    w = op.var("w", weights.shape, fill=weights, device="cpu")
    return op.conv2d(x, w, padding=kernel // 2)


def _plans(expression: Expr) -> dict[str, Plan]:
    """What is chosen within the limit, and a plan for each kernel that it lets run, by name."""
    found = dict([_named(compile([expression]))])
    for kernel in TABLE.kernels("conv2d", "cpu"):
        choices.fix("conv2d", kernel.name)
        try:
            used, plan = _named(compile([expression]))
        finally:
            choices.unfix("conv2d")
        if used == kernel.name or used.endswith(f"{SLICED}{kernel.name}"):
            found.setdefault(used, plan)
    results = [plan.run()[0].numpy() for plan in found.values()]
    most = np.abs(results[0]).max()
    assert all(np.abs(each - results[0]).max() < _EQUAL * most for each in results)
    return found


def _named(plan: Plan) -> tuple[str, Plan]:
    """A plan by the kernel that its convolution has."""
    rows = plan.explain(time=False).rows
    return next(row.kernel for row in rows if row.op.startswith("conv2d")), plan
