"""Random networks of several inputs and outputs, for `ranks.py`: towers that are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from caldera import Model, nn, op
from tests.fuzz.kinds import WORDS
from tests.fuzz.networks import RandomNetwork
from tests.fuzz.settings import TARGETS, Made, drawn_optimizer, drawn_settings

TOWERS: Mapping[str, Callable[[Random, int], tuple[tuple[int, ...], list[Made]]]] = {
    "vector": lambda random, width: (
        (random.randint(1, 5),),
        [Made("Dense", (width,), {"activation": random.choice(("tanh", "gelu", "relu"))})],
    ),
    "normed": lambda random, width: (
        (random.randint(1, 5),),
        [Made("Dense", (width,)), Made(random.choice(("BatchNorm", "LayerNorm")))],
    ),
    "dropped": lambda random, width: (
        (random.randint(1, 5),),
        [
            Made("Dense", (width,), {"activation": "tanh"}),
            Made("Dropout", (0.3,), {"name": f"drop{width}"}),
        ],
    ),
    "image": lambda random, width: (
        (random.randint(1, 3), 5, 5),
        [
            Made("Conv2D", (random.randint(1, 5), 3), {"padding": 1}),
            Made("Flatten"),
            Made("Dense", (width,)),
        ],
    ),
    "sequence": lambda random, width: (
        (random.randint(1, 4), random.randint(1, 4)),
        [Made(random.choice(("LSTM", "GRU", "RNN")), (width,))],
    ),
    "words": lambda random, width: (
        (random.randint(1, 4),),
        [Made("Embedding", (WORDS, 2)), Made("Flatten"), Made("Dense", (width,))],
    ),
}
"""The shape of a sample and the layers that make features of it, by name."""
JOINS: Mapping[str, Callable[[list[Any]], Any]] = {
    "concat": lambda parts: op.concat(parts, axis=1),
    "product": lambda parts: _folded(parts, lambda a, b: a * b),
    "sum": lambda parts: _folded(parts, lambda a, b: a + b),
    "attended": lambda parts: _folded(
        parts, lambda a, b: op.softmax(a) * op.sum(a * b, axis=1, keepdims=True) + b
    ),
}


def _folded(parts: list[Any], join: Callable[[Any, Any], Any]) -> Any:
    whole = parts[0]
    for each in parts[1:]:
        whole = join(whole, each)
    return whole


class Joined(Model):
    """Towers of layers whose features are joined, and a dense layer for each output."""

    def __init__(
        self, towers: list[list[nn.Layer]], join: str, outputs: Mapping[str, int], **options: Any
    ) -> None:
        super().__init__(**options)
        self.join, self.names = join, list(outputs)
        self.towers = [nn.Sequential(layers, name=f"t{i}") for i, layers in enumerate(towers)]
        self.heads = [nn.Dense(units, name=f"h{i}") for i, units in enumerate(outputs.values())]

    def joined(self, *inputs: Any) -> Any:
        """What the outputs are, from one input for each tower."""
        parts = [tower(x) for tower, x in zip(self.towers, inputs, strict=True)]
        whole = JOINS[self.join](parts)
        found = [head(whole) for head in self.heads]
        return dict(zip(self.names, found, strict=True)) if len(found) > 1 else found[0]


class _One(Joined):
    def forward(self, a: Any) -> Any:
        return self.joined(a)


class _Two(Joined):
    def forward(self, a: Any, b: Any) -> Any:
        return self.joined(a, b)


class _Three(Joined):
    def forward(self, a: Any, b: Any, c: Any) -> Any:
        return self.joined(a, b, c)


@dataclass(frozen=True)
class SeveralNetwork(RandomNetwork):
    """A network of towers: `layers` are those of all of them."""

    towers: tuple[tuple[str, tuple[int, ...], tuple[Made, ...]], ...] = ()
    join: str = "concat"
    losses: tuple[str, ...] = ("mse",)

    @property
    def inputs(self) -> int:
        return len(self.towers)

    def data(self) -> tuple[np.ndarray, ...]:  # type: ignore[override]
        draw = np.random.default_rng(self.seed)
        found: list[np.ndarray] = []
        for kind, shape, _ in self.towers:
            whole = (self.count, *shape)
            words = kind == "words"
            found.append(draw.integers(0, WORDS, whole) if words else draw.normal(size=whole))
        targets = (TARGETS[loss].draw(draw, self.count, self.results) for loss in self.losses)
        return (*found, *targets)

    def model(self, device: Any, after: Any = None, **more: Any) -> Any:
        names = [f"y{index}" for index in range(len(self.losses))]
        towers = [[layer.build() for layer in layers] for _, _, layers in self.towers]
        several = len(names) > 1
        if several and more.get("metrics"):
            more["metrics"] = None
        optimizer = self.optimizer.build() if isinstance(self.optimizer, Made) else self.optimizer
        return (_One, _Two, _Three)[len(towers) - 1](
            towers,
            self.join,
            dict.fromkeys(names, self.results),
            loss=dict(zip(names, self.losses, strict=True)) if several else self.losses[0],
            loss_weights={names[0]: 0.3} if several and self.seed % 2 else None,
            optimizer=optimizer,
            batch_size=self.batch,
            seed=self.seed % 1000,
            device=device,
            dtype=self.dtype,
            **more,
        )


def several_network(seed: int) -> SeveralNetwork:
    """The network of a seed."""
    random = Random(f"several of {seed}")
    width, batch = random.choice((2, 3, 4, 6, 8)), random.randint(1, 9)
    towers = []
    for _ in range(random.choice((1, 2, 2, 3))):
        kind = random.choice(tuple(TOWERS))
        shape, layers = TOWERS[kind](random, width)
        towers.append((kind, shape, tuple(layers)))
    known = ("mse", "mae", "huber", "cross_entropy", "binary_cross_entropy")
    losses = tuple(random.choice(known) for _ in range(random.choice((1, 1, 2))))
    return SeveralNetwork(
        seed,
        tuple(layer for _, _, layers in towers for layer in layers),
        batch,
        random.randint(2, 5),
        losses[0],
        drawn_optimizer(random),
        None,
        settings=drawn_settings(random, batch),
        dtype="float64",
        towers=tuple(towers),
        join=random.choice(tuple(JOINS)),
        losses=losses,
    )
