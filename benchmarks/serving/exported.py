"""Exported networks beside ONNX Runtime and LibTorch, from C++, on one core, by turns.

    taskset -c 1 python benchmarks/serving/exported.py --torch PYTHON --out exported.json

PYTHON is a Python that has PyTorch; without it LibTorch is left out. The C++ program is compiled
here. Its three libraries compute the same network with the same weights; the largest difference,
relative to the largest output, is reported with the lower quartiles of 101 rounds. Times are
processor time of the calling thread, which computes alone in all three.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import caldera as cd
from caldera import nn

HERE = Path(__file__).parent
CLASSES, WORDS, STEPS = 10, 100, 32


def _network(layers: list[Any]) -> cd.NeuralNetwork:
    return cd.NeuralNetwork(layers, loss="mean_squared")


NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], tuple[int, ...]]] = {
    "mlp": (
        lambda: _network(
            [nn.Input((20,)), nn.Dense(64), nn.ReLU(), nn.Dense(64), nn.ReLU(), nn.Dense(1)]
        ),
        (20,),
        (1, 32, 1024),
    ),
    "wide": (
        lambda: _network(
            [nn.Input((784,)), nn.Dense(528), nn.ReLU(), nn.Dense(528), nn.ReLU(), nn.Dense(10)]
        ),
        (784,),
        (1, 32, 1024),
    ),
    "lenet5": (lambda: _network(nn.models.lenet5((1, 28, 28), CLASSES)), (1, 28, 28), (1, 32)),
    "resnet20": (lambda: _network(nn.models.resnet20((3, 32, 32), CLASSES)), (3, 32, 32), (1, 32)),
    "lstm": (
        lambda: _network([nn.Input((20, 8)), nn.LSTM(64), nn.Dense(4)]),
        (20, 8),
        (1, 32),
    ),
    "gpt": (lambda: cd.NeuralNetwork(nn.models.gpt(WORDS, STEPS)), (STEPS,), (1, 4)),
}
"""Networks with the shape of a sample and the numbers of rows."""
IN_TORCH = ("mlp", "wide", "lstm")


def compiled(folder: Path, torch: str) -> Path:
    """Compile the program; return its path."""
    flags: list[str] = []
    if torch:
        code = "import torch, os; print(os.path.dirname(torch.__file__))"
        root = subprocess.check_output([torch, "-c", code], text=True).strip()
        paths = [f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", f"-L{root}/lib"]
        flags = [
            *paths,
            f"-Wl,-rpath,{root}/lib",
            "-DWITH_TORCH",
            "-ltorch",
            "-ltorch_cpu",
            "-lc10",
        ]
    program = folder / "exported"
    command = ["g++", "-std=c++20", "-O2", str(HERE / "exported.cpp"), "-o", str(program)]
    subprocess.run([*command, *flags, "-ldl"], check=True)
    return program


def measure(program: Path, folder: Path, name: str, torch: str) -> list[dict[str, Any]]:
    """Return the times of a network, a row for each number of rows."""
    make, shape, batches = NETWORKS[name]
    model = make()
    weights = {f"{i:03}": each.numpy() for i, each in enumerate(model.parameters())}
    np.savez(folder / "weights.npz", **weights)
    if torch and name in IN_TORCH:
        script, sizes = HERE / "exported_torch.py", ",".join(map(str, shape))
        subprocess.run([torch, str(script), str(folder), name, sizes], check=True)
    cd.export.c(model, folder, name="net", batch=batches)
    kind = "integers" if name == "gpt" else "floats"
    (output,) = list(model.signature.outputs.values())[:1]
    found = []
    for rows in batches:
        cd.onnx.export(model, folder / "net.onnx", batch_size=rows)
        given = [",".join(map(str, (rows, *each))) for each in (shape, output)]
        command = [str(program), str(folder), kind, *given, str(WORDS)]
        capi = Path(onnxruntime.__file__).parent / "capi"
        library = next(capi.glob("libonnxruntime.so.*"))
        done = subprocess.check_output(
            command, text=True, env={**os.environ, "ONNXRUNTIME": str(library)}
        )
        found.append({"network": name, "rows": rows, **json.loads(done)})
        print(found[-1], file=sys.stderr, flush=True)
    return found


def main() -> None:
    """Measure all networks and write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", default="", help="a Python that has PyTorch")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--out", default="")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        program = compiled(Path(name), given.torch)
        for each in given.networks.split(","):
            folder = Path(name) / each
            folder.mkdir()
            rows += measure(program, folder, each, given.torch)
    facts = {"machine": platform.machine(), "onnxruntime": onnxruntime.__version__}
    result = {**facts, "load": load, "rows": rows}
    text = json.dumps(result, indent=1)
    Path(given.out).write_text(text + "\n") if given.out else print(text)


if __name__ == "__main__":
    main()
