"""dMath, table 1: images a second over ranks, predicted; and half precision storage, measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from caldera import data, nn
from caldera.bench.reproduce.experiment import (
    BESIDE,
    Context,
    Experiment,
    Outcome,
    Plot,
    Row,
    holds,
)
from caldera.nn.layer import Layer
from caldera.planner import plan
from caldera.train.neural_network import NeuralNetwork

RANKS = (1, 2, 4, 8, 16, 32, 64)
SEED: Mapping[str, tuple[int, ...]] = {
    "AlexNet 1024": (479, 940, 1996, 3103, 4198, 5187, 5786),
    "AlexNet 256": (533, 915, 1440, 1702, 2008, 2104, 2271),
    "GoogLeNet 1024": (115, 215, 370, 873, 1498, 2330, 3025),
}
"""Images a second of Expresso on K80 cards, by the number of cards."""
MEMORY = {"AlexNet 1024": 2.29, "GoogLeNet 1024": 5.27}
"""GB of a card, on 16."""
LINK, LATENCY = "56Gb", "3us"
"""InfiniBand FDR: the paper names no link, this is what clusters of K80 cards had."""
_GUESS = 1e12
AT_PAR = 0.005


def _layers(name: str) -> list[Layer]:
    if name.startswith("AlexNet"):
        return nn.models.alexnet(dropout=0.0)
    return nn.models.googlenet(auxiliary=False)


def table(context: Context) -> Outcome:
    """The planner's prediction, with the computing speed that gives the seed's rate on one card."""
    names = [name for name in SEED if not context.quick or name.startswith("AlexNet 1024")]
    rows, plots, samples = [], [], {}
    for name in names:
        context.tell(name)
        model = NeuralNetwork(_layers(name), batch_size=int(name.split()[-1]))
        predict = _predictor(model)
        first = predict(_GUESS, 2)[0][0]
        rates, memory = predict(_GUESS * SEED[name][0] / first, RANKS[-1])
        samples[f"{name}: predicted images/s"] = rates
        for ranks, seed, rate in zip(RANKS, SEED[name], rates, strict=True):
            rows.append(Row(f"{name}, {ranks} ranks, images/s", str(seed), f"{rate:.0f}", BESIDE,
                            predicted=True))  # fmt: skip
        if name in MEMORY:
            place = RANKS.index(16)
            rows.append(Row(f"{name}, GB of each of 16 ranks", f"{MEMORY[name]}",
                            f"{memory[place] / 1e9:.2f}", BESIDE, predicted=True))  # fmt: skip
        gain, theirs = rates[-1] / rates[0], SEED[name][-1] / SEED[name][0]
        rows.append(Row(f"{name}, 64 ranks are times as fast as one", f"{theirs:.1f} or more",
                        f"{gain:.1f}", holds(gain > 0.8 * theirs),
                        predicted=True))  # fmt: skip
        lines = {
            "seed": [(float(r), float(v)) for r, v in zip(RANKS, SEED[name], strict=True)],
            "predicted": [(float(r), v) for r, v in zip(RANKS, rates, strict=True)],
        }
        plots.append(Plot(name, "ranks", "images/s", lines))
    left = [f"{each}" for each in SEED if each not in names]
    return Outcome(rows, plots, samples, left)


def _predictor(model: NeuralNetwork) -> Callable[[float, int], tuple[list[float], list[float]]]:
    def predict(speed: float, ranks: int) -> tuple[list[float], list[float]]:
        found = plan(model, ranks=ranks, link=LINK, latency=LATENCY, speed=f"{speed / 1e9:.3f}G",
                     memory="12GB")  # fmt: skip
        best = [ranking.best.prediction for ranking in found.series()]
        return [each.rate for each in best], [each.memory for each in best]

    return predict


def half_storage(context: Context) -> Outcome:
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
        Row("accuracy with half precision storage", "at par",
            f"{stored_half:.2%} beside {full:.2%}", holds(abs(full - stored_half) <= AT_PAR)),
        Row("bytes of the weights saved", "half", f"{found['bytes saved'][0]:.0%}", BESIDE),
    ]  # fmt: skip
    left = [f"epochs after {epochs}, seeds after {seeds}"] if context.quick else []
    return Outcome(rows, [], found, [*left, "GoogLeNet and AlexNet trained on ImageNet"])


EXPERIMENTS = [
    Experiment("dmath-table", "dMath, table 1", "AlexNet and GoogLeNet scale to 64 cards with one "
               "batch", table),
    Experiment("half-storage", "dMath, section 4.2", "Half precision storage with float32 compute "
               "is at par in inference", half_storage),
]  # fmt: skip
