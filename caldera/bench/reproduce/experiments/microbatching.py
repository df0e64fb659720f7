"""The keynote's micro-batching: a convolution whose fast kernels need more memory than allowed."""

from __future__ import annotations

import numpy as np

from caldera import op
from caldera.bench.reproduce.experiment import (
    BESIDE,
    Context,
    Experiment,
    Outcome,
    Plot,
    Row,
    holds,
    in_turns,
    median,
)
from caldera.config import settings
from caldera.kernels.choose import ORACLE, choices
from caldera.kernels.table import TABLE
from caldera.lazy import Expr, compile
from caldera.plan.plan import Plan

SHAPES = {"3 x 3, 64 channels of 28": (64, 64, 28, 3), "5 x 5, 64 channels of 27": (64, 64, 27, 5)}
"""Batch, channels, pixels, kernel: as in VGG, and AlexNet's second layer."""
LIMITS = (1 << 30, 1 << 24, 1 << 22, 1 << 20, 1 << 19, 1 << 18)
SLICED = " slices"
"""In the name of a kernel that takes a batch in parts."""
_EQUAL = 1e-3


def run(context: Context) -> Outcome:
    """The fastest kernel within a limit that takes the whole batch, and that may cut it."""
    shapes = list(SHAPES.items())[: 1 if context.quick else 2]
    limits = LIMITS[::2] if context.quick else LIMITS
    rows, plots, samples, most = [], [], {}, 0.0
    for name, shape in shapes:
        expression = _convolution(*shape)
        lines: dict[str, list[tuple[float, float]]] = {"whole batch": [], "micro-batches": []}
        for limit in limits:
            context.tell(f"{name}, {limit >> 10} KiB")
            with settings.override(workspace_limit=limit):
                plans = _plans(expression)
                found = in_turns({each: plan.run for each, plan in plans.items()}, context.repeats)
            times = {each: median(seconds) for each, seconds in found.items()}
            samples |= {f"{name}, {limit} B, {k}: s": seconds for k, seconds in found.items()}
            whole = {each: taken for each, taken in times.items() if SLICED not in each}
            if len(whole) > 1:
                # The oracle runs only where nothing else can.
                whole.pop(ORACLE, None)
            best, alone = min(times, key=times.__getitem__), min(whole, key=whole.__getitem__)
            gain = times[alone] / times[best]
            most = max(most, gain)
            lines["whole batch"].append((limit / 2**20, 1e3 * times[alone]))
            lines["micro-batches"].append((limit / 2**20, 1e3 * times[best]))
            rows.append(Row(f"{name}, at most {limit >> 10} KiB: times as fast", "up to 4.54",
                            f"{gain:.2f} ({alone}, {best})", BESIDE))  # fmt: skip
        plots.append(Plot(name, "MiB of workspace", "ms", lines, log=True))
    rows.append(Row("micro-batching under the tightest limits", "faster", f"up to {most:.2f}",
                    holds(most > 1.0)))  # fmt: skip
    left = ["5 x 5, half of the limits"] if context.quick else []
    return Outcome(rows, plots, samples, [*left, "cuDNN's kernels: need a card"])


def _convolution(batch: int, channels: int, pixels: int, kernel: int) -> Expr:
    draw = np.random.default_rng(0)
    values = draw.standard_normal((batch, channels, pixels, pixels)).astype(np.float32)
    weights = draw.standard_normal((channels, channels, kernel, kernel)).astype(np.float32)
    x = op.var("x", values.shape, fill=values, device="cpu")
    w = op.var("w", weights.shape, fill=weights, device="cpu")
    return op.conv2d(x, w, padding=kernel // 2)


def _plans(expression: Expr) -> dict[str, Plan]:
    """A plan for each kernel that runs it within the limit, by the kernel's name there."""
    found: dict[str, Plan] = {}
    result = None
    for kernel in TABLE.kernels("conv2d", "cpu"):
        choices.fix("conv2d", kernel.name)
        try:
            plan = compile([expression])
        finally:
            choices.unfix("conv2d")
        used = [row.kernel for row in plan.explain(time=False).rows if row.op.startswith("conv2d")]
        if used and used[0].startswith(kernel.name):
            value = plan.run()[0].numpy()
            result = value if result is None else result
            assert np.allclose(value, result, rtol=_EQUAL, atol=_EQUAL * np.abs(result).max())
            found[used[0]] = plan
    return found


EXPERIMENTS = [
    Experiment("micro-batching", "Keynote, micro-batching", "Under a limit on the workspace, fast "
               "algorithms on parts of a batch beat slow ones on the whole", run),
]  # fmt: skip
