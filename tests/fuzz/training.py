"""Trains random networks with Caldera on the CPU and with PyTorch, from the same weights, and
compares losses, parameters, running statistics and predictions.

    python -m tests.fuzz.training --count 200 --varied
    python -m tests.fuzz.training --seed 17 --count 1 --dtype float32

The networks are those of `card.py`, less what has other random numbers in PyTorch (dropout,
shuffled samples); Adam stands in for optimizers that it has not, or in another form. In float64 two
correct runs are as good as equal, so a difference of 1e-9 counts; in float32 as much is allowed as
roundings do to Caldera's own run, as for the card, and PyTorch computes in float64 all the same.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from caldera import optim, tensor
from caldera.base.registry import optional_import
from caldera.bench.translate import to_torch
from caldera.errors import CalderaError, ConfigError
from caldera.train.model import Model
from tests.fuzz.card import Outcome, counted, distance, judged, or_error
from tests.fuzz.networks import LARGE, SMALL, RandomNetwork, random_network
from tests.fuzz.settings import Made

TOLERANCE = 1e-9
"""Of a result's length, in float64."""
LEAST = 1e-2
"""The length of a result that is 0 but for roundings, such as a bias before a norm."""


NAMED = {
    "adagrad": ("Adagrad", 1e-2, {}),
    "adamw": ("AdamW", 1e-3, {}),
    "momentum": ("SGD", 1e-2, {"momentum": 0.9}),
    "rmsprop": ("RMSProp", 1e-2, {}),
    "nesterov": ("SGD", 1e-2, {"momentum": 0.9, "nesterov": True}),
    "sgd": ("SGD", 1e-2, {}),
}
"""What optimizers are that a network has by name; Adam stands in for others."""
MISSING = ("LAMB", "LARS", "Lion", "Nadam")
"""Optimizers that PyTorch has not; its NAdam has a schedule of its own for the momentum."""
EPSILON = 1e-4
"""What roots are kept away from 0 by. With the usual 1e-10 Adagrad makes steps of a whole rate of
what decay and roundings leave of a gradient that is 0, and two correct runs differ."""


def comparable(network: RandomNetwork) -> RandomNetwork:
    """The network without what PyTorch has not, or with other random numbers."""
    optimizer = network.optimizer
    if isinstance(optimizer, str):
        name, rate, named = NAMED.get(optimizer, ("Adam", 1e-3, {}))
        optimizer = Made(name, (rate,), dict(named), "optim")
    elif optimizer.name in MISSING:
        optimizer = replace(optimizer, name="Adam")
    if optimizer.name != "SGD":
        optimizer = replace(optimizer, named={**optimizer.named, "epsilon": EPSILON})
    decay = optimizer.named.get("decay")
    if isinstance(decay, Made) and decay.name == "L1":
        # A whole step of the sign of a weight that is 0 but for roundings.
        optimizer = replace(
            optimizer, named={**optimizer.named, "decay": replace(decay, name="L2")}
        )
    layers = tuple(layer for layer in network.layers if layer.name != "Dropout")
    settings = replace(network.settings, shuffle=False, saved=False, evaluated=True)
    return replace(
        network, layers=layers, settings=settings, optimizer=optimizer, precision=None, before=None
    )


class TorchTraining:
    """The same by PyTorch in float64: the model's network, loss and optimizer, from its weights."""

    def __init__(self, network: RandomNetwork, model: Model) -> None:
        self.torch = torch = optional_import("torch", "torch", "fuzz_training")
        self.network = network
        self.translated = to_torch(model)
        self.module = self.translated.module.double()
        # Casting a module leaves what it was given in float32 there; take it whole.
        self.translated.load([np.array(each.numpy()) for each in model.parameters()])
        self.tensors = [each for each in self.module.parameters() if each.requires_grad]
        self.rule = model.optimizer
        self.optimizer = _torch_optimizer(torch, self.rule, self.tensors)
        self.loss = _torch_losses(torch)[network.loss]
        self.steps = 0
        self.waiting: list[Any] = []

    def run(self) -> list[np.ndarray]:
        """Losses, what was learnt and predictions."""
        x, y = (self._tensor(each) for each in self.network.data())
        weights = self.network.options().get("sample_weights", np.ones(self.network.count))
        w, batch = self._tensor(weights), self.network.batch
        losses = []
        for _ in range(self.network.settings.fits * self.network.options()["epochs"]):
            total = 0.0
            for begin in range(0, len(x), batch):
                part = slice(begin, begin + batch)
                total += self._step(x[part], y[part], w[part])
            losses.append(total / float(w.sum()))
        self.module.eval()
        with self.torch.no_grad():
            predicted = self.module(x)
            losses.append(float(self.loss(predicted, y).mean()))
        return [np.array(losses), *self.translated.parameters(), predicted.numpy()]

    def _tensor(self, array: np.ndarray) -> Any:
        tensor = self.torch.from_numpy(array)
        return tensor.double() if tensor.is_floating_point() else tensor

    def _step(self, x: Any, y: Any, w: Any) -> float:
        """Learn from a batch; gives back the sum of its losses."""
        self.module.train()
        self.module.zero_grad()
        total = (self.loss(self.module(x), y) * w).sum()
        total.backward()
        self.waiting.append((float(w.sum()), [each.grad.clone() for each in self.tensors]))
        if len(self.waiting) == self.rule.accumulate:
            self._update()
        return float(total.detach())

    def _rate(self) -> float:
        assert isinstance(self.network.optimizer, Made)
        (rate,) = self.network.optimizer.given
        return float(
            rate.build().rate(tensor(np.float64(self.steps))) if isinstance(rate, Made) else rate
        )

    def _update(self) -> None:
        weight = max(sum(share for share, _ in self.waiting), np.finfo(np.float64).tiny)
        for index, each in enumerate(self.tensors):
            each.grad = sum(found[index] for _, found in self.waiting) / weight
        self.waiting.clear()
        _clip(self.torch, self.rule.clip, [each.grad for each in self.tensors])
        rate = self._rate()
        decay = self.rule.decay
        with self.torch.no_grad():
            for each in self.tensors:
                pull = decay.strength * (each.sign() if isinstance(decay, optim.L1) else each)
                if decay.coupled:
                    each.grad += pull
                else:
                    each -= rate * pull
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.steps += 1


def _clip(torch: Any, clip: optim.Clip | None, gradients: Sequence[Any]) -> None:
    if isinstance(clip, optim.ClipValue):
        for each in gradients:
            each.clamp_(-clip.limit, clip.limit)
    elif isinstance(clip, optim.ClipNorm):
        length = torch.sqrt(sum((each**2).sum() for each in gradients))
        for each in gradients:
            each *= clip.limit / max(float(length), clip.limit)


def _torch_optimizer(torch: Any, rule: Any, tensors: Sequence[Any]) -> Any:
    """PyTorch's optimizer of the same kind; rate and decay are set from outside."""
    kind, made = type(rule), torch.optim
    if kind is optim.SGD:
        return made.SGD(tensors, momentum=rule.momentum, nesterov=rule.nesterov)
    if kind in (optim.Adam, optim.AdamW):
        return made.Adam(tensors, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)
    if kind is optim.Adamax:
        return made.Adamax(tensors, betas=(rule.beta1, rule.beta2), eps=rule.epsilon)
    if kind is optim.RMSProp:
        return made.RMSprop(
            tensors,
            alpha=rule.smoothing,
            eps=rule.epsilon,
            momentum=rule.momentum,
            centered=rule.centered,
        )
    if kind is optim.Adagrad:
        return made.Adagrad(tensors, eps=rule.epsilon)
    if kind is optim.Adadelta:
        return made.Adadelta(tensors, rho=rule.smoothing, eps=rule.epsilon)
    raise ConfigError.build(
        "fuzz_training", expected="an optimizer that PyTorch has", got=kind.__name__
    )


def _torch_losses(torch: Any) -> Mapping[str, Callable[[Any, Any], Any]]:
    """A loss for each sample."""
    f = torch.nn.functional

    def mean(losses: Any) -> Any:
        return losses.flatten(1).mean(1)

    return {
        "cross_entropy": lambda x, y: f.cross_entropy(x, y, reduction="none"),
        "mse": lambda x, y: mean(f.mse_loss(x, y, reduction="none")),
        "mae": lambda x, y: mean(f.l1_loss(x, y, reduction="none")),
        "huber": lambda x, y: mean(f.huber_loss(x, y, reduction="none")),
        "binary_cross_entropy": lambda x, y: mean(
            f.binary_cross_entropy_with_logits(x, y, reduction="none")
        ),
        "hinge": lambda x, y: mean((1 - x * y).clamp(min=0)),
    }


def compared(network: RandomNetwork) -> Outcome:
    """Train a network with both; "refused" if PyTorch has no such layer or optimizer."""
    try:
        training = TorchTraining(network, network.model("cpu"))
    except CalderaError as error:
        return Outcome(network.seed, "refused", " ".join(str(error).split()))
    try:
        there = training.run()
    except ValueError as error:
        # Norms of a single value are 0 here and refused there.
        return Outcome(network.seed, "refused", str(error))
    if network.dtype == "float32":
        return judged(network, "PyTorch", there)
    here = or_error(network, "cpu")
    if isinstance(here, str):
        agreed = not all(np.isfinite(each).all() for each in there)
        return Outcome(network.seed, "agreed" if agreed else "difference", here)
    off = [
        distance(one, other) / (float(np.linalg.norm(one[np.isfinite(one)])) + LEAST)
        for one, other in zip(there, here, strict=True)
    ]
    names = ["losses", *[each.name for each in network.model("cpu").parameters()], "predictions"]
    worst = int(np.argmax(off))
    what = "agreed" if off[worst] <= TOLERANCE else "difference"
    return Outcome(network.seed, what, f"{names[worst]} {off[worst]:.2g}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if any network differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="networks")
    parser.add_argument("--seed", type=int, default=0, help="of the first network")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--large", action="store_true", help="large networks")
    parser.add_argument("--blocks", action="store_true", help="networks of residual blocks")
    parser.add_argument("--varied", action="store_true", help="more layers, trained in more ways")
    options = parser.parse_args(arguments)
    found = []
    for seed in range(options.seed, options.seed + options.count):
        network = random_network(
            seed,
            LARGE if options.large else SMALL,
            alone=True,
            blocks=options.blocks,
            varied=options.varied,
        )
        network = replace(comparable(network), dtype=options.dtype)
        found.append(compared(network))
        print(f"seed {seed}: {found[-1].what} {found[-1].detail}", flush=True)
        if found[-1].what == "difference":
            print(network.code("cpu", {}), flush=True)
    print(counted(found))
    return int(any(each.what == "difference" for each in found))


if __name__ == "__main__":
    sys.exit(main())
