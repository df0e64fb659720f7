"""Training steps in half of their memory, beside PyTorch's checkpointing and off-loading.

    python benchmarks/training/memory_limit.py --networks resnet50:8 gpt:16 --markdown out.md
    python benchmarks/training/memory_limit.py --device cuda --networks resnet50:256 gpt2:8

Each network trains unlimited and with `settings.memory_limit` so that its arena is half as large,
and in PyTorch as it is, with `torch.utils.checkpoint` around each block, with what backward needs
kept on the host (`save_on_cpu`, on a card), compiled, and compiled with half of the budget for
activations. All take turns in one process, and the best turn counts. What each takes is the growth
of the peak in a process of its own that makes the network and some steps: of the resident set,
where measuring kernels is a part of it, or on a card of what the framework's allocator has given
out in the later steps. On a card both have the batch there, and compute in bfloat16.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before NumPy or PyTorch is imported, which read it once.
os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
os.environ["MKL_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"]

import numpy as np

import caldera as cd
from caldera import nn
from caldera.base.config import settings
from caldera.bench.timing import Stopwatch, in_turns
from caldera.compiler.plan.memory_limit import room_for
from caldera.data import Loader, as_data
from caldera.train.fit import make_steps
from caldera.train.resident import resident

THREADS = len(os.sched_getaffinity(0))
Step = Callable[[], None]
USUAL = ("caldera", "caldera half", "torch", "torch checkpoint")
CONTESTANTS = (*USUAL, "torch offload", "torch compiled", "torch compiled half")
CLASSES = 1000
AMPLE = 1 << 42
TURN_S = 0.1
"""Seconds of a turn, if that is not less than a step."""


@dataclass(frozen=True)
class Gpt:
    """The sizes of a transformer."""

    words: int
    context: int
    layers: int
    width: int
    heads: int


GPTS = {"gpt": Gpt(512, 128, 6, 192, 6), "gpt2": Gpt(50304, 1024, 12, 768, 12)}


def batch_of(name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up numbers of the right shapes."""
    draw = np.random.default_rng(0)
    if name in GPTS:
        sizes = GPTS[name]
        x, y = (draw.integers(0, sizes.words, (count, sizes.context)) for _ in "xy")
        return x, y
    images = draw.normal(size=(count, 3, 224, 224)).astype("float32")
    return images, draw.integers(0, CLASSES, count)


# --- Caldera


def caldera_step(
    name: str, count: int, part: float | None, device: str
) -> tuple[Step, dict[str, Any]]:
    """A training step, and what is known about its plan."""
    if name in GPTS:
        of = GPTS[name]
        layers = nn.models.gpt(
            of.words, of.context, depth=of.layers, width=of.width, heads=of.heads
        )
    else:
        layers = nn.models.resnet50()
    model = cd.NeuralNetwork(
        layers,
        optimizer=cd.optim.SGD(0.01, momentum=0.9),
        batch_size=count,
        seed=0,
        device=device,
        precision="bfloat16" if device != "cpu" else None,
    )
    data = as_data(batch_of(name, count))
    source = resident(model, data)
    loader = Loader(data, count, shuffle=False)
    steps = make_steps(model, data, source=source)
    batch = next(iter(steps.batches(loader)))
    plan = steps.training(batch)
    begin = Stopwatch()
    if part is not None:
        with settings.override(memory_limit=AMPLE):
            room = room_for(plan.optimised, plan.device)
        assert room is not None
        limit = AMPLE - room.arena + int(part * plan.arena_bytes)
        with settings.override(memory_limit=limit):
            steps = make_steps(model, data, source=source)
            plan = steps.training(batch)
    made = plan.schedule.steps
    facts = {
        "arena": plan.arena_bytes,
        "planning_s": begin.wall,
        "again": sum(step.is_again for step in made),
        "steps": len(made),
        "moved": sum(step.transfer is not None for step in made),
    }

    def step() -> None:
        # Others of this process hold more than the limit, which the plan has kept to.
        steps.train(batch)
        model.device.stream.synchronize()

    return step, facts


# --- PyTorch


def torch_step(name: str, count: int, way: str, device: str) -> tuple[Step, dict[str, Any]]:
    """The same network and optimizer, in one of PyTorch's ways."""
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    torch.set_num_threads(THREADS)
    on_card = device != "cpu"
    blocks, head, shape = torch_gpt(GPTS[name]) if name in GPTS else torch_resnet50()
    for part in (*blocks, head):
        part.to(device)
    parameters = [p for part in (*blocks, head) for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.01, momentum=0.9, fused=on_card)
    x, y = (torch.from_numpy(each).to(device) for each in batch_of(name, count))
    if name not in GPTS:
        x = x.contiguous(memory_format=torch.channels_last)

    def loss_of(x: Any, y: Any) -> Any:
        h = x
        for number, block in enumerate(blocks):
            # The input needs no gradient: its block is computed as it is.
            again = "checkpoint" in way and number
            h = checkpoint(block, h, use_reentrant=False) if again else block(h)
        return torch.nn.functional.cross_entropy(head(h).reshape(-1, shape), y.reshape(-1))

    if "compiled" in way:
        import torch._functorch.config as partitioner

        # Read when the first step is compiled, by what recomputes activations to save memory.
        partitioner.activation_memory_budget = 0.5 if "half" in way else 1.0
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of)
    saved = torch.autograd.graph.save_on_cpu(pin_memory=True) if "offload" in way else nullcontext()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=on_card), saved:
            loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        if on_card:
            torch.cuda.synchronize()

    step()
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
                *conv(given, width, 1),
                tn.ReLU(inplace=True),
                *conv(width, width, 3, stride),
                tn.ReLU(inplace=True),
                *conv(width, wide, 1),
            )
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


def torch_gpt(sizes: Gpt) -> tuple[list[Any], Any, int]:
    """Pre-norm blocks with causal attention, the head, and the number of words."""
    import torch
    from torch import nn as tn

    width = sizes.width

    class Embedding(tn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = tn.Embedding(sizes.words, width)
            self.places = tn.Parameter(torch.zeros(sizes.context, width))

        def forward(self, x: Any) -> Any:
            return self.words(x) + self.places

    class Block(tn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = tn.LayerNorm(width), tn.LayerNorm(width)
            self.qkv, self.out = tn.Linear(width, 3 * width), tn.Linear(width, width)
            hidden = (tn.Linear(width, 4 * width), tn.GELU(), tn.Linear(4 * width, width))
            self.mlp = tn.Sequential(*hidden)

        def forward(self, x: Any) -> Any:
            n, t, _ = x.shape
            parts = self.qkv(self.first(x)).view(n, t, 3, sizes.heads, -1).permute(2, 0, 3, 1, 4)
            seen = tn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(n, t, width))
            return x + self.mlp(self.second(x))

    head = tn.Sequential(tn.LayerNorm(width), tn.Linear(width, sizes.words))
    return [Embedding(), *(Block() for _ in range(sizes.layers))], head, sizes.words


# --- measuring


def make(contestant: str, name: str, count: int, device: str) -> tuple[Step, dict[str, Any]]:
    """A contestant's step on a network."""
    if contestant.startswith("torch"):
        return torch_step(name, count, contestant, device)
    return caldera_step(name, count, 0.5 if "half" in contestant else None, device)


def resident_peak() -> int:
    """The most this process has had resident."""
    # Not getrusage, which begins with what the parent had.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def memory_of(contestant: str, name: str, count: int, device: str) -> None:
    """In a process of its own: print by how much a network and its steps raise the peak."""
    if contestant.startswith("torch"):
        import torch
    before = resident_peak()
    step, _ = make(contestant, name, count, device)
    step()
    if device == "cpu":
        step()
        print(json.dumps(resident_peak() - before))
        return
    # Kernels have been measured by now, and steps captured.
    step()
    if contestant.startswith("torch"):
        torch.cuda.reset_peak_memory_stats()
        step()
        print(json.dumps(torch.cuda.max_memory_allocated()))
    else:
        pool = cd.device(device).pool
        pool.reset_peak()
        step()
        print(json.dumps(pool.peak))


def memory(contestant: str, network: str, device: str) -> int:
    """What a contestant takes, found by such a process."""
    command = [
        sys.executable,
        __file__,
        "--memory",
        contestant,
        "--networks",
        network,
        "--device",
        device,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{contestant} on {network}: {done.stderr}")
    return int(json.loads(done.stdout.splitlines()[-1]))


def measure(network: str, options: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """All contestants on a network: rows of a table, and every time."""
    name, count = network.split(":")
    asked = options.contestants
    made = {each: make(each, name, int(count), options.device) for each in asked}
    steps = {contestant: step for contestant, (step, _) in made.items()}
    times = in_turns(steps, options.turns, TURN_S)
    rows, samples = [], {}
    for contestant, (_, facts) in made.items():
        base = "torch" if "torch" in contestant else "caldera"
        best, peak = min(times[contestant]), memory(contestant, network, options.device)
        arena = f"{facts['arena'] / 2**20:,.0f}" if facts else ""
        again = f"{facts['again']}, {facts['moved']} of {facts['steps']}" if facts else ""
        plan = f"{facts['planning_s']:.1f}" if facts.get("again") else ""
        rows.append(
            f"| {name}, batch {count} | {contestant} | {best * 1e3:,.1f} | "
            f"{best / min(times[base]):.2f} | {arena} | {peak / 2**20:,.0f} | {again} | {plan} |"
        )
        samples[contestant] = {"seconds": times[contestant], "peak": peak, **facts}
        print(rows[-1], flush=True)
    return rows, samples


def main() -> None:
    """Measure, print, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["resnet50:8", "gpt:16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=USUAL)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path, help="a file for every time")
    parser.add_argument("--memory", choices=CONTESTANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        name, count = options.networks[0].split(":")
        memory_of(options.memory, name, int(count), options.device)
        return
    kind = "growth of resident set" if options.device == "cpu" else "memory of the card"
    lines = [
        f"| network | | ms a step | to the same without a limit | arena, MiB | {kind}, MiB "
        "| computed again, moved | planning, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    found = {}
    for network in options.networks:
        rows, found[network] = measure(network, options)
        lines += rows
        if options.json:
            options.json.write_text(json.dumps(found))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
