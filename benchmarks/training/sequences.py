"""Training steps of one-dimensional convolutions, and text generation, beside PyTorch.

Three networks over sequences: WaveNet (10 gated blocks of 64 channels), a TCN (6 residual blocks)
and a speech network (5 normalised convolutions). Each contestant is a process of its own, and they
take turns. `caldera, rows` is Caldera without the pass that computes sequences as images. `writing`
is a GPT (6 blocks of 384) that writes 200 words after 8, with kept keys and values. `wavenet20` has
20 blocks and 8 sequences of 8,192. With `--device cuda` steps are in bfloat16, samples lie on the
GPU, Caldera's plan is captured, PyTorch is compiled, and the peak of memory is printed as well.

    python benchmarks/training/sequences.py
    python benchmarks/training/sequences.py wavenet writing --threads 1 --cpu-time --rounds 3
    python benchmarks/training/sequences.py wavenet20 --device cuda
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES = {
    "wavenet": (8, 64, 1024),
    "tcn": (16, 32, 512),
    "speech": (16, 64, 1000),
    "wavenet20": (8, 64, 8192),
}
TARGETS = {
    "wavenet": (8, 64, 1024),
    "tcn": (16, 10),
    "speech": (16, 29, 500),
    "wavenet20": (8, 64, 8192),
}
USUAL = ("wavenet", "tcn", "speech", "writing")
CONTESTANTS = ("caldera", "caldera, rows", "torch")
SPEECH = ((96, 11, 2), (96, 11, 1), (96, 11, 1), (128, 5, 1), (128, 5, 1))
"""Channels, length of the kernels and stride of each convolution."""
DEVICE = os.environ.get("SEQUENCES_DEVICE", "cpu")
VOCABULARY, CONTEXT, WIDTH, DEPTH, HEADS, WORDS = 5000, 512, 384, 6, 6, 200


class Caldera:
    """The parts of the networks in Caldera."""

    def __init__(self) -> None:
        from caldera import nn, op

        self.nn, self.op = nn, op
        self.tanh, self.sigmoid, self.relu = op.tanh, op.sigmoid, op.relu
        self.layers: list[Any] = []
        self.peak = 0

    def conv(self, x: Any, filters: int, kernel: int, **how: Any) -> Any:
        """Convolve a sequence, with zeros before it or, if `same`, around it."""
        before = how.get("dilation", 1) * (kernel - 1)
        ends = kernel // 2 if how.pop("same", False) else (before, 0)
        layer = self.nn.Conv1D(filters, kernel, padding=ends, **how)
        self.layers.append(layer)
        return layer(x)

    def norm(self, x: Any) -> Any:
        """Normalise by the statistics of the batch."""
        made = functools.partial(self.op.var, shape=x.shape[1:2], fill=1.0, device=DEVICE)
        scale, shift = made("scale"), made("shift")
        return self.op.batch_norm(x, scale, shift, eps=1e-5)[0]

    def halves(self, x: Any) -> Any:
        """Return both halves of the channels."""
        return self.op.split(x, 2, axis=1)

    def dense(self, x: Any, units: int) -> Any:
        """Apply a dense layer."""
        self.layers.append(self.nn.Dense(units))
        return self.layers[-1](x)

    def step(self, work: str, without: tuple[str, ...]) -> Callable[[], Any]:
        """Return a function that trains for one step."""
        import caldera as cd
        from caldera import optim

        names = ("x", "t")
        given = batch(work)
        if DEVICE == "cpu":
            x, t = (self.op.input(name, given[name].shape) for name in names)
        else:
            x, t = (self.op.var(name, given[name].shape, device=DEVICE) for name in names)
            for variable, name in zip((x, t), names, strict=True):
                variable.assign(given[name])
        loss = self.op.mean((network(work, self, x) - t) ** 2)
        weights = [each for layer in self.layers for each in layer.parameters()]
        for each in weights:
            each.move(DEVICE)
        updates = optim.GradientDescent(0.01).train(loss, weights)
        if DEVICE == "cpu":
            plan = cd.compile([loss, *updates], without=without)
            return lambda: float(plan.run(given)[0].numpy())
        plan = cd.compile([loss, *updates], without=without, precision="bfloat16")
        for _ in range(3):
            plan.run()
        plan.capture()
        pool = plan.device.pool
        pool.reset_peak()

        def step() -> None:
            plan.run()
            plan.device.stream.synchronize()
            self.peak = pool.peak

        return step


class Torch:
    """The same parts in PyTorch; layers are made in the first step."""

    def __init__(self) -> None:
        import torch
        import torch.nn.functional as functional

        self.torch, self.functional = torch, functional
        self.tanh, self.sigmoid, self.relu = torch.tanh, torch.sigmoid, torch.relu
        self.layers: list[Any] = []
        self.at = 0

    def _layer(self, make: Callable[[], Any]) -> Any:
        if self.at == len(self.layers):
            self.layers.append(make())
        self.at += 1
        return self.layers[self.at - 1]

    def conv(self, x: Any, filters: int, kernel: int, **how: Any) -> Any:
        """Convolve a sequence, with zeros before it or, if `same`, around it."""
        if how.pop("same", False):
            how["padding"] = kernel // 2
        elif kernel > 1:
            x = self.functional.pad(x, (how.get("dilation", 1) * (kernel - 1), 0))
        return self._layer(lambda: self.torch.nn.Conv1d(x.shape[1], filters, kernel, **how))(x)

    def norm(self, x: Any) -> Any:
        """Normalise by the statistics of the batch."""
        return self._layer(lambda: self.torch.nn.BatchNorm1d(x.shape[1]))(x)

    def halves(self, x: Any) -> Any:
        """Return both halves of the channels."""
        return x.chunk(2, 1)

    def dense(self, x: Any, units: int) -> Any:
        """Apply a dense layer."""
        return self._layer(lambda: self.torch.nn.Linear(x.shape[1], units))(x)

    def step(self, work: str, without: tuple[str, ...]) -> Callable[[], Any]:
        """Return a function that trains for one step."""
        torch = self.torch
        given = {name: torch.from_numpy(each).to(DEVICE) for name, each in batch(work).items()}
        network(work, self, given["x"].cpu())
        layers = torch.nn.ModuleList(self.layers).to(DEVICE)
        optimizer = torch.optim.SGD(layers.parameters(), 0.01)

        def loss_of(x: Any, target: Any) -> Any:
            self.at = 0
            return ((network(work, self, x) - target) ** 2).mean()

        if DEVICE == "cpu":
            loss_function, half = loss_of, contextlib.nullcontext()
        else:
            loss_function = torch.compile(loss_of)
            half = torch.autocast("cuda", dtype=torch.bfloat16)

        def step() -> float:
            optimizer.zero_grad()
            with half:
                loss = loss_function(given["x"], given["t"])
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    @property
    def peak(self) -> int:
        """Bytes of GPU memory at the peak."""
        return self.torch.cuda.max_memory_allocated()


def batch(work: str) -> dict[str, np.ndarray]:
    """Return the samples and targets of every step."""
    random = np.random.default_rng(0)
    shapes = {"x": SHAPES[work], "t": TARGETS[work]}
    return {name: random.normal(size=each).astype("float32") for name, each in shapes.items()}


def network(work: str, use: Any, x: Any) -> Any:
    """Return the result of a network, built of a framework's parts."""
    if work.startswith("wavenet"):
        x, total = use.conv(x, 64, 1), 0.0
        for i in range(20 if work == "wavenet20" else 10):
            value, gate = use.halves(use.conv(x, 128, 2, dilation=2 ** (i % 10)))
            y = use.tanh(value) * use.sigmoid(gate)
            x, total = x + use.conv(y, 64, 1), use.conv(y, 64, 1) + total
        return use.conv(use.relu(use.conv(use.relu(total + x), 64, 1)), 64, 1)
    if work == "tcn":
        for i in range(6):
            y = use.relu(use.conv(x, 64, 3, dilation=2**i))
            y = use.relu(use.conv(y, 64, 3, dilation=2**i))
            x = use.relu(y + (x if i else use.conv(x, 64, 1)))
        return use.dense(x[:, :, -1], 10)
    for filters, kernel, stride in SPEECH:
        x = use.relu(use.norm(use.conv(x, filters, kernel, stride=stride, bias=False, same=True)))
    return use.conv(x, 29, 1)


def caldera_writing() -> Callable[[], Any]:
    """Return a function that writes a text with Caldera."""
    from caldera import nn

    model = nn.models.GPT(VOCABULARY, CONTEXT, width=WIDTH, depth=DEPTH, heads=HEADS)
    return lambda: model.generate(range(1, 9), WORDS, temperature=0.0)


def torch_writing() -> Callable[[], Any]:
    """Return a function that writes a text with PyTorch, with keys and values in fixed memory."""
    import torch
    from torch import nn
    from torch.nn.functional import gelu, scaled_dot_product_attention

    each = WIDTH // HEADS
    words, places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
    last = nn.LayerNorm(WIDTH)
    sizes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
    blocks = [
        (
            [nn.LayerNorm(WIDTH) for _ in range(2)],
            [nn.Linear(*size) for size in sizes],
            torch.zeros(2, 1, HEADS, CONTEXT, each),
        )
        for _ in range(DEPTH)
    ]

    def scores(text: Any, at: int) -> Any:
        count = text.shape[1]
        x = words(text) + places(torch.arange(at, at + count))
        for (first, second), (project, output, up, down), kept in blocks:
            parts = project(first(x)).chunk(3, -1)
            q, k, v = (part.view(1, count, HEADS, each).transpose(1, 2) for part in parts)
            kept[0, :, :, at : at + count], kept[1, :, :, at : at + count] = k, v
            k, v = kept[:, :, :, : at + count]
            y = scaled_dot_product_attention(q, k, v, is_causal=count > 1)
            x = x + output(y.transpose(1, 2).reshape(1, count, WIDTH))
            x = x + down(gelu(up(second(x))))
        return last(x[:, -1]) @ words.weight.T

    def write() -> None:
        with torch.inference_mode():
            text, at = torch.arange(1, 9)[None], 0
            for _ in range(WORDS):
                found = scores(text, at)
                at += text.shape[1]
                text = found.argmax(-1, keepdim=True)

    return write


def serve(work: str, contestant: str, cpu_time: bool) -> None:
    """Make steps for the seconds in each line of the input, and print their times."""
    if contestant == "torch":
        import torch

        torch.set_num_threads(int(os.environ["CALDERA_THREADS"]))
    use: Any = None
    if work == "writing":
        step = torch_writing() if contestant == "torch" else caldera_writing()
    else:
        use = Torch() if contestant == "torch" else Caldera()
        step = use.step(work, ("sequences",) if contestant == "caldera, rows" else ())
    clock = time.process_time if cpu_time else time.perf_counter
    for line in sys.stdin:
        times, end = [], time.perf_counter() + float(line)
        while time.perf_counter() < end or len(times) < 2:
            start = clock()
            step()
            times.append(clock() - start)
        print(json.dumps([times, 0 if DEVICE == "cpu" else use.peak]), flush=True)


def compare(work: str, options: argparse.Namespace) -> None:
    """Let the contestants take turns, and print a line for each."""
    names = [each for each in CONTESTANTS if work != "writing" or "rows" not in each]
    environment = os.environ | {"CALDERA_THREADS": str(options.threads)}
    environment["SEQUENCES_DEVICE"] = options.device
    processes = [
        subprocess.Popen(
            [options.torch_python if name == "torch" else sys.executable, __file__, work]
            + ["--contestant", name]
            + ["--cpu-time"] * options.cpu_time,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    turns: list[list[list[float]]] = [[] for _ in names]
    peaks = [0] * len(names)
    for turn in range(options.rounds + 1):
        for i, (process, times) in enumerate(zip(processes, turns, strict=True)):
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{options.seconds}\n")
            process.stdin.flush()
            found, peaks[i] = json.loads(process.stdout.readline())
            # The first turn compiles and chooses.
            if turn:
                times.append(found)
    for process in processes:
        process.communicate()
    ours = [min(times) for times in turns[0]]
    for name, times, peak in zip(names, turns, peaks, strict=True):
        ratio = statistics.median(min(each) / own for each, own in zip(times, ours, strict=True))
        best = min(map(min, times)) * 1e3
        memory = f" {peak / 2**20:,.0f} MiB |" if peak else ""
        print(f"| {work} | {name} | {best:,.2f} | {ratio:.2f} |{memory}", flush=True)


def main() -> None:
    """Run the comparisons that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=USUAL)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--cpu-time", action="store_true", help="count processor seconds")
    parser.add_argument("--torch-python", default=sys.executable, help="a Python with PyTorch")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contestant:
        serve(options.works[0], options.contestant, options.cpu_time)
        return
    print("| work | setting | best step in ms | median ratio to Caldera |\n|---|---|---|---|")
    for work in options.works:
        compare(work, options)


if __name__ == "__main__":
    main()
