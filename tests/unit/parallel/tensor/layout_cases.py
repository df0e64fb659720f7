"""Random networks in random layouts, to be compared with one process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import caldera as cd
from caldera import dmath as dm
from caldera import nn, optim
from caldera.comm import Communicator
from caldera.parallel import Layouts
from tests.unit.parallel.ranks import Trained, alone, assert_close, trained

CLASSES = 3
OPTIMIZERS: list[Callable[[], Any]] = [
    lambda: optim.SGD(0.1, momentum=0.9),
    lambda: optim.SGD(0.1, clip=optim.ClipNorm(0.05)),
]
"""None that divides by gradients: some are nothing but rounding, as those of a bias before a batch
normalisation."""


@dataclass
class Case:
    """A network, data for it and layouts of its layers."""

    layers: Callable[[], list[nn.Layer]]
    data: tuple[np.ndarray, np.ndarray]
    layouts: Any
    ranks: int
    batch_size: int
    optimizer: Callable[[], Any]

    def model(self) -> cd.NeuralNetwork:
        """A new model, the same each time."""
        return cd.NeuralNetwork(
            self.layers(),
            optimizer=self.optimizer(),
            dtype="float64",
            seed=7,
            batch_size=self.batch_size,
        )

    def on_ranks(self) -> Trained:
        """Trained in these layouts."""

        def strategy(comm: Communicator) -> Layouts:
            return Layouts(self.layouts, communicator=comm)

        return trained(self.ranks, self.model, strategy, self.data, watch=False)

    def check(self) -> None:
        """It equals one process, on every rank to the same bit."""
        found = self.on_ranks()
        assert found.same_on_all_ranks()
        assert_close(found, alone(self.model, self.data), 1e-10)


Plan = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


def _body(rng: np.random.Generator) -> tuple[Plan, str]:
    """Layers by name and arguments, and what they take: "vectors", "images" or "words"."""
    kind = str(rng.choice(["vectors", "images", "words"]))
    plan: Plan = []
    if kind == "images":
        for _ in range(rng.integers(1, 3)):
            plan.append(("Conv2D", (int(rng.integers(2, 6)), 3), {"padding": 1}))
            if rng.random() < 0.5:
                plan.append(("BatchNorm", (), {}))
            plan.append(("ReLU", (), {}))
        if rng.random() < 0.5:
            plan.append(("MaxPool2D", (2,), {}))
        plan.append(("Flatten", (), {}))
    elif kind == "words":
        width = 4 * int(rng.integers(1, 3))
        plan += [("Embedding", (9, width), {}), ("LayerNorm", (), {})]
        if rng.random() < 0.7:
            plan.append(("TransformerBlock", (2,), {"dropout": 0.2}))
        else:
            plan.append(("MultiHeadAttention", (2,), {}))
        plan.append(("GlobalAveragePool", (), {}))
    for _ in range(rng.integers(1, 3)):
        plan.append(("Dense", (int(rng.integers(3, 9)),), {"activation": "tanh"}))
        if rng.random() < 0.4:
            plan.append(("Dropout", (0.3,), {}))
        if rng.random() < 0.3:
            plan.append((str(rng.choice(["BatchNorm", "LayerNorm"])), (), {}))
    return [*plan, ("Dense", (CLASSES,), {})], kind


def _layout(rng: np.random.Generator, ranks: int, name: str) -> Any:
    words: list[Any] = ["rows", "columns", "replicated", "auto", dm.Rows(), dm.Columns()]
    words += [dm.Axis(1), dm.Replicated(), dm.Blocks(rows=2), dm.Grid(1, ranks)]
    words += [dm.BlockCyclic(1, grid=(ranks,)), dm.Rows(ranks=rng.permutation(ranks).tolist())]
    if ranks == 4:
        words += [dm.Grid(2, 2), dm.Grid(2)]
    if name in ("Dense", "Conv2D"):
        own = [dm.Rows(), dm.Columns(), dm.Replicated(), dm.Blocks(rows=2, columns=2)]
        for _ in range(4):
            words.append({"weight": own[rng.integers(4)], "output": words[rng.integers(4, 8)]})
        words.append({"bias": dm.Rows(cuts=None)})
    words += [dm.Rows(ranks=[ranks - 1]), dm.Columns(cuts=None, ranks=range(ranks)[::-1])]
    return words[rng.integers(len(words))]


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = np.random.default_rng(seed)
    plan, kind = _body(rng)
    ranks = int(rng.integers(1, 5))
    batch = int(rng.integers(3, 8))
    count = batch + int(rng.integers(0, batch))
    shape = {"vectors": (5,), "images": (2, 4, 4), "words": (5,)}[kind]
    x: np.ndarray = rng.normal(size=(count, *shape))
    if kind == "words":
        x = rng.integers(0, 9, size=(count, *shape))

    def layers() -> list[nn.Layer]:
        first = nn.Input(shape, "int64") if kind == "words" else nn.Input(shape)
        return [first, *(getattr(nn, name)(*given, **named) for name, given, named in plan)]

    layouts: Any = {}
    for number, (name, _, _) in enumerate(plan, 1):
        if rng.random() < 0.6:
            layouts[number] = _layout(rng, ranks, name)
    if not layouts or rng.random() < 0.1:
        layouts = "auto"
    optimizer = OPTIMIZERS[rng.integers(len(OPTIMIZERS))]
    labels = rng.integers(0, CLASSES, count)
    return Case(layers, (x, labels), layouts, ranks, batch, optimizer)
