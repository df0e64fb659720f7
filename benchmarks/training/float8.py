"""Training in 8-bit floats on a GPU beside bfloat16, and beside PyTorch's `torch._scaled_mm`.

    python benchmarks/training/float8.py [mlp-wide gpt24] [--turns 3] [--spread 1000]

Each contestant runs in a process of its own; they take turns. PyTorch's networks are compiled; its
float8 layers scale by tensor, forward in E4M3 and backward in E5M2, in the layers between the first
and the last. A step's time is the mean of a turn's steps, and the best turn counts. `--spread`
trains so many steps in bfloat16 from three seeds and in float8 from the first, and prints the last
losses.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

WARM, STEPS = 6, 30
WORDS = 50304
CONTESTANTS = ("caldera bfloat16", "caldera float8", "torch bfloat16", "torch float8")
NETWORKS = ("mlp-wide", "gpt24")
LAST = 50
"""Steps whose mean loss counts as the last loss."""


# --- Caldera


def caldera_case(name: str, seed: int = 0) -> Any:
    """The network as a case of the benchmarks."""
    from benchmarks.training.card_transformers import CASES
    from caldera import nn
    from caldera.bench.workloads import TrainingCase
    from caldera.bench.workloads.base import UpdateRule

    if name == "mlp-wide":
        return CASES[name].on("cuda")
    return TrainingCase(
        name,
        layers=lambda: nn.models.gpt(WORDS, context=1024, width=1024, depth=24, heads=16),
        batch=8,
        shape=(1024,),
        classes=WORDS,
        words=WORDS,
        size="large",
        rule=UpdateRule("adamw", 3e-4, weight_decay=0.01),
        attention=True,
        precisions=("bfloat16",),
    ).on("cuda")


def caldera_trainer(name: str, precision: str) -> Callable[[int], list[float]]:
    """A function that trains so many steps and returns their losses."""
    from caldera.bench.frameworks.caldera_tasks import ResidentTrainer

    case = caldera_case(name)
    return ResidentTrainer(case, "float32", case.data(), "cuda", precision).losses


def caldera_seeds(steps: int) -> dict[str, float]:
    """Last losses of a perceptron whose labels are a function of its samples, by seed."""
    import caldera as cd
    from caldera import nn, optim

    generator = np.random.default_rng(0)
    x = generator.normal(size=(16384, 1024)).astype("float32")
    hidden = np.tanh(x @ generator.normal(size=(1024, 64)).astype("float32") / 32)
    y = (hidden @ generator.normal(size=(64, 10)).astype("float32")).argmax(1)
    found = {}
    for precision, seed in (("bfloat16", 0), ("bfloat16", 1), ("bfloat16", 2), ("float8", 0)):
        layers = nn.models.mlp((1024,), hidden=(2048,) * 4, activation="relu", classes=10)
        model = cd.NeuralNetwork(
            layers, optimizer=optim.AdamW(1e-4), precision=precision, seed=seed, device="cuda"
        )
        epochs = -(-steps // 8)
        losses = model.fit(x, y, epochs=epochs, batch_size=2048, verbose=0)["loss"]
        found[f"{precision}, seed {seed}"] = float(np.mean(losses[-max(1, LAST // 8) :]))
    return found


# --- PyTorch


def torch_model(name: str, precision: str) -> Any:
    """The same network in PyTorch, with `torch._scaled_mm` in its inner layers for float8."""
    import torch
    from torch import nn
    from torch.nn import functional

    def scaled(x: Any, dtype: Any) -> tuple[Any, Any]:
        most = torch.finfo(dtype).max
        scale = x.abs().max().float().clamp(min=1e-12) / most
        return (x.float() / scale).clamp(-most, most).to(dtype), scale

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any, weight: Any) -> Any:
            context.save_for_backward(x, weight)
            (a, sa), (b, sb) = scaled(x, torch.float8_e4m3fn), scaled(weight, torch.float8_e4m3fn)
            return torch._scaled_mm(a, b.t(), sa, sb, out_dtype=torch.bfloat16, use_fast_accum=True)

        @staticmethod
        def backward(context: Any, g: Any) -> Any:
            x, weight = context.saved_tensors
            d, sd = scaled(g.contiguous(), torch.float8_e5m2)
            w, sw = scaled(weight, torch.float8_e4m3fn)
            a, sa = scaled(x, torch.float8_e4m3fn)
            of_x = torch._scaled_mm(d, w.t().contiguous().t(), sd, sw, out_dtype=torch.bfloat16)
            of_weight = torch._scaled_mm(
                d.t().contiguous(), a.t().contiguous().t(), sd, sa, out_dtype=torch.bfloat16
            )
            return of_x, of_weight

    class Float8Linear(nn.Linear):
        def forward(self, x: Any) -> Any:
            rows = x.reshape(-1, self.in_features).to(torch.bfloat16)
            found = Product.apply(rows, self.weight.to(torch.bfloat16))
            return found.reshape(*x.shape[:-1], -1) + self.bias.to(torch.bfloat16)

    inner = Float8Linear if precision == "float8" else nn.Linear
    if name == "mlp-wide":
        wide: list[Any] = []
        for _ in range(2):
            wide += [inner(4096, 4096), nn.ReLU()]
        return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), *wide, nn.Linear(4096, 100))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(1024), nn.LayerNorm(1024)
            self.qkv, self.out = inner(1024, 3072), inner(1024, 1024)
            self.up, self.down = inner(1024, 4096), inner(4096, 1024)

        def forward(self, x: Any) -> Any:
            rows, time, width = x.shape
            qkv = self.qkv(self.first(x)).reshape(rows, time, 3, 16, 64).permute(2, 0, 3, 1, 4)
            heads = functional.scaled_dot_product_attention(*qkv, is_causal=True)
            x = x + self.out(heads.transpose(1, 2).reshape(rows, time, width))
            return x + self.down(functional.gelu(self.up(self.second(x)), approximate="tanh"))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(WORDS, 1024), nn.Embedding(1024, 1024)
            self.blocks = nn.Sequential(*[Block() for _ in range(24)])
            self.norm, self.head = nn.LayerNorm(1024), nn.Linear(1024, WORDS)

        def forward(self, x: Any) -> Any:
            places = torch.arange(x.shape[1], device=x.device)
            return self.head(self.norm(self.blocks(self.words(x) + self.places(places))))

    return Gpt()


def torch_trainer(name: str, precision: str) -> Callable[[int], list[float]]:
    """A function that trains so many steps, compiled, and returns their losses."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model = torch_model(name, precision).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=True)
    if name == "mlp-wide":
        x, y = torch.randn(8192, 1024).cuda(), torch.randint(100, (8192,)).cuda()
    else:
        x = torch.randint(WORDS, (8, 1024)).cuda()
        y = x.roll(-1, 1)

    @torch.compile
    def loss_of(x: Any, y: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            found = model(x)
        return functional.cross_entropy(found.flatten(0, -2).float(), y.flatten())

    def train(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            loss = loss_of(x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.cuda.synchronize()
        return [float(each) for each in losses]

    return train


# --- turns


def worker(name: str, contestant: str) -> None:
    """Train for a turn at each line of the input."""
    framework, precision = contestant.split()
    make = caldera_trainer if framework == "caldera" else torch_trainer
    start = time.perf_counter()
    train = make(name, precision)
    train(WARM)
    print(json.dumps({"first": time.perf_counter() - start}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        losses = train(STEPS)
        print(json.dumps({"step": (time.perf_counter() - start) / STEPS, "loss": losses[-1]}))
        sys.stdout.flush()


class Contestant:
    """A process that trains when asked."""

    def __init__(self, name: str, label: str) -> None:
        self.label, self.times, self.loss = label, [], 0.0
        command = [sys.executable, "-m", "benchmarks.training.float8", name, "--worker", label]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.PIPE, text=True
        )
        self.first = self._answer()["first"]

    def _answer(self) -> dict[str, float]:
        for line in self.process.stdout or ():
            if line.startswith("{"):
                return dict(json.loads(line))
        errors = self.process.stderr.read() if self.process.stderr else ""
        raise RuntimeError(f"{self.label}: {errors.strip().splitlines()[-1][:300]}")

    def turn(self) -> None:
        """Train for a turn."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        found = self._answer()
        self.times.append(found["step"])
        self.loss = found["loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--spread", type=int, default=0, help="steps of the comparison of losses")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.networks[0], options.worker)
        return
    for name in options.networks:
        entered = []
        for label in CONTESTANTS:
            try:
                entered.append(Contestant(name, label))
            except RuntimeError as error:
                print(f"{name}: not measured: {error}", flush=True)
        for _ in range(options.turns):
            for each in entered:
                each.turn()
        best = {each.label: min(each.times) for each in entered}
        print(f"\n| {name} | ms a step, best | median | to Caldera's float8 | first steps |")
        print("|---|---|---|---|---|")
        for each in entered:
            ratio = best[each.label] / best.get("caldera float8", best[each.label])
            middle = statistics.median(each.times) * 1e3
            print(
                f"| {each.label} | {best[each.label] * 1e3:.3f} | {middle:.3f} | {ratio:.2f} "
                f"| {each.first:.1f} s |",
                flush=True,
            )
        for each in entered:
            each.process.kill()
    if options.spread:
        for label, loss in caldera_seeds(options.spread).items():
            print(f"loss after {options.spread} steps, {label}: {loss:.5f}", flush=True)


if __name__ == "__main__":
    main()
