"""Random networks for `card.py`: from a seed to layers, data and settings, and to code.

Sizes are drawn so that small ones are as likely as large ones, and next to powers of 2, where the
edges of tiles are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any

import numpy as np

from caldera import NeuralNetwork, nn
from caldera.compiler.lazy import Expr
from caldera.core.graph.opdef import OPS
from caldera.core.tensor.dtype import is_float
from caldera.kernels.table import TABLE
from tests.fuzz.kinds import VARIED, WORDS
from tests.fuzz.settings import (
    PLAIN,
    TARGETS,
    Made,
    Settings,
    drawn_optimizer,
    drawn_settings,
    with_dropout,
)

ACTIVATIONS = tuple(name for name in nn.activations if name != "glu")
"""Those that keep the width: `glu` halves it."""
OPTIMIZERS = (
    "adagrad",
    "adam",
    "adamw",
    "lamb",
    "lars",
    "rmsprop",
    "sgd",
    "momentum",
    "nesterov",
)
"""A fixed list: a seed stands for the same network as long as it stays."""
PRECISIONS = (None, None, "tf32", "bfloat16", "float16")
BATCHES = 3
"""In an epoch: the first step runs call by call, later ones may be joined."""
EPOCHS = 2
MOST_WORK = 4e8
"""Multiplications in a forward pass: a CPU has to do the same."""
MOST_NUMBERS = 4e6
"""In the samples of a batch, for the same reason: few multiplications each take NumPy long, too."""


@dataclass(frozen=True)
class Sizes:
    """The largest that is drawn."""

    width: int = 2000
    batch: int = 512
    depth: int = 6
    side: int = 32
    channels: int = 128
    length: int = 24


LARGE = Sizes()

SMALL = Sizes(width=40, batch=9, depth=2, side=7, channels=9, length=4)
"""For a card that the host plays."""


@dataclass(frozen=True)
class RandomNetwork:
    """A network with its data and its settings; `before` is trained before it in the process."""

    seed: int
    layers: tuple[Made, ...]
    batch: int
    results: int
    loss: str
    optimizer: str | Made
    precision: str | None
    before: RandomNetwork | None = None
    settings: Settings = PLAIN
    dtype: str = "float32"

    @property
    def inputs(self) -> int:
        """Of the network."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample."""
        return tuple(self.layers[0].given[0])

    @property
    def words(self) -> bool:
        """Whether samples are whole numbers."""
        return "dtype" in self.layers[0].named

    @property
    def count(self) -> int:
        """Of samples."""
        return BATCHES * self.batch + self.settings.rest

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples and targets."""
        draw, shape = np.random.default_rng(self.seed), (self.count, *self.shape)
        x = (
            draw.integers(0, WORDS, shape)
            if self.words
            else draw.standard_normal(shape, np.float32)
        )
        return x, TARGETS[self.loss].draw(draw, self.count, self.results)

    def options(self) -> dict[str, Any]:
        """What `fit` is given besides."""
        found: dict[str, Any] = {"epochs": EPOCHS, "shuffle": self.settings.shuffle, "verbose": 0}
        if self.settings.weighted:
            found["sample_weights"] = (np.arange(self.count) % 4).astype(np.float32)
        return found

    def model(
        self, device: Any, after: Callable[[int], nn.Layer] | None = None, **more: Any
    ) -> NeuralNetwork:
        """A new model; `after` gives what follows the layer of this number."""
        layers = []
        for index, layer in enumerate(self.layers):
            layers += [layer.build()] if after is None else [layer.build(), after(index)]
        optimizer = self.optimizer
        if isinstance(optimizer, Made):
            optimizer = optimizer.build()
        return NeuralNetwork(
            layers,
            loss=self.loss,
            optimizer=optimizer,
            batch_size=self.batch,
            precision=self.precision,
            seed=self.seed % 1000,
            device=device,
            dtype=self.dtype,
            **more,
        )

    def code(self, device: str, kernels: Mapping[str, str]) -> str:
        """A program that trains it, ops by these kernels where they can be."""
        begin = "import numpy as np\nimport caldera as cd\nfrom caldera import nn, optim\n\n"
        if kernels:
            begin += (
                "from caldera.kernels.tuning.choose import choices\n\n"
                f"for op, kernel in {dict(kernels)}.items():\n"
                '    choices.fix(op, kernel, "cuda", optional=True)\n\n'
            )
        return begin + "\n".join(each._statements(device) for each in (self.before, self) if each)

    def _statements(self, device: str) -> str:
        shape = (self.count, *self.shape)
        samples = f"draw.standard_normal({shape}, np.float32)"
        if self.words:
            samples = f"draw.integers(0, {WORDS}, {shape})"
        targets = TARGETS[self.loss].code.format(count=self.count, results=self.results)
        layers = "".join(f"    {layer},\n" for layer in self.layers)
        options = f"epochs={EPOCHS}, shuffle={self.settings.shuffle}, verbose=0"
        if self.settings.weighted:
            options += f", sample_weights=np.arange({self.count}, dtype=np.float32) % 4"
        place = f"device={device!r}" + (f", dtype={self.dtype!r}" * (self.dtype != "float32"))
        fit = f"print(model.fit((x, y), {options})['loss'])\n"
        between = ""
        if self.settings.saved:
            between = f"model = cd.load(model.save('fuzz.caldera')).to({device!r})\n"
        return (
            f"draw = np.random.default_rng({self.seed})\n"
            f"x = {samples}\n"
            f"y = {targets}\n"
            f"model = cd.NeuralNetwork([\n{layers}], loss={self.loss!r}, "
            f"optimizer={self.optimizer!r}, batch_size={self.batch},\n"
            f"    precision={self.precision!r}, seed={self.seed % 1000}, {place})\n"
            f"{between.join([fit] * self.settings.fits)}"
        )


@nn.register
@dataclass(eq=False)
class LayerRounding(nn.Layer):
    """Changes each number of a sample by a rounding, up or down; its gradient is changed alike."""

    step: float
    signs: Sequence[int]

    def forward(self, x: Expr, *mask: Expr) -> Any:
        """x with changes that are the same for all samples; whole numbers stay as they are."""
        if is_float(x.dtype):
            signs = np.random.default_rng(self.signs).integers(0, 2, x.shape[1:]) * 2 - 1
            x = x * (1 + self.step * signs).astype(np.float32)
        return (x, *mask) if mask else x


class Drawn:
    """Draws layers, and counts what they are of work for a sample."""

    def __init__(self, seed: int, sizes: Sizes) -> None:
        self.random = Random(seed)
        self.sizes = sizes
        self.work = 0.0

    def size(self, most: int, least: int = 1) -> int:
        """Anything between the two, on a scale of powers."""
        found = least * (most / least) ** self.random.random()
        if self.random.random() < 0.3:
            found = 2 ** round(np.log2(found)) + self.random.choice((-1, 0, 0, 1))
        return max(least, min(most, round(found)))

    def activation(self) -> dict[str, Any]:
        """An activation, or none."""
        return {"activation": self.random.choice((None, *ACTIVATIONS))}

    def depth(self) -> int:
        """How many layers."""
        return self.random.randint(1, self.sizes.depth)

    def dense(self, results: int) -> list[Made]:
        """Dense layers, some of them normalised."""
        features = self.size(self.sizes.width)
        found = [Made("Input", ((features,),))]
        alike = self.random.random() < 0.5
        width = self.size(self.sizes.width)
        for _ in range(self.depth()):
            width = width if alike else self.size(self.sizes.width)
            found.append(Made("Dense", (width,), self.activation()))
            norm = self.random.choice((None, None, None, "BatchNorm", "LayerNorm"))
            found += [Made(norm)] if norm else []
            self.work += features * width
            features = width
        return [*found, Made("Dense", (results,))]

    def image(self, results: int) -> list[Made]:
        """Convolutions of all kinds, norms and pools."""
        channels = self.size(self.sizes.channels)
        side = [self.size(self.sizes.side, 3) for _ in range(2)]
        found = [Made("Input", ((channels, *side),))]
        for _ in range(self.depth()):
            layer, channels, side = self._convolution(channels, side)
            found.append(layer)
            norm = self.random.choice((None, "BatchNorm", "GroupNorm"))
            if norm == "GroupNorm":
                groups = [n for n in range(1, channels + 1) if channels % n == 0]
                found.append(Made(norm, (self.random.choice(groups),)))
            elif norm:
                found.append(Made(norm))
            if min(side) >= 4 and self.random.random() < 0.3:
                found.append(Made(self.random.choice(("MaxPool2D", "AveragePool2D")), (2,)))
                side = [n // 2 for n in side]
        last = self.random.choice(("GlobalAveragePool", "Flatten"))
        return [*found, Made(last), Made("Dense", (results,))]

    def _convolution(self, channels: int, side: list[int]) -> tuple[Made, int, list[int]]:
        kind = self.random.choice(("Conv2D", "Conv2D", "DepthwiseConv2D", "ConvTranspose2D"))
        kernel = self.random.choice([k for k in (1, 2, 3, 5) if k <= min(side)])
        padding = self.random.randint(0, kernel // 2)
        stride = self.random.choice((1, 1, 2))
        named = {"stride": stride, "padding": padding, **self.activation()}
        if kind == "ConvTranspose2D":
            # Those that grow an image are rare enough that it stays small.
            stride = named["stride"] = 1
            after = [n + kernel - 1 - 2 * padding for n in side]
        else:
            after = [(n + 2 * padding - kernel) // stride + 1 for n in side]
        if kind == "DepthwiseConv2D":
            given: tuple[Any, ...] = (kernel,)
            filters, each = channels, 1
        else:
            filters, each = self.size(self.sizes.channels), channels
            given = (filters, kernel)
        self.work += each * filters * kernel**2 * after[0] * after[1]
        return Made(kind, given, named), filters, after

    def sequence(self, results: int) -> list[Made]:
        """Recurrent layers or attention."""
        length, features = self.size(self.sizes.length), self.size(self.sizes.width // 4)
        found = [Made("Input", ((length, features),))]
        kinds = [
            self.random.choice(("LSTM", "GRU", "MultiHeadAttention"))
            for _ in range(self.random.randint(1, min(self.sizes.depth, 3)))
        ]
        for kind in kinds:
            if kind == "MultiHeadAttention":
                heads = [n for n in (1, 2, 3, 4, 8) if features % n == 0]
                causal = {"causal": self.random.random() < 0.5}
                found.append(Made(kind, (self.random.choice(heads),), causal))
                self.work += 4 * length * features**2
                continue
            units = self.size(self.sizes.width // 8)
            both = self.random.random() < 0.3
            named = {"return_sequences": True, "bidirectional": both}
            found.append(Made(kind, (units,), named))
            self.work += 4 * length * units * (features + units) * (1 + both)
            features = units * (1 + both)
        return [*found, Made("Flatten"), Made("Dense", (results,))]

    def blocks(self, results: int) -> list[Made]:
        """Blocks that are added to what they are given, as transformers have them."""
        length, features = self.size(self.sizes.length), self.size(self.sizes.width // 8)
        found = [Made("Input", ((length, features),))]
        for _ in range(self.depth()):
            if self.random.random() < 0.5:
                heads = [n for n in (1, 2, 3, 4, 8) if features % n == 0]
                named = {
                    "causal": self.random.random() < 0.5,
                    "ratio": self.random.choice((0.5, 1.0, 4.0)),
                    **self.activation(),
                }
                found.append(Made("TransformerBlock", (self.random.choice(heads),), named))
                self.work += length * features**2 * (4 + 2 * named["ratio"])
                continue
            width = self.size(self.sizes.width // 4)
            within = [
                Made("Dense", (width,), self.activation()),
                Made("Dense", (features,)),
            ]
            within.insert(self.random.randint(0, 2), Made("LayerNorm"))
            named = {"activation": self.random.choice((None, None, "relu", "gelu"))}
            found.append(Made("Residual", (within,), named))
            self.work += 2 * length * features * width
        last = self.random.choice(("LayerNorm", None))
        found += [Made(last)] if last else []
        return [*found, Made("Flatten"), Made("Dense", (results,))]


KINDS: tuple[Callable[[Drawn, int], list[Made]], ...] = (
    Drawn.dense,
    Drawn.dense,
    Drawn.image,
    Drawn.sequence,
)


def random_network(
    seed: int,
    sizes: Sizes = LARGE,
    *,
    alone: bool = False,
    blocks: bool = False,
    varied: bool = False,
) -> RandomNetwork:
    """The network of a seed.

    `alone`: without another one before it; `blocks`: of residual ones; `varied`: of more kinds of
    layers, losses and optimizers, and trained in more ways.
    """
    drawn = Drawn(seed, sizes)
    random = drawn.random
    results = drawn.size(min(sizes.width, 50), 2)
    kinds = (*KINDS, *VARIED) if varied else (Drawn.blocks,) if blocks else KINDS
    layers = (kinds[0] if len(kinds) == 1 else random.choice(kinds))(drawn, results)
    most = min(MOST_WORK / max(drawn.work, 1), MOST_NUMBERS / prod(layers[0].given[0]))
    batch = min(drawn.size(sizes.batch), max(1, int(most)))
    follows = random.random() < 0.3
    before = None
    if follows and not alone:
        before = random_network(seed + 1_000_003, sizes, alone=True, blocks=blocks, varied=varied)
    network = RandomNetwork(
        seed,
        tuple(layers),
        batch,
        results,
        random.choice(("cross_entropy", "mse")),
        random.choice(OPTIMIZERS),
        random.choice(PRECISIONS),
        before,
    )
    if not varied:
        return network
    return replace(
        network,
        layers=tuple(with_dropout(random, layers)),
        loss=random.choice(tuple(TARGETS)),
        optimizer=drawn_optimizer(random),
        settings=drawn_settings(random, batch),
    )


def drawn_kernels(seed: int) -> dict[str, str]:
    """For each op that has several kernels on a card, which of them serves where it can. What is
    drawn for a seed changes when there are new kernels."""
    TABLE.load("cuda")
    random = Random(f"kernels of {seed}")
    several = {op: names for op in OPS if len(names := TABLE.names(op, "cuda")) > 1}
    return {op: random.choice(names) for op, names in several.items()}


def state_of(model: NeuralNetwork) -> Sequence[np.ndarray]:
    """What a model has learnt."""
    return [np.array(each.numpy(), np.float64) for each in model.parameters()]
