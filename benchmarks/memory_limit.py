"""Training steps in half of their memory, beside PyTorch's activation checkpointing.

    python benchmarks/memory_limit.py --networks resnet50:8 gpt:16 --markdown out.md

Each network trains unlimited and with `settings.memory_limit` so that its arena is half as large,
and in PyTorch as it is and with `torch.utils.checkpoint` around each block. All take turns in one
process, and the best turn counts. What PyTorch takes is the growth of the peak resident set of a
process of its own that makes the network and two steps; the same is said of Caldera, where
measuring kernels is a part of it, beside the planned arena.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before NumPy or PyTorch is imported, which read it once.
os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]

import numpy as np

import caldera as cd
from caldera import nn
from caldera.config import settings
from caldera.plan.memory_limit import room_for
from caldera.train.tracking.measure_run import training_step

THREADS = len(os.sched_getaffinity(0))
Step = Callable[[], float]
CONTESTANTS = ("caldera", "caldera half", "torch", "torch checkpoint")
CLASSES, WORDS, CONTEXT, LAYERS, WIDTH, HEADS = 1000, 512, 128, 6, 192, 6
AMPLE = 1 << 42


def batch_of(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up numbers of the right shapes."""
    draw = np.random.default_rng(0)
    if name == "gpt":
        return draw.integers(0, WORDS, (count, CONTEXT)), draw.integers(0, WORDS, (count, CONTEXT))
    images = draw.normal(size=(count, 3, 224, 224)).astype("float32")
    return images, draw.integers(0, CLASSES, count)


# --- Caldera


def caldera_step(name: str, count: int, part: float | None) -> tuple[Step, dict[str, Any]]:
    """A training step, and what is known about its plan."""
    if name == "gpt":
        layers = nn.models.gpt(WORDS, CONTEXT, depth=LAYERS, width=WIDTH, heads=HEADS)
    else:
        layers = nn.models.resnet50()
    optimizer = cd.optim.SGD(0.01, momentum=0.9)
    model = cd.NeuralNetwork(layers, optimizer=optimizer, batch_size=count, seed=0)
    data = batch_of(name, count)
    plan, feeds = training_step(model, data, count)
    begin = time.perf_counter()
    if part is not None:
        with settings.override(memory_limit=AMPLE):
            room = room_for(plan.optimised, plan.device)
        assert room is not None
        limit = AMPLE - room.arena + int(part * plan.arena_bytes)
        with settings.override(memory_limit=limit):
            plan, feeds = training_step(model, data, count)
    steps = plan.schedule.steps
    facts = {
        "arena": plan.arena_bytes, "planning_s": time.perf_counter() - begin,
        "again": sum(step.is_again for step in steps), "steps": len(steps),
    }  # fmt: skip
    loss = model.parameters()[0]

    def step() -> float:
        plan.run(feeds)
        return float(loss.numpy().ravel()[0])

    return step, facts


# --- PyTorch


def torch_step(name: str, count: int, *, checkpointed: bool) -> tuple[Step, dict[str, Any]]:
    """The same network and optimizer; blocks are checkpointed, or not."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    blocks, head, shape = torch_gpt() if name == "gpt" else torch_resnet50()
    parameters = [p for part in (*blocks, head) for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    x, y = (torch.from_numpy(each) for each in batch_of(name, count))
    if name != "gpt":
        x = x.contiguous(memory_format=torch.channels_last)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        h: Any = x
        for number, block in enumerate(blocks):
            # The input needs no gradient: its block is computed as it is.
            h = checkpoint(block, h, use_reentrant=False) if checkpointed and number else block(h)
        loss = torch.nn.functional.cross_entropy(head(h).reshape(-1, shape), y.reshape(-1))
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step, {}


def torch_resnet50() -> tuple[list[Any], Any, int]:
    """The blocks of ResNet-50, its head, and the number of classes."""
    import torch
    from torch import nn as tn

    def conv(a: int, b: int, kernel: int, stride: int = 1) -> list[Any]:
        made = tn.Conv2d(a, b, kernel, stride, kernel // 2, bias=False)
        return [made, tn.BatchNorm2d(b)]

    class Block(tn.Module):
        def __init__(self, given: int, width: int, stride: int) -> None:
            super().__init__()
            wide = 4 * width
            self.body = tn.Sequential(
                *conv(given, width, 1), tn.ReLU(inplace=True), *conv(width, width, 3, stride),
                tn.ReLU(inplace=True), *conv(width, wide, 1),
            )  # fmt: skip
            same = given == wide and stride == 1
            self.skip = tn.Identity() if same else tn.Sequential(*conv(given, wide, 1, stride))

        def forward(self, x: Any) -> Any:
            return torch.relu_(self.body(x) + self.skip(x))

    stem = tn.Sequential(*conv(3, 64, 7, 2), tn.ReLU(inplace=True), tn.MaxPool2d(3, 2, 1))
    blocks: list[Any] = [stem]
    given = 64
    for width, number, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(number):
            blocks.append(Block(given, width, stride if index == 0 else 1))
            given = 4 * width
    head = tn.Sequential(tn.AdaptiveAvgPool2d(1), tn.Flatten(), tn.Linear(given, CLASSES))
    last = torch.channels_last
    return [b.to(memory_format=last) for b in blocks], head, CLASSES


def torch_gpt() -> tuple[list[Any], Any, int]:
    """Pre-norm blocks with causal attention, the head, and the number of words."""
    import torch
    from torch import nn as tn

    class Embedding(tn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = tn.Embedding(WORDS, WIDTH)
            self.places = tn.Parameter(torch.zeros(CONTEXT, WIDTH))

        def forward(self, x: Any) -> Any:
            return self.words(x) + self.places

    class Block(tn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = tn.LayerNorm(WIDTH), tn.LayerNorm(WIDTH)
            self.qkv, self.out = tn.Linear(WIDTH, 3 * WIDTH), tn.Linear(WIDTH, WIDTH)
            hidden = (tn.Linear(WIDTH, 4 * WIDTH), tn.GELU(), tn.Linear(4 * WIDTH, WIDTH))
            self.mlp = tn.Sequential(*hidden)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            parts = self.qkv(self.first(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            seen = tn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(n, t, WIDTH))
            return x + self.mlp(self.second(x))

    head = tn.Sequential(tn.LayerNorm(WIDTH), tn.Linear(WIDTH, WORDS))
    return [Embedding(), *(Block() for _ in range(LAYERS))], head, WORDS


# --- measuring


def make(contestant: str, name: str, count: int) -> tuple[Step, dict[str, Any]]:
    """A contestant's step on a network."""
    if contestant.startswith("torch"):
        return torch_step(name, count, checkpointed="checkpoint" in contestant)
    return caldera_step(name, count, 0.5 if "half" in contestant else None)


def peak_bytes() -> int:
    """The most this process has had resident."""
    # Not getrusage, which begins with what the parent had.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def memory_of(contestant: str, name: str, count: int) -> None:
    """In a process of its own: print by how much a network and two steps raise the peak."""
    if contestant.startswith("torch"):
        import torch  # noqa: F401 - a framework by itself is no part of it
    before = peak_bytes()
    step, _ = make(contestant, name, count)
    step()
    step()
    print(json.dumps(peak_bytes() - before))


def memory(contestant: str, network: str) -> int:
    """What a contestant takes, found by such a process."""
    command = [sys.executable, __file__, "--memory", contestant, "--networks", network]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def measure(network: str, turns: int) -> list[str]:
    """All contestants on a network: rows of a table."""
    name, count = network.split(":")
    made = {each: make(each, name, int(count)) for each in CONTESTANTS}
    times: dict[str, list[float]] = {each: [] for each in CONTESTANTS}
    for turn in range(turns + 1):
        for contestant, (step, _) in made.items():
            begin = time.perf_counter()
            step()
            if turn:
                times[contestant].append(time.perf_counter() - begin)
                print(f"{network} {contestant}: {times[contestant][-1]:.3f} s", flush=True)
    rows = []
    for contestant, (_, facts) in made.items():
        base = "torch" if "torch" in contestant else "caldera"
        best, rss = min(times[contestant]), memory(contestant, network)
        arena = f"{facts['arena'] / 2**20:,.0f}" if facts else ""
        again = f"{facts['again']} of {facts['steps']}" if facts else ""
        plan = f"{facts['planning_s']:.1f}" if facts.get("again") else ""
        rows.append(
            f"| {name}, batch {count} | {contestant} | {best * 1e3:,.0f} | "
            f"{best / min(times[base]):.2f} | {arena} | {rss / 2**20:,.0f} | {again} | {plan} |"
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet50:8", "gpt:16"])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--memory", choices=CONTESTANTS)
    options = parser.parse_args()
    if options.memory:
        name, count = options.networks[0].split(":")
        memory_of(options.memory, name, int(count))
        return
    lines = [
        "| network | | ms a step | to the same without a limit | arena, MiB | "
        "growth of resident set, MiB | steps again | planning, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for network in options.networks:
        lines += measure(network, options.turns)
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
