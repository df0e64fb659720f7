"""Training steps of two checkouts of Caldera, by turns: does a change make training slower?

    git worktree add ../before HEAD~20
    python benchmarks/training/revisions.py ../before . --networks mlp,resnet20 --device cuda

Each checkout trains the same networks on the same random samples through the public `fit`, in a
process of its own. One computes at a time; each turn is as many epochs as fill `--seconds`, of
which the fastest counts. The table has the best step of each checkout, and the median over turns
of their ratio (above 1: the second checkout is slower). Losses after the first epoch must be equal
as far as kernels agree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

NETWORKS: dict[str, tuple[Callable[[Any], list[Any]], tuple[int, ...], int, int, int]] = {
    "mlp": (lambda nn: nn.models.mlp(activation="sigmoid"), (784,), 10, 100, 600),
    "mlp 8 layers": (
        lambda nn: nn.models.mlp(hidden=(528,) * 7, activation="sigmoid"),
        (784,),
        10,
        100,
        200,
    ),
    "mlp wide": (lambda nn: nn.models.mlp((4096,), hidden=(4096,) * 3), (4096,), 10, 8192, 4),
    "lenet5": (lambda nn: nn.models.lenet5((1, 28, 28)), (1, 28, 28), 10, 128, 50),
    "resnet20": (lambda nn: nn.models.resnet20(), (3, 32, 32), 10, 128, 20),
    "resnet50": (lambda nn: nn.models.resnet50(), (3, 224, 224), 1000, 128, 4),
    "googlenet": (lambda nn: nn.models.googlenet(auxiliary=False), (3, 224, 224), 1000, 128, 4),
    "lstm": (
        lambda nn: [
            nn.Input((128,), dtype="int64"),
            nn.Embedding(64, 256),
            nn.LSTM(256, return_sequences=True),
            nn.Dense(64),
        ],
        (128,),
        -64,
        64,
        10,
    ),
    "gpt": (
        lambda nn: nn.models.gpt(128, context=128, width=256, depth=4, heads=4),
        (128,),
        -128,
        16,
        10,
    ),
}
"""By name: layers, shape of a sample, classes (of each word, if negative), batch, batches."""


def train(name: str, device: str, precision: str | None) -> None:
    """Serve one checkout: read seconds to train for, write the times of epochs."""
    import numpy as np

    import caldera as cd
    from caldera import nn

    layers, shape, classes, batch, batches = NETWORKS[name]
    draw = np.random.default_rng(0)
    count = batch * batches
    if classes < 0:
        x = draw.integers(-classes, size=(count, *shape))
        y = draw.integers(-classes, size=(count, *shape))
    else:
        x = draw.normal(size=(count, *shape)).astype("float32")
        y = draw.integers(classes, size=count)
    model = cd.NeuralNetwork(
        layers(nn),
        optimizer="sgd",
        learning_rate=0.01,
        batch_size=batch,
        precision=precision,
        device=device,
        seed=1,
    )

    class Clock(cd.Callback):
        """The time between ends of epochs."""

        def __init__(self) -> None:
            self.seconds: list[float] = []
            self._last: float | None = None

        def epoch_ends(self, run: cd.Run) -> None:
            now = time.perf_counter()
            if self._last is not None:
                self.seconds.append(now - self._last)
            self._last = now

    start = time.perf_counter()
    history = model.fit((x, y), epochs=1, verbose=0)
    print(f"{time.perf_counter() - start:.3f} {history['loss'][-1]:.6g}", flush=True)
    for line in sys.stdin:
        deadline = time.perf_counter() + float(line)
        times: list[float] = []
        while not times or time.perf_counter() < deadline:
            clock = Clock()
            model.fit((x, y), epochs=6, verbose=0, callbacks=[clock])
            times += clock.seconds
        print(min(times) / batches, flush=True)


class Checkout:
    """A process that trains with the code of a folder."""

    def __init__(self, folder: Path, name: str, device: str, precision: str | None) -> None:
        environment = os.environ | {
            "PYTHONPATH": str(folder.resolve()),
            "CALDERA_CACHE": str(folder.resolve() / ".cache" / "revisions"),
        }
        command = [sys.executable, __file__, "--train", name, "--device", device]
        self._process = subprocess.Popen(
            [*command, *(["--precision", precision] if precision else [])],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.turns: list[float] = []
        first = self._line().split()
        self.first_s, self.loss = float(first[0]), first[1]

    def turn(self, seconds: float) -> None:
        """Train for a while, and keep the best time of a step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        self.turns.append(float(self._line()))

    def end(self) -> None:
        """End the process."""
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a checkout ended without an answer; its error is above")
        return line


def compare(folders: list[Path], name: str, options: argparse.Namespace) -> None:
    """Print one row: both checkouts on one network."""
    both = [Checkout(each, name, options.device, options.precision) for each in folders]
    for number in range(options.turns):
        for each in both if number % 2 else both[::-1]:
            each.turn(options.seconds)
    for each in both:
        each.end()
    before, after = both
    ratio = median(new / old for old, new in zip(before.turns, after.turns, strict=True))
    print(
        f"| {name} | {min(before.turns) * 1e6:,.1f} us | {min(after.turns) * 1e6:,.1f} us "
        f"| {ratio:.3f} | {min(after.turns) / min(before.turns):.3f} "
        f"| {before.first_s:.1f} s, {after.first_s:.1f} s | {before.loss}, {after.loss} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, help="two checkouts, the older one first")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.device, options.precision)
        return
    print("| network | before | after | median ratio | best ratio | first epoch | losses |")
    print("|---|---|---|---|---|---|---|")
    for name in options.networks.split(","):
        compare(options.folders, name, options)


if __name__ == "__main__":
    main()
