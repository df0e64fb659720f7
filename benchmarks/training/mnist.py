"""MNIST beside PyTorch: the same weights, the same samples in the same order.

The seed's network (four dense layers, 528 units, sigmoid, batch 100, SGD 0.05, weight decay 0.001):
the loss curves of five epochs must overlay. Then the same sizes with ReLU and Adam, and LeNet-5
with Adam. Times are of whole runs, data in memory, and stand beside the test accuracy; the first
epoch compiles what it needs, so that the best epoch is said as well.

    python benchmarks/training/mnist.py [--epochs 5] [--data FOLDER] [--device cuda] \\
        [--precision tf32]

PyTorch is optional: without it, only Caldera's side is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import platform
from collections.abc import Callable
from typing import Any

import numpy as np

import caldera as cd
from caldera import data, nn, op, optim
from caldera.bench.timing import Stopwatch
from caldera.bench.translate import to_torch

MLP_SCHEDULE = optim.Cosine(1e-3, steps=3000)
LENET_SCHEDULE = optim.Cosine(2e-3, steps=3000, warm_up=100)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def networks() -> dict[str, tuple[Callable[[], list[nn.Layer]], Callable[[], optim.Optimizer]]]:
    """The networks and how each is trained."""
    return {
        "seed's MLP, sigmoid, SGD": (
            lambda: nn.models.mlp((1, 28, 28), activation="sigmoid"),
            lambda: optim.SGD(0.05, weight_decay=0.001),
        ),
        "MLP, ReLU, Adam, cosine": (
            lambda: nn.models.mlp((1, 28, 28), activation="relu"),
            lambda: optim.Adam(MLP_SCHEDULE),
        ),
        "LeNet-5, ReLU, Adam, cosine": (
            lambda: nn.models.lenet5(),
            lambda: optim.Adam(LENET_SCHEDULE),
        ),
    }


class Losses(cd.Callback):
    """The mean loss of each stretch of 100 steps."""

    def __init__(self) -> None:
        self.curve: list[float] = []
        self._seen = 0.0

    def batch_ends(self, run: cd.Run) -> None:
        if run.batch % 100 == 0:
            total = run.loss() * run.batch
            self.curve.append((total - (self._seen if run.batch > 100 else 0.0)) / 100)
            self._seen = total


def train_caldera(model: cd.NeuralNetwork, mnist: data.Dataset, epochs: int) -> dict[str, Any]:
    """Train with `fit`; the curve, the accuracy and the times."""
    losses = Losses()
    start = Stopwatch()
    history = model.fit(mnist.train, epochs=epochs, callbacks=[losses], verbose=0)
    seconds = start.wall
    return {
        "curve": losses.curve,
        "seconds": seconds,
        "epoch": min(history["seconds"]),
        "accuracy": model.evaluate(mnist.test, batch_size=1000)["accuracy"],
    }


def train_torch(
    model: cd.NeuralNetwork, weights: list[np.ndarray], mnist: data.Dataset, epochs: int
) -> dict[str, Any]:
    """The same network from the same weights, on the same batches, in PyTorch."""
    import torch

    device = torch.device(model.device.kernels)
    torch.backends.cuda.matmul.allow_tf32 = model.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = model.precision == "tf32"
    translated = to_torch(model)
    translated.load(weights)
    network = translated.module.to(device)
    if is_scheduled := isinstance(model.optimizer, optim.Adam):
        optimizer: Any = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(network.parameters(), 0.05, weight_decay=0.001, fused=True)
    loader = data.Loader(mnist.train, model.batch_size, seed=model.seed)
    schedule = LENET_SCHEDULE if isinstance(model.network.layers[1], nn.Conv2D) else MLP_SCHEDULE
    rate = schedule.rate(op.input("step", (), dtype="float64"))
    rates = [rate.eval(step=float(s)).item() for s in range(3000)]
    curve, seen, best = [], torch.zeros((), device=device), float("inf")
    step = 0
    start = Stopwatch()
    for _ in range(epochs):
        began = Stopwatch()
        for batch in loader:
            if is_scheduled:
                optimizer.param_groups[0]["lr"] = rates[min(step, 2999)]
            step += 1
            logits = network(torch.from_numpy(batch.x).to(device))
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.y).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += loss.detach()
            if step % 100 == 0:
                curve.append(seen.item() / 100)
                seen.zero_()
        best = min(best, began.wall)
    seconds = start.wall
    with torch.no_grad():
        x, y = mnist.test.batch(np.arange(len(mnist.test)))
        found = network(torch.from_numpy(x).to(device)).argmax(1).cpu().numpy()
    accuracy = float((found == y).mean())
    return {"curve": curve, "seconds": seconds, "epoch": best, "accuracy": accuracy}


def show(name: str, run: dict[str, Any]) -> None:
    """One line."""
    print(
        f"  {name}  accuracy {run['accuracy']:.4f}  {run['seconds']:7.2f} s, "
        f"best epoch {run['epoch']:.3f} s",
        flush=True,
    )


def main() -> None:
    """Run all networks and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--data", default=None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default=None)
    options = parser.parse_args()
    mnist = data.mnist(options.data)
    place = f"{cd.settings.threads} threads" if options.device == "cpu" else options.device
    print(f"{platform.machine()}, {place}, {options.precision or 'float32'}", end="")
    if HAS_TORCH:
        import torch

        torch.set_num_threads(cd.settings.threads)
        print(f", PyTorch {torch.__version__}", end="")
    print(f"; {len(mnist.train)} samples, {options.epochs} epochs, batch 100, seed 0\n")
    for name, (layers, optimizer) in networks().items():
        model = cd.NeuralNetwork(
            layers(), optimizer=optimizer(), batch_size=100, seed=0, precision=options.precision
        )
        model.to(options.device)
        weights = [p.numpy() for p in model.parameters()]
        ours = train_caldera(model, mnist, options.epochs)
        print(f"{name}")
        show("Caldera", ours)
        if HAS_TORCH:
            theirs = train_torch(model, weights, mnist, options.epochs)
            show("PyTorch", theirs)
            apart = np.abs(np.array(ours["curve"]) - np.array(theirs["curve"]))
            print(f"  loss curves (means of 100 steps) at most {apart.max():.2e} apart")
            for label, run in (("Caldera", ours), ("PyTorch", theirs)):
                shown = run["curve"][:: max(1, len(run["curve"]) // 6)]
                print(f"    {label}  " + "  ".join(f"{loss:.5f}" for loss in shown))
        print(flush=True)


if __name__ == "__main__":
    main()
