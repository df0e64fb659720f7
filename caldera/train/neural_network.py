"""`NeuralNetwork`: the model that is made of a list of layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caldera.lazy import Expr
from caldera.nn.basic import Input, Sequential
from caldera.nn.layer import Layer
from caldera.train.model import Model


class NeuralNetwork(Model):
    """A network made of a list of layers.

    >>> import caldera as cd
    >>> from caldera import nn
    >>> model = cd.NeuralNetwork(
    ...     [nn.Input((8, 8)), nn.Flatten(), nn.Dense(32), nn.Sigmoid(), nn.Dense(10)],
    ...     loss="cross_entropy", optimizer="adam", batch_size=100, epochs=5, learning_rate=1e-3)
    >>> sum(p.size for p in model.parameters())
    2410
    """

    def __init__(self, layers: Sequence[Layer], **settings: Any) -> None:
        super().__init__(**settings)
        self.network = Sequential(list(layers))
        specs = self.input_specs()
        if specs is not None:
            self._trace_once(specs)

    def sequence(self) -> Sequential | None:
        # A subclass may do more than its list of layers, and only its class can make it again.
        return self.network if type(self) is NeuralNetwork else None

    def children(self) -> Iterator[tuple[str, Layer]]:
        return self.network.children()

    def forward(self, *inputs: Expr) -> Any:
        return self.network.forward(*inputs)

    def input_specs(self) -> tuple[tuple[tuple[int, ...], str], ...] | None:
        first = self.network.layers[0] if self.network.layers else None
        if not isinstance(first, Input):
            return None
        return ((tuple(first.shape), first.dtype or str(np.dtype(self.dtype))),)
