"""Graphs before and after optimisation: fusion, half precision products, half storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from caldera import data, nn, op
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Plot,
    Samples,
    experiment,
)
from caldera.compiler.lazy import Expr, compile
from caldera.compiler.plan.plan import Plan
from caldera.train.neural_network import NeuralNetwork

CHAIN_SIZES = {
    "cpu": (1 << 12, 1 << 16, 1 << 20, 1 << 22),
    "cuda": (1 << 20, 1 << 22, 1 << 24, 1 << 26),
}
SMALL = 1 << 14
"""Number of values that fit into the L1 cache, where fusion has no advantage."""
_DIFFERENCE, _KERNELS = "difference", "kernels"


def best_times(samples: Samples, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
    """Return the best time of each method over the cases, whose names are numbers.

    >>> best_times({"4": {"ours": [0.5, 0.25]}}, 1e3)
    {'ours': [(4.0, 250.0)]}
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for case, found in samples.items():
        for method, times in found.items():
            if _DIFFERENCE not in method and _KERNELS not in method:
                lines.setdefault(method, []).append((float(case), scale * min(times)))
    return lines


def fusion_findings(samples: Samples) -> Findings:
    """Compare the chain with and without fusion."""
    return {
        "faster": {
            f"{size} numbers": Quantity.speedup(found["before"], found["fused"])
            for size, found in samples.items()
            if int(size) > SMALL
        },
        "equal": {
            f"{size} numbers": Quantity.largest(found[_DIFFERENCE])
            for size, found in samples.items()
        },
        "one-pass": {
            "": Quantity.largest([n for found in samples.values() for n in found[_KERNELS]])
        },
    }


@experiment("fusion", fusion_findings)
def fusion(context: ExperimentContext) -> Measurement:
    """Time a chain of element-wise operations with fusion and without, over sizes."""
    samples, sizes = {}, CHAIN_SIZES[context.device]
    for size in sizes[:3] if context.quick else sizes:
        context.tell(f"{size} numbers")
        x = context.variable(np.linspace(-2, 2, size, dtype=np.float32))
        y = op.sigmoid(op.tanh(x * 0.5 + 1.0) * x - op.exp(-op.square(x)))
        plans = {"before": compile([y], without=["fuse"]), "fused": compile([y])}
        before, fused = (plan.run()[0].numpy() for plan in plans.values())
        samples[str(size)] = {
            **context.in_turns({name: plan.run for name, plan in plans.items()}),
            _DIFFERENCE: [float(np.abs(before - fused).max())],
            _KERNELS: [float(_kernels(plans["fused"]))],
        }
    return Measurement(
        samples,
        [Plot("A chain of eight", "numbers", "us", best_times(samples, 1e6), log=True)],
        context.skipped(f"{sizes[-1]} numbers"),
    )


def _kernels(plan: Plan) -> int:
    return len(plan.explain(time=False).rows)


LAYER_SIZES = {"cpu": (128, 512, 1024), "cuda": (1024, 2048, 4096)}
BATCH = {"cpu": 256, "cuda": 4096}
_FUSING = ("fuse", "epilogue")
METHODS: Mapping[str, Mapping[str, Any]] = {
    "before": {"without": _FUSING},
    "fused": {},
    "half": {"without": _FUSING, "precision": "bfloat16"},
    "both": {"precision": "bfloat16"},
}


def mixed_precision_findings(samples: Samples) -> Findings:
    """Compare each method with the graph before optimisation."""
    sizes = {f"layers of {size}": found for size, found in samples.items()}
    findings: dict[str, dict[str, Quantity]] = {
        f"{method}-faster": {
            case: Quantity.speedup(found["before"], found[method]) for case, found in sizes.items()
        }
        for method in ("fused", "half", "both")
    }
    for method, methods in {"fused": ["fused"], "half": ["half", "both"]}.items():
        findings[f"{method}-equal"] = {
            case: Quantity.largest([n for each in methods for n in found[f"{_DIFFERENCE}, {each}"]])
            for case, found in sizes.items()
        }
    findings["fewer-kernels"] = {
        case: Quantity.exact(found[f"{_KERNELS}, fused"][0] / found[f"{_KERNELS}, before"][0])
        for case, found in sizes.items()
    }
    return findings


@experiment("mixed-precision", mixed_precision_findings)
def mixed_precision(context: ExperimentContext) -> Measurement:
    """Time two dense layers and their gradients, compiled in four ways."""
    samples, sizes = {}, LAYER_SIZES[context.device]
    for size in sizes[:2] if context.quick else sizes:
        context.tell(f"layers of {size}")
        plans = {
            name: compile(_step(context, size), **options) for name, options in METHODS.items()
        }
        values = {name: plan.run()[0].numpy() for name, plan in plans.items()}
        found = context.in_turns({name: plan.run for name, plan in plans.items()})
        largest = float(np.abs(values["before"]).max())
        for name, value in values.items():
            apart = float(np.abs(value - values["before"]).max()) / largest
            found[f"{_DIFFERENCE}, {name}"] = [apart]
            found[f"{_KERNELS}, {name}"] = [float(_kernels(plans[name]))]
        samples[str(size)] = found
    plot = Plot(
        "Two dense layers and their gradients", "units", "ms", best_times(samples, 1e3), log=True
    )
    return Measurement(samples, [plot], context.skipped(f"layers of {sizes[-1]}"))


def _step(context: ExperimentContext, size: int) -> list[Expr]:
    draw = np.random.default_rng(0)

    def made(name: str, *shape: int) -> Expr:
        values = (draw.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32)
        return context.variable(values, name)

    x, w, b = made("x", BATCH[context.device], size), made("w", size, size), made("b", size)
    v = made("v", size, size)
    hidden = op.sigmoid(x @ w + b)
    return [hidden, *op.grad(op.mean(op.square(op.tanh(hidden @ v) - x)), [w, b, v])]


def half_storage_findings(samples: Samples) -> Findings:
    """Compare the accuracies of both storages, seed by seed."""
    found = samples["accuracy"]
    lost = [abs(full - half) for full, half in zip(found["float32"], found["float16"], strict=True)]
    share = samples["bytes"]["float16"][0] / samples["bytes"]["float32"][0]
    return {
        "learned": {"": Quantity.over_seeds(found["float32"])},
        "accuracy": {"": Quantity.over_seeds(lost)},
        "bytes": {"": Quantity.exact(share)},
    }


@experiment("half-storage", half_storage_findings)
def half_storage(context: ExperimentContext) -> Measurement:
    """Evaluate networks with weights stored in half precision and computed with in float32."""
    digits = data.digits()
    epochs, seeds = (6, 2) if context.quick else (20, 5)
    accuracy: dict[str, list[float]] = {"float32": [], "float16": []}
    whole = half = 0
    for seed in range(seeds):
        context.tell(f"seed {seed}")
        layers = nn.models.mlp(digits.shape, hidden=(64,), classes=digits.outputs)
        model = NeuralNetwork(
            layers, optimizer="adam", learning_rate=3e-3, batch_size=32, seed=seed
        )
        model.fit(digits.train, epochs=epochs, verbose=0)
        accuracy["float32"].append(model.evaluate(digits.test)["accuracy"])
        for parameter in model.parameters():
            stored = parameter.numpy().astype(np.float16)
            whole, half = whole + parameter.numpy().nbytes, half + stored.nbytes
            parameter.assign(stored.astype(np.float32))
        accuracy["float16"].append(model.evaluate(digits.test)["accuracy"])
    return Measurement(
        {"accuracy": accuracy, "bytes": {"float32": [float(whole)], "float16": [float(half)]}},
        left_out=[
            *context.skipped(f"epochs after {epochs}, seeds after {seeds}"),
            "GoogLeNet and AlexNet trained on ImageNet",
        ],
    )
