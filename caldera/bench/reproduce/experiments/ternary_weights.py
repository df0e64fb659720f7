"""Networks with ternary weights, compared with the same networks in float32."""

from __future__ import annotations

from caldera import data, nn
from caldera.bench.reproduce.criteria import Findings, Quantity
from caldera.bench.reproduce.experiment import (
    ExperimentContext,
    Measurement,
    Samples,
    experiment,
)
from caldera.data import Dataset
from caldera.errors import DataError
from caldera.train.neural_network import NeuralNetwork
from caldera.train.saving.model_file import model_bytes

KINDS = {"float32": nn.Dense, "ternary": nn.TernaryDense}


def ternary_findings(samples: Samples) -> Findings:
    """Compare accuracies seed by seed, and the sizes of the files."""
    found = samples["accuracy"]
    lost = [full - few for full, few in zip(found["float32"], found["ternary"], strict=True)]
    share = samples["bytes"]["ternary"][0] / samples["bytes"]["float32"][0]
    return {
        "learned": {"": Quantity.over_seeds(found["float32"])},
        "accuracy": {"": Quantity.over_seeds(lost)},
        "bytes": {"": Quantity.exact(share)},
    }


@experiment("ternary-weights", ternary_findings)
def ternary_weights(context: ExperimentContext) -> Measurement:
    """Train both networks from several seeds, and evaluate the ternary one with packed weights."""
    digits, missing = _digits()
    epochs, seeds = (2, 2) if context.quick else (6, 4)
    accuracy: dict[str, list[float]] = {kind: [] for kind in KINDS}
    nbytes: dict[str, list[float]] = {}
    for seed in range(seeds):
        for kind, dense in KINDS.items():
            context.tell(f"seed {seed}, {kind}")
            layers = [nn.Input(digits.shape), nn.Flatten()]
            layers += [dense(512, activation="relu") for _ in range(2)]
            model = NeuralNetwork([*layers, dense(digits.outputs)], batch_size=128, seed=seed)
            model.fit(digits.train, epochs=epochs * (10 if missing else 1), verbose=0)
            packed = model.quantise("ternary") if kind == "ternary" else model
            accuracy[kind].append(packed.evaluate(digits.test)["accuracy"])
            nbytes[kind] = [float(len(model_bytes(packed)))]
    left = [*missing, *context.skipped(f"epochs after {epochs}, seeds after {seeds}")]
    left.append("LeNet-5 and VGG-7 of the paper")
    return Measurement({"accuracy": accuracy, "bytes": nbytes}, left_out=left)


def _digits() -> tuple[Dataset, list[str]]:
    """Return MNIST; if it is missing, smaller digits and a note."""
    try:
        return data.mnist(download=False), []
    except DataError:
        return data.digits(), ["MNIST, which is not on this machine"]
