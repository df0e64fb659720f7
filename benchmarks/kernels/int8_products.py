"""Networks with weights of 8 bits beside float32, and their accuracy.

    CALDERA_THREADS=1 python benchmarks/kernels/int8_products.py --write
    CALDERA_THREADS=1 python benchmarks/kernels/int8_products.py --convolutions

Each row of the first table is a dense layer of 2048 x 2048 on some rows, in float32 and in 8 bits,
in Caldera and in ONNX Runtime (its dynamic quantisation). All run in one process and take turns;
times are processor time of the calling thread. The second table has networks trained on
MNIST and CIFAR-10. With `--convolutions`, it prints instead the times of single convolutions and of
ResNet-20, calibrated, beside ONNX Runtime's static quantisation.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

import caldera as cd
from caldera import nn

RESULTS = Path(__file__).parent.parent / "results" / f"int8-{platform.machine()}.md"
SIZE, TURNS, CALLS = 2048, 15, 8


def session(path: Path) -> Callable[[np.ndarray], np.ndarray]:
    """Return ONNX Runtime's prediction of a file, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = made.get_inputs()[0].name
    return lambda x: made.run(None, {name: x})[0]


def milliseconds(call: Callable[[], object]) -> float:
    """The median processor time of several calls."""
    seconds = []
    for _ in range(CALLS):
        began = time.thread_time()
        call()
        seconds.append(time.thread_time() - began)
    return 1e3 * median(seconds)


def product(rows: int, folder: Path) -> str:
    """The row of a dense layer on a number of rows."""
    layers = [nn.Input((SIZE,)), nn.Dense(SIZE)]
    model = cd.NeuralNetwork(layers, loss="mean_squared", batch_size=rows, seed=1)
    plain = cd.onnx.export(model, folder / "plain.onnx")
    quantize_dynamic(plain, folder / "int8.onnx", weight_type=QuantType.QInt8, per_channel=True)
    calls = {
        "float32": model.predict,
        "int8": model.quantise(ends=True).predict,
        "theirs": session(plain),
        "theirs int8": session(folder / "int8.onnx"),
    }
    x = np.random.default_rng(rows).normal(size=(rows, SIZE)).astype("float32")
    return f"| {rows} | " + compared(calls, x)


def compared(calls: dict[str, Callable[[np.ndarray], np.ndarray]], x: np.ndarray) -> str:
    """The cells of a row: times by turns, ratios and the largest error."""
    exact = calls["float32"](x)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-2, TURNS):
        for name, call in calls.items():
            spent = milliseconds(lambda call=call: call(x))
            if turn >= 0:
                times[name].append(spent)
    ratios = [a / b for a, b in zip(times["float32"], times["int8"], strict=True)]
    theirs = [a / b for a, b in zip(times["theirs int8"], times["int8"], strict=True)]
    error = np.abs(calls["int8"](x) - exact).max() / np.abs(exact).max()
    cells = [f"{median(found):.3f}" for found in times.values()]
    cells += [f"{median(found):.1f}" for found in (ratios, theirs)]
    return " | ".join(cells) + f" | {error:.1%} |"


CONVOLUTIONS = ((32, 16), (16, 32), (8, 64), (56, 64), (28, 128), (14, 256), (7, 512))
"""Pixels of a side, and channels."""


def convolutions() -> None:
    """Print the rows of 3 x 3 convolutions of an image and of ResNet-20."""
    for pixels, channels in CONVOLUTIONS:
        layer = nn.Conv2D(channels, 3, padding="same", activation="relu")
        layers = [nn.Input((channels, pixels, pixels)), layer]
        print(f"| {pixels} x {pixels} x {channels} | 1 | {network(layers, 1)}", flush=True)
    for rows in (1, 32):
        print(f"| ResNet-20 | {rows} | {network(nn.models.resnet20(), rows)}", flush=True)


class Samples(CalibrationDataReader):
    """A batch of images for ONNX Runtime's calibration."""

    def __init__(self, path: Path, x: np.ndarray) -> None:
        (given,) = onnxruntime.InferenceSession(path).get_inputs()
        self.batches = iter([{given.name: x}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.batches, None)


def network(layers: list[nn.Layer], rows: int) -> str:
    """The cells of a calibrated network on some images."""
    model = cd.NeuralNetwork(layers, loss="mean_squared", batch_size=rows, seed=1)
    shape = model.signature.inputs[0][0]
    x = np.random.default_rng(rows).random((rows, *shape), dtype="float32")
    small = model.quantise(samples=x, ends=len(layers) == 2)
    with tempfile.TemporaryDirectory() as folder:
        plain = cd.onnx.export(model, Path(folder) / "plain.onnx", batch_size=rows)
        static = Path(folder) / "int8.onnx"
        quantize_static(plain, static, Samples(plain, x), per_channel=True)
        theirs, theirs_int8 = map(session, (plain, static))
    calls = {
        "float32": model.predict,
        "int8": small.predict,
        "theirs": theirs,
        "theirs int8": theirs_int8,
    }
    return compared(calls, x)


def accuracy(name: str, data: Any, layers: list[nn.Layer], *, calibrated: bool) -> str:
    """The row of a network trained on images."""
    model = cd.NeuralNetwork(layers, seed=1, batch_size=128)
    model.fit(data.train, epochs=2, verbose=0)
    samples = data.train.x[:500] if calibrated else None
    found = model.quantise(samples=samples, ends=True, data=data.test).quantisation
    assert found is not None
    before, after = (each["accuracy"] for each in (found.before, found.after))
    steps = "calibrated" if calibrated else "by row"
    change = f"{100 * (after - before):+.2f} points"
    sizes = [nbytes / 1e3 for nbytes in found.nbytes]
    cells = [name, steps, f"{before:.4f}", f"{after:.4f}", change, *(f"{n:,.0f}" for n in sizes)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"replace tables of {RESULTS.name}")
    parser.add_argument("--convolutions", action="store_true", help="measure convolutions")
    arguments = parser.parse_args()
    if arguments.convolutions:
        convolutions()
        return
    tables: tuple[list[str], list[str]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        for rows in (1, 8, 32, 256):
            tables[0].append(product(rows, Path(folder)))
            print(tables[0][-1], flush=True)
    mnist, cifar = cd.data.mnist(), cd.data.cifar10()
    for calibrated in (False, True):
        for name, data, layers in (
            ("784-512-512-10", mnist, nn.models.mlp((1, 28, 28), hidden=(512, 512))),
            ("LeNet-5", mnist, nn.models.lenet5()),
            ("CIFAR-10, 3072-256-256-10", cifar, nn.models.mlp((3, 32, 32), hidden=(256, 256))),
            ("CIFAR-10, LeNet-5", cifar, nn.models.lenet5((3, 32, 32))),
        ):
            tables[1].append(accuracy(name, data, layers, calibrated=calibrated))
            print(tables[1][-1], flush=True)
    if arguments.write:
        written, *others = RESULTS.read_text().split("\n\n## ")
        parts = written.split("\n\n")
        text = "\n\n".join(each for each in parts if each[0] != "|").rstrip()
        products = "| rows | float32 ms | int8 ms | ONNX Runtime float32 ms | ONNX Runtime int8 ms "
        products += "| float32 / int8 | ONNX Runtime int8 / int8 | largest error |"
        networks = "| network | inputs | accuracy | 8 bits | change | kB of weights | 8 bits |"
        for title, lines in zip((products, networks), tables, strict=True):
            line = "|--" + "|--:" * (title.count("|") - 2) + "|"
            text += "\n\n" + "\n".join([title, line, *lines])
        RESULTS.write_text("\n\n## ".join([text, *others]).rstrip() + "\n")


if __name__ == "__main__":
    main()
