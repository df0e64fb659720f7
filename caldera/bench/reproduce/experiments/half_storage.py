"""dMath, section 4.2: weights stored in half precision, computed with in float32."""

from __future__ import annotations

import numpy as np

from caldera import data, nn
from caldera.bench.reproduce.experiment import (
    BESIDE,
    ComparisonRow,
    ExperimentContext,
    ExperimentResult,
    claim,
    holds,
)
from caldera.train.neural_network import NeuralNetwork

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
