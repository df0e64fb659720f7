"""Graphs before and after optimisation: fusion, half precision products, half storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera import data, nn, op
from caldera.bench.reproduce.experiment import (
    BESIDE,
    LEAST_TURNS,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    Plot,
    Sweep,
    claim,
    faster,
    holds,
)
from caldera.bench.timing import in_turns
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.train.neural_network import NeuralNetwork

CHAIN_SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
SMALL = 1 << 14
"""Numbers that lie in the first cache: there is nothing to gain."""
EQUAL = 1e-5


@claim(
    "fusion",
    "MagmaDNN, figures 5 to 7",
    "Operations that can be performed in one pass over the data are fused, which is faster",
)
def fusion(context: ExperimentContext) -> ExperimentResult:
    """A chain of element-wise operations with fusion and without, over sizes."""
    sweep, rows = Sweep(), []
    for size in CHAIN_SIZES[:3] if context.quick else CHAIN_SIZES:
        context.tell(f"{size} numbers")
        x = op.var("x", (size,), fill=np.linspace(-2, 2, size, dtype=np.float32), device="cpu")
        y = op.sigmoid(op.tanh(x * 0.5 + 1.0) * x - op.exp(-op.square(x)))
        plans = {"before": compile([y], without=["fuse"]), "after": compile([y])}
        apart = float(np.abs(np.subtract(*(p.run()[0].numpy() for p in plans.values()))).max())
        found = timed(plans, max(LEAST_TURNS, context.repeats))
        sweep.add(size, f"{size} numbers: s", found, lambda seconds: 1e6 * seconds)
        gain, verdict = faster(found["after"], found["before"])
        rows += [
            ComparisonRow(
                f"fused, {size} numbers: times as fast",
                "faster",
                gain,
                verdict if size > SMALL else BESIDE,
            ),
            ComparisonRow(
                f"fused, {size} numbers: equal to before",
                "the same",
                f"{apart:.0e}",
                holds(apart < EQUAL),
            ),
        ]
    count = kernels_of(plans)
    rows.append(
        ComparisonRow(
            "kernels of the chain",
            "one pass over the data",
            f"{count['before']}, then {count['after']}",
            holds(count["after"] == 1),
        )
    )
    return ExperimentResult(
        rows,
        [Plot("A chain of eight", "numbers", "us", sweep.lines, log=True)],
        sweep.samples,
        [
            *context.skipped(f"{CHAIN_SIZES[-1]} numbers"),
            "half precision on tensor cores: needs a card",
        ],
    )


def timed(plans: Mapping[str, Plan], repeats: int) -> dict[str, list[float]]:
    """Return the times of some plans, taken in turns."""
    return in_turns({name: plan.run for name, plan in plans.items()}, repeats)


def kernels_of(plans: Mapping[str, Plan]) -> dict[str, int]:
    """Return the number of kernels of each plan."""
    return {name: len(plan.explain(time=False).rows) for name, plan in plans.items()}


LAYER_SIZES = (128, 512, 1024)
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
def mixed_precision(context: ExperimentContext) -> ExperimentResult:
    """Two dense layers and their gradients, compiled four ways."""
    sweep, rows = Sweep(), []
    plans: dict[str, Plan] = {}
    for size in LAYER_SIZES[:2] if context.quick else LAYER_SIZES:
        context.tell(f"layers of {size}")
        plans = {name: compile(_step(size), **options) for name, options in WAYS.items()}
        values = {name: plan.run()[0].numpy() for name, plan in plans.items()}
        found = timed(plans, context.repeats)
        sweep.add(size, f"{size}: s", found, lambda seconds: 1e3 * seconds)
        largest = np.abs(values["before"]).max()
        for name in list(WAYS)[1:]:
            apart = float(np.abs(values[name] - values["before"]).max() / largest)
            gain = min(found["before"]) / min(found[name])
            # Whether half precision is faster depends on the machine: MagmaDNN's has tensor cores.
            rows += [
                ComparisonRow(
                    f"layers of {size}, {name}: equal to before",
                    "near",
                    f"{apart:.0e}",
                    holds(apart < (1e-4 if name == "fused" else NEAR)),
                ),
                ComparisonRow(
                    f"layers of {size}, {name}: times as fast",
                    "1.2 to 2 on tensor cores" if name != "fused" else "faster",
                    f"{gain:.2f}",
                    BESIDE,
                ),
            ]
    count = kernels_of(plans)
    rows.append(
        ComparisonRow(
            "kernels: before, fused, both",
            "fewer after fusing",
            f"{count['before']}, {count['fused']}, {count['both']}",
            holds(count["fused"] < count["before"]),
        )
    )
    return ExperimentResult(
        rows,
        [Plot("Two dense layers and their gradients", "units", "ms", sweep.lines, log=True)],
        sweep.samples,
        [*context.skipped(f"layers of {LAYER_SIZES[-1]}"), "tensor cores: need a card"],
    )


def _step(size: int) -> list[Expr]:
    draw = np.random.default_rng(0)

    def made(name: str, *shape: int) -> Expr:
        values = (draw.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return op.var(name, shape, fill=values, device="cpu")

    x, w, b = made("x", BATCH, size), made("w", size, size), made("b", size)
    v = made("v", size, size)
    hidden = op.sigmoid(x @ w + b)
    return [hidden, *op.grad(op.mean(op.square(op.tanh(hidden @ v) - x)), [w, b, v])]


AT_PAR = 0.005


@claim(
    "half-storage",
    "dMath, section 4.2",
    "Half precision storage with float32 compute is at par in inference",
)
def half_storage(context: ExperimentContext) -> ExperimentResult:
    """Weights stored in half precision and computed with in float32, beside float32 ones."""
    digits = data.digits()
    epochs, seeds = (6, 2) if context.quick else (20, 5)
    found: dict[str, list[float]] = {"float32": [], "float16": [], "bytes saved": []}
    for seed in range(seeds):
        context.tell(f"seed {seed}")
        layers = nn.models.mlp(digits.shape, hidden=(64,), classes=digits.outputs)
        model = NeuralNetwork(
            layers, optimizer="adam", learning_rate=3e-3, batch_size=32, seed=seed
        )
        model.fit(digits.train, epochs=epochs, verbose=0)
        found["float32"].append(model.evaluate(digits.test)["accuracy"])
        whole = half = 0
        for parameter in model.parameters():
            stored = parameter.numpy().astype(np.float16)
            whole, half = whole + parameter.numpy().nbytes, half + stored.nbytes
            parameter.assign(stored.astype(np.float32))
        found["float16"].append(model.evaluate(digits.test)["accuracy"])
        found["bytes saved"].append(1.0 - half / whole)
    full, stored_half = float(np.mean(found["float32"])), float(np.mean(found["float16"]))
    rows = [
        ComparisonRow(
            "accuracy with half precision storage",
            "at par",
            f"{stored_half:.2%} beside {full:.2%}",
            holds(abs(full - stored_half) <= AT_PAR),
        ),
        ComparisonRow(
            "bytes of the weights saved", "half", f"{found['bytes saved'][0]:.0%}", BESIDE
        ),
    ]
    return ExperimentResult(
        rows,
        [],
        found,
        [
            *context.skipped(f"epochs after {epochs}, seeds after {seeds}"),
            "GoogLeNet and AlexNet trained on ImageNet",
        ],
    )
