"""Spectral normalisation of a layer's weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caldera import op
from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr, Variable
from caldera.core.tensor import normal
from caldera.nn.basic import check_counts, register
from caldera.nn.convolution import ConvTranspose2D
from caldera.nn.layer import Layer
from caldera.nn.merging import unit_length
from caldera.nn.tracing import context


@register
@dataclass(eq=False)
class SpectralNorm(Layer):
    """A dense layer or convolution whose weight is divided by its largest singular value.

    That value follows from `iterations` of the power method in each call, which start at the
    direction that the last training step ended with (Miyato and others, 2018). After some steps the
    layer is 1-Lipschitz, as the discriminator of a GAN should be.

    >>> from caldera import nn, op
    >>> layer = nn.SpectralNorm(nn.Conv2D(8, 3))
    >>> layer(op.input("x", (5, 3, 28, 28))).shape
    (5, 8, 26, 26)
    """

    inner: Layer
    iterations: int = 1

    def __post_init__(self) -> None:
        require(isinstance(self.inner, Layer), "SpectralNorm", "a layer", shown(self.inner))
        check_counts("SpectralNorm", iterations=self.iterations)

    def build(self, *inputs: Any) -> None:
        self.inner.make_parameters(*inputs)
        weight = getattr(self.inner, "weight", None)
        self.require(
            isinstance(weight, Variable) and weight.ndim >= 2,
            "a layer with one weight, such as nn.Dense or nn.Conv2D",
            type(self.inner).__name__,
        )
        self.direction = self.state("direction", (self._matrix().shape[0],), normal())

    def _matrix(self) -> Expr:
        """Return the weight as a matrix; rows are outputs, or inputs if stored transposed."""
        weight: Any = self.inner.weight  # type: ignore[attr-defined]
        rows = op.moveaxis(weight, 1, 0) if isinstance(self.inner, ConvTranspose2D) else weight
        return op.reshape(rows, (rows.shape[0], -1))

    def forward(self, *inputs: Any) -> Any:
        now, matrix = context(), self._matrix()
        still, left = op.stop_gradient(matrix), now.latest(self.direction)
        for _ in range(self.iterations):
            right = unit_length(op.stop_gradient(left) @ still, 0)
            left = unit_length(still @ right, 0)
        if now.training and not self.frozen:
            now.update(self.direction, left)
        attributes = vars(self.inner)
        weight = attributes["weight"]
        attributes["weight"] = weight / op.sum(left * (matrix @ right))
        try:
            return self.inner(*inputs)
        finally:
            attributes["weight"] = weight
