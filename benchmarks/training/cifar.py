"""CIFAR-10 with ResNet-20 beside PyTorch: the same weights, batches and schedule.

Images are padded by 4, cropped, mirrored and normalised by one input pipeline that feeds both.
Time is that of all epochs, input included; accuracy is on the 10,000 test images.

    CALDERA_DATA=data python benchmarks/training/cifar.py [--epochs 12] [--accuracy fast] \\
        [--peers torch]
    CALDERA_DATA=folder python benchmarks/training/cifar.py --device cuda --precision bfloat16
"""

from __future__ import annotations

import argparse
import platform

import numpy as np

import caldera as cd
from caldera import data, nn, op, optim
from caldera.bench.timing import Stopwatch
from caldera.bench.translate import to_torch

BATCH, SAMPLES = 128, 50_000
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
STEPS_PER_EPOCH = -(-SAMPLES // BATCH)


def images() -> data.Dataset:
    """CIFAR-10 with the usual augmentation."""
    normalise = data.Normalise(MEAN, STD)
    augmented = [data.Crop(32, padding=4), data.Mirror(), normalise]
    return data.cifar10().transformed(train=augmented, test=normalise)


def schedule(epochs: int) -> optim.OneCycle:
    """One cycle over the whole training."""
    return optim.OneCycle(0.1, steps=epochs * STEPS_PER_EPOCH, rising=0.3)


def network(epochs: int, precision: str | None) -> cd.NeuralNetwork:
    """ResNet-20 with momentum."""
    return cd.NeuralNetwork(
        nn.models.resnet20(input_shape=(3, 32, 32), classes=10),
        loss="cross_entropy",
        optimizer=optim.SGD(schedule(epochs), momentum=0.9, weight_decay=5e-4),
        batch_size=BATCH,
        precision=precision,
    )


def train_caldera(model: cd.NeuralNetwork, cifar: data.Dataset, epochs: int) -> tuple[float, float]:
    """Test accuracy and seconds."""
    start = Stopwatch()
    model.fit(cifar.train, epochs=epochs, verbose=2)
    seconds = start.wall
    return model.evaluate(cifar.test, batch_size=1000)["accuracy"], seconds


def train_torch(
    model: cd.NeuralNetwork, weights: list[np.ndarray], cifar: data.Dataset, epochs: int
) -> tuple[float, float]:
    """The same in PyTorch, channels last, its faster format here, eager."""
    import torch

    torch.set_num_threads(cd.settings.threads)
    device = torch.device(model.device.kernels)
    lower = torch.autocast(device.type, torch.bfloat16, enabled=model.precision == "bfloat16")
    translated = to_torch(model)
    translated.load(weights)
    module = translated.module.to(device, memory_format=torch.channels_last)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    rate = schedule(epochs).rate(op.input("step", (), dtype="float64"))
    loader = data.Loader(cifar.train, BATCH, seed=model.seed)
    step = 0
    start = Stopwatch()
    for epoch in range(epochs):
        total = torch.zeros((), device=device)
        for batch in loader:
            optimizer.param_groups[0]["lr"] = rate.eval(step=float(step)).item()
            x = torch.from_numpy(batch.x).to(device, memory_format=torch.channels_last)
            with lower:
                logits = module(x)
            y = torch.from_numpy(batch.y).to(device)
            loss = torch.nn.functional.cross_entropy(logits.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            step += 1
        mean = total.item() / STEPS_PER_EPOCH
        print(f"torch epoch {epoch + 1}/{epochs}  loss {mean:.4f}", flush=True)
    seconds = start.wall
    module.eval()
    right = 0
    with torch.no_grad():
        for begin in range(0, len(cifar.test), 1000):
            x, y = cifar.test.batch(np.arange(begin, begin + 1000))
            found = module(torch.from_numpy(x).to(device)).argmax(1).cpu().numpy()
            right += int((found == y).sum())
    return right / len(cifar.test), seconds


def main() -> None:
    """Train and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--accuracy", choices=("strict", "fast"), default="strict")
    parser.add_argument("--peers", choices=("torch", "none"), default="torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default=None)
    options = parser.parse_args()
    cd.settings.accuracy = options.accuracy
    cifar = images()
    model = network(options.epochs, options.precision)
    model.to(options.device)
    model.build_for(cifar.test.batch(np.arange(2))[0])
    weights = [each.numpy().copy() for each in model.parameters()]
    place = f"{cd.settings.threads} threads" if options.device == "cpu" else options.device
    print(
        f"ResNet-20, CIFAR-10, {options.epochs} epochs, batch {BATCH}, {platform.machine()}, "
        f"{place}, {options.precision or 'float32'}"
    )
    show(f"Caldera, {options.accuracy}", *train_caldera(model, cifar, options.epochs))
    if options.peers == "torch":
        show("PyTorch, channels last", *train_torch(model, weights, cifar, options.epochs))


def show(name: str, accuracy: float, seconds: float) -> None:
    """One line of the table."""
    print(f"{name:24} {accuracy:.2%} test accuracy  {seconds:7.1f} s", flush=True)


if __name__ == "__main__":
    main()
