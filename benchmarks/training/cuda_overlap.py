"""Whether a card is kept busy: copies beside steps, and nothing at all between steps.

The same network is trained twice on a device, with the data on the device and fed batch by batch.
For each: milliseconds a step, copies and waits of the host a step. For the fed batches the card's
own clock says when each copy and each step ran, and how much of the copying was hidden behind a
step. On a card all but the first copy of an epoch should be.

    python benchmarks/training/cuda_overlap.py --device cuda
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np

from caldera import nn
from caldera.base.config import settings
from caldera.core.memory import Device
from caldera.core.memory import device as find_device
from caldera.core.memory.interface import StreamSpan, recorded
from caldera.train.callbacks import Callback
from caldera.train.neural_network import NeuralNetwork
from caldera.train.run import Run


class Steps(Callback):
    """Times the last epoch without its first two steps, in which plans are made and captured."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.seconds = 0.0
        self.steps = 0
        self.moved: dict[str, float] = {}

    def batch_ends(self, run: Run) -> None:
        if run.epoch != run.epochs - 1:
            return
        counters = self.device.counters
        if run.batch == 2:
            self.device.stream.synchronize()
            counters.reset()
            self.seconds = -perf_counter()
        if run.batches is not None and run.batch == run.batches - 1:
            waits = counters.waits
            self.device.stream.synchronize()
            self.seconds += perf_counter()
            self.steps = run.batch - 2
            counts = {"h2d": counters.h2d, "d2h": counters.d2h, "d2d": counters.d2d, "waits": waits}
            self.moved = {name: count / self.steps for name, count in counts.items()}


def network(device: Device, width: int) -> NeuralNetwork:
    """Enough work in a step that a copy of its batch can hide behind it."""
    layers = [
        nn.Input((3, 32, 32)),
        nn.Conv2D(width, 3),
        nn.ReLU(),
        nn.Conv2D(width, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dense(10),
    ]
    return NeuralNetwork(layers, device=device, optimizer="sgd", learning_rate=0.01)


def hidden(spans: list[StreamSpan]) -> tuple[float, float]:
    """Seconds of copying on the stream of copies, and how many of them a step ran beside."""
    copies = [span for span in spans if span.stream == "copies"]
    runs = [span for span in spans if span.what == "run"]
    beside = sum(
        max(0.0, min(copy.end, run.end) - max(copy.begin, run.begin))
        for copy in copies
        for run in runs
    )
    return sum(span.end - span.begin for span in copies), beside


def main() -> None:
    """Train both ways and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    device = find_device(options.device)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(options.samples, 3, 32, 32)).astype("float32")
    y = generator.integers(0, 10, options.samples)
    for fraction, name in ((1.0, "on the device"), (0.0, "fed")):
        with settings.override(resident_fraction=fraction, memory_limit=1 << 36):
            watch = Steps(device)
            model = network(device, options.width)
            model.fit((x, y), epochs=3, batch_size=options.batch, callbacks=[watch], verbose=0)
            a_step = " ".join(f"{key} {count:.2f}" for key, count in watch.moved.items())
            print(f"{name:14} {watch.seconds / watch.steps * 1e3:8.3f} ms a step   {a_step} a step")
            if fraction == 0.0:
                with recorded(device) as trace:
                    model.fit((x, y), epochs=1, batch_size=options.batch, verbose=0)
                copying, beside = hidden(trace.spans())
                print(
                    f"copies took {copying * 1e3:.2f} ms in all, {beside * 1e3:.2f} ms of them "
                    f"beside a step ({beside / max(copying, 1e-9):.0%})"
                )


if __name__ == "__main__":
    main()
