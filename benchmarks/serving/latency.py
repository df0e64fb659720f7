"""Time of one prediction of one sample: Caldera, ONNX Runtime and PyTorch, from the same weights.

    python benchmarks/serving/latency.py --torch-python venv/bin/python --write

Each network runs in three processes, one for each framework, which take turns. A turn is the median
of many calls from Python, from a NumPy array to a NumPy array. PyTorch runs in inference mode, on
the network of its own layers that `bench.translate` makes. `--threads` sets the threads of all.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from site import getsitepackages
from statistics import median
from typing import Any

import numpy as np

import caldera as cd
from caldera import nn
from caldera.base.children import PipedChild, thread_variables

RESULTS = Path(__file__).parent.parent / "results" / f"latency-{platform.machine()}.md"
FRAMEWORKS = ("caldera", "onnxruntime", "torch")
TURN_SECONDS, TURNS = 0.4, 9
NETWORKS: dict[str, Callable[[], list[nn.Layer]]] = {
    "MLP 20-64-64-1": lambda: nn.models.mlp((20,), 1, (64, 64)),
    "MLP 784-512-512-10": lambda: nn.models.mlp((784,), 10, (512, 512)),
    "MLP 1024-2048-2048-10": lambda: nn.models.mlp((1024,), 10, (2048, 2048)),
    "LeNet-5": nn.models.lenet5,
    "ResNet-20": nn.models.resnet20,
    "2 x LSTM, 32 steps, 128 units": lambda: [
        nn.Input((32, 64)),
        nn.LSTM(128, return_sequences=True),
        nn.LSTM(128),
        nn.Dense(10),
    ],
    "GPT block, 64 x 256": lambda: [nn.Input((64, 256)), nn.TransformerBlock(heads=8, causal=True)],
}


def caller(framework: str, file: str, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """Return the function that predicts with the network of a file."""
    if framework == "caldera":
        return cd.load(file).predict
    if framework == "onnxruntime":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]
    import torch

    from caldera.bench.translate import to_torch

    torch.set_num_threads(threads)
    module = to_torch(cd.load(file)).module.eval()

    def call(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return module(torch.from_numpy(x)).numpy()

    return call


def work(framework: str, file: str, sample: str, threads: int) -> None:
    """Answer each line of input with the median time of a call, in microseconds."""
    call, x = caller(framework, file, threads), np.load(sample)
    found = [call(x) for _ in range(5)]
    for _ in sys.stdin:
        seconds, end = [], time.perf_counter() + TURN_SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            call(x)
            seconds.append(time.perf_counter() - began)
        message = {"us": 1e6 * median(seconds), "result": np.ravel(found[-1])[:8].tolist()}
        print(json.dumps(message), flush=True)


def asked(child: PipedChild) -> dict[str, Any]:
    """Return a child's answer to a turn."""
    child.send(b"turn\n")
    assert child.stdout is not None
    answer: dict[str, Any] = json.loads(child.stdout.readline())
    return answer


def measure(name: str, folder: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """The times of each framework, by turn; all must compute the same."""
    model = cd.NeuralNetwork(NETWORKS[name](), loss="mean_squared", seed=1)
    ((shape, _),) = model.signature.inputs
    sample = folder / "sample.npy"
    np.save(sample, np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32))
    ours = model.save(folder / "network.caldera")
    theirs = cd.onnx.export(model, folder / "network.onnx")
    environment = {
        **os.environ,
        **thread_variables(arguments.threads),
        # The Python with PyTorch may lack the packages that Caldera imports.
        "PYTHONPATH": os.pathsep.join([str(Path(cd.__file__).parent.parent), *getsitepackages()]),
    }
    children = {
        framework: PipedChild(
            [
                arguments.torch_python if framework == "torch" else sys.executable,
                *(__file__, "--worker", framework, "--threads", str(arguments.threads)),
                *("--file", str(theirs if framework == "onnxruntime" else ours)),
                *("--sample", str(sample)),
            ],
            environment,
        )
        for framework in FRAMEWORKS
    }
    try:
        answers = {framework: [asked(child)] for framework, child in children.items()}
        for _ in range(TURNS):
            for framework, child in children.items():
                answers[framework].append(asked(child))
    finally:
        for child in children.values():
            child.end()
    expected = answers["caldera"][0]["result"]
    for framework in FRAMEWORKS[1:]:
        np.testing.assert_allclose(answers[framework][0]["result"], expected, rtol=1e-3, atol=1e-4)
    # The first turn warms up.
    return {framework: [each["us"] for each in found[1:]] for framework, found in answers.items()}


def row(name: str, times: dict[str, list[float]]) -> tuple[float, str]:
    """The smaller ratio of a network, and its row: medians, and the ratios' medians with ranges."""
    ratios = {
        each: sorted(a / b for a, b in zip(times[each], times["caldera"], strict=True))
        for each in FRAMEWORKS[1:]
    }
    cells = [f"{median(times[each]):,.1f}" for each in FRAMEWORKS]
    cells += [
        f"{median(found):.2f} ({found[1]:.2f} to {found[-2]:.2f})" for found in ratios.values()
    ]
    return min(map(median, ratios.values())), f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Measure all networks, or answer as one framework's process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", help="a Python that has PyTorch and Caldera's packages")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--write", action="store_true", help=f"replace the table of {RESULTS.name}")
    for flag in ("--worker", "--file", "--sample"):
        parser.add_argument(flag, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.file, arguments.sample, arguments.threads)
        return
    rows, samples = [], {}
    for name in arguments.networks:
        with tempfile.TemporaryDirectory() as folder:
            samples[name] = measure(name, Path(folder), arguments)
        rows.append(row(name, samples[name]))
        print(rows[-1][1], flush=True)
    # Losses first.
    table = "\n".join(line for _, line in sorted(rows))
    if arguments.write:
        head, mark, _ = RESULTS.read_text().partition("|--|--:|--:|--:|--:|--:|\n")
        RESULTS.write_text(f"{head}{mark}{table}\n")
        RESULTS.with_suffix(".json").write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
