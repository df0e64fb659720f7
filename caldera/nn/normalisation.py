"""Normalisation of values by batch, layer, group or channel, and of weights by their norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caldera import op
from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr
from caldera.core.tensor import as_list, normal, one
from caldera.nn.basic import FunctionLayer, check_counts, register
from caldera.nn.convolution import ConvTranspose2D
from caldera.nn.layer import Layer
from caldera.nn.merging import unit_length
from caldera.nn.tracing import context


@register
@dataclass(eq=False)
class BatchNorm(Layer):
    """Normalise each channel (axis 1) to mean 0 and variance 1, then scale and shift it.

    Scale and shift are learned. While training, mean and variance are computed from the batch, over
    all ranks together, and running averages are kept; the running variance is the unbiased one.
    Evaluation uses the running averages, and so does training where the layer is frozen.

    Args:
        momentum: Weight of a new value in the running averages (PyTorch's meaning and default).
        eps: Number added to the variance.

    >>> from caldera import nn, op
    >>> layer = nn.BatchNorm()
    >>> layer(op.input("x", (5, 3, 28, 28))).shape
    (5, 3, 28, 28)
    >>> [state.name for state in layer.states()]
    ['BatchNorm/running_mean', 'BatchNorm/running_var']
    """

    momentum: float = 0.1
    eps: float = 1e-5

    def __post_init__(self) -> None:
        require(0 <= self.momentum <= 1, "BatchNorm", "0 <= momentum <= 1", self.momentum)

    def build(self, x: Expr) -> None:
        self.require(x.ndim >= 2, "a batch (N, C, ...)", f"shape {x.shape}")
        shape = (x.shape[1],)
        self.weight = self.parameter("weight", shape, one())
        self.bias = self.parameter("bias", shape)
        self.mean = self.state("running_mean", shape)
        self.variance = self.state("running_var", shape, one())

    def forward(self, x: Expr) -> Expr:
        now = context()
        if not now.training or self.frozen:
            return op.batch_norm(x, self.weight, self.bias, self.mean, self.variance, self.eps)
        if now.several_ranks:
            y, mean, variance, count = op.batch_norm_over_ranks(
                x, self.weight, self.bias, eps=self.eps
            )
            unbiased = variance * (count / op.maximum(count - 1.0, 1.0))
        else:
            y, mean, variance = op.batch_norm(x, self.weight, self.bias, eps=self.eps)
            here = math.prod(x.shape) // x.shape[1]
            unbiased = variance * (here / max(here - 1, 1))
        for kept, new in ((self.mean, mean), (self.variance, unbiased)):
            old = now.latest(kept)
            now.update(kept, old + self.momentum * (op.stop_gradient(new) - old))
        return y


def _sizes_along(layer: Layer, x: Expr, axis: int | Sequence[int]) -> list[int]:
    """Return the sizes of a layer's input along these axes, from the first on."""
    axes = as_list(axis)
    layer.require(
        all(-x.ndim <= each < x.ndim for each in axes),
        f"an input with the axes {axes}",
        f"shape {x.shape}",
    )
    return [x.shape[each] for each in sorted(each % x.ndim for each in axes)]


@register
@dataclass(eq=False)
class LayerNorm(Layer):
    """Each sample to mean 0 and variance 1 over `axis`, then scaled and shifted.

    Args:
        axis: Axis, or axes, of the statistics.
        eps: Number added to the variance.

    >>> from caldera import nn, op
    >>> nn.LayerNorm()(op.input("x", (5, 10, 64))).shape
    (5, 10, 64)
    """

    axis: int | Sequence[int] = -1
    eps: float = 1e-5

    def build(self, x: Expr) -> None:
        shape = _sizes_along(self, x, self.axis)
        self.weight = self.parameter("weight", shape, one())
        self.bias = self.parameter("bias", shape)

    def forward(self, x: Expr) -> Expr:
        return op.layer_norm(x, self.weight, self.bias, self.axis, self.eps)


@register
@dataclass(eq=False)
class GroupNorm(Layer):
    """Each group of channels of each sample to mean 0 and variance 1, then scaled and shifted.

    >>> from caldera import nn, op
    >>> nn.GroupNorm(4)(op.input("x", (5, 8, 7, 7))).shape
    (5, 8, 7, 7)
    """

    groups: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        check_counts("GroupNorm", groups=self.groups)

    def build(self, x: Expr) -> None:
        self.require(
            x.ndim >= 2 and not x.shape[1] % self.groups,
            f"(N, C, ...) with channels that {self.groups} groups divide",
            f"shape {x.shape}",
        )
        self.weight = self.parameter("weight", (x.shape[1],), one())
        self.bias = self.parameter("bias", (x.shape[1],))

    def forward(self, x: Expr) -> Expr:
        return op.group_norm(x, self.groups, self.weight, self.bias, self.eps)


@register
@dataclass(eq=False)
class InstanceNorm(Layer):
    """Each channel (axis 1) of each sample to mean 0 and variance 1, of sequences and of images.

    With `affine` learned numbers scale and shift each channel. Evaluation does as training does.

    >>> from caldera import nn, op
    >>> nn.InstanceNorm()(op.input("x", (5, 8, 7, 7))).shape
    (5, 8, 7, 7)
    """

    affine: bool = False
    eps: float = 1e-5

    def build(self, x: Expr) -> None:
        self.require(x.ndim >= 3, "(N, C, ...) with at least one axis behind", f"shape {x.shape}")
        if self.affine:
            self.weight = self.parameter("weight", (x.shape[1],), one())
            self.bias = self.parameter("bias", (x.shape[1],))

    def forward(self, x: Expr) -> Expr:
        if not self.affine:
            return op.instance_norm(x, eps=self.eps)
        return op.instance_norm(x, self.weight, self.bias, self.eps)


@register
@dataclass(eq=False)
class RMSNorm(Layer):
    """Each sample divided by its root mean square along `axis`, times a learned scale.

    >>> from caldera import nn, op
    >>> nn.RMSNorm()(op.input("x", (5, 10, 64))).shape
    (5, 10, 64)
    """

    axis: int | Sequence[int] = -1
    eps: float = 1e-6

    def build(self, x: Expr) -> None:
        self.weight = self.parameter("weight", _sizes_along(self, x, self.axis), one())

    def forward(self, x: Expr) -> Expr:
        return op.rms_norm(x, self.weight, self.axis, self.eps)


@register
@dataclass(eq=False)
class LocalResponseNorm(FunctionLayer):
    """x / (k + alpha / size * sum of x^2 over `size` neighbouring channels) ** beta.

    PyTorch's meaning and defaults; AlexNet's paper has k = 2 and does not divide alpha by the size:
    there it is LocalResponseNorm(5, 5e-4, 0.75, 2.0).

    >>> from caldera import nn, op
    >>> nn.LocalResponseNorm(5)(op.input("x", (5, 8, 7, 7))).shape
    (5, 8, 7, 7)
    """

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    function = staticmethod(op.local_response_norm)


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
        own = [each for each in self.inner.variables().values() if each.ndim >= 2]
        self.require(
            len(own) == 1 and own[0] is getattr(self.inner, "weight", None),
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
