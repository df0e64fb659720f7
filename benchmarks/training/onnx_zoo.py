"""Every network of the zoo, at its published size, to ONNX and back.

    python benchmarks/training/onnx_zoo.py

For each: the size of the file, how long writing it took, the largest difference between Caldera and
onnxruntime, and between Caldera and the model loaded again, both relative to the largest result.
Weights that begin with one number (biases, scales) are set to random ones, so that nothing cancels.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import caldera as cd
from caldera import nn
from caldera.bench.timing import Stopwatch

models = nn.models
ZOO: dict[str, Callable[[], list[nn.Layer]]] = {
    "mlp": models.mlp,
    "lenet5": models.lenet5,
    "alexnet": models.alexnet,
    "vgg16": models.vgg16,
    "googlenet": models.googlenet,
    "inception3": models.inception3,
    "resnet18": models.resnet18,
    "resnet20": models.resnet20,
    "resnet34": models.resnet34,
    "resnet50": models.resnet50,
    "resnet56": models.resnet56,
    "gpt": lambda: models.gpt(65, context=64),
    "lstm_classifier": lambda: models.lstm_classifier(1000, 50, 2, bidirectional=True),
}
LIMIT = 1e-5
SAMPLES = 2


def randomised(model: cd.Model) -> np.random.Generator:
    """Give everything that begins with one number other ones."""
    generator = np.random.default_rng(0)
    for each in (*model.parameters(), *model.states()):
        if np.ptp(each.numpy()) == 0:
            each.assign(each.numpy() + generator.uniform(-0.2, 0.2, each.shape))
    return generator


def difference(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference, relative to the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def measure(name: str, folder: Path) -> tuple[float, float, float, float]:
    """Megabytes, seconds, and the two differences."""
    heads = {"loss": {"main": "cross_entropy"}} if name in ("googlenet", "inception3") else {}
    model = cd.NeuralNetwork(ZOO[name](), **heads)
    generator = randomised(model)
    ((shape, dtype),) = model.signature.inputs
    if dtype == "int64":
        x = generator.integers(0, 65, (SAMPLES, *shape))
    else:
        x = generator.normal(size=(SAMPLES, *shape)).astype(np.float32)
    expected = model.predict(x)
    started = Stopwatch()
    path = cd.onnx.export(model, folder / "network.onnx")
    seconds = started.wall
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x})
    again = cd.onnx.load(path).predict(x)
    megabytes = path.stat().st_size / 1e6
    path.unlink()
    cd.forget_plans()
    return megabytes, seconds, difference(theirs, expected), difference(again, expected)


def main() -> None:
    """Print the table."""
    print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}, {platform.machine()}\n")
    print("| network | file, MB | export, s | onnxruntime differs by | loaded again differs by |")
    print("|---|---|---|---|---|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name in ZOO:
            size, seconds, theirs, again = measure(name, Path(folder))
            worst = max(worst, theirs, again)
            print(
                f"| {name} | {size:.1f} | {seconds:.2f} | {theirs:.1e} | {again:.1e} |", flush=True
            )
    print(f"\nlargest {worst:.1e}, limit {LIMIT:.0e}")
    if worst > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
