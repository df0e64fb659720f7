"""A layer for each activation function."""

from __future__ import annotations

import math
from dataclasses import dataclass

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import constant
from caldera.nn.basic import FunctionLayer, register
from caldera.nn.layer import Layer
from caldera.nn.tracing import context


@register
@dataclass(eq=False)
class ReLU(FunctionLayer):
    """max(x, 0).

    >>> from caldera import nn
    >>> nn.ReLU()([-2.0, 3.0]).tolist()
    [0.0, 3.0]
    """

    function = staticmethod(op.relu)


@register
@dataclass(eq=False)
class Sigmoid(FunctionLayer):
    """1 / (1 + exp(-x)).

    >>> from caldera import nn
    >>> nn.Sigmoid()([0.0]).tolist()
    [0.5]
    """

    function = staticmethod(op.sigmoid)


@register
@dataclass(eq=False)
class Tanh(FunctionLayer):
    """The hyperbolic tangent.

    >>> from caldera import nn
    >>> nn.Tanh()([0.0]).tolist()
    [0.0]
    """

    function = staticmethod(op.tanh)


@register
@dataclass(eq=False)
class PReLU(Layer):
    """x above 0, and x times a learned slope below: one for all, or one for each channel (axis 1).

    >>> from caldera import nn
    >>> nn.PReLU()([[-2.0, 3.0]]).tolist()
    [[-0.5, 3.0]]
    """

    slope: float = 0.25
    per_channel: bool = False

    def build(self, x: Expr) -> None:
        self.require(not self.per_channel or x.ndim >= 2, "a batch (N, C, ...)", f"shape {x.shape}")
        shape = (x.shape[1] if self.per_channel else 1,)
        self.weight = self.parameter("weight", shape, constant(self.slope))

    def forward(self, x: Expr) -> Expr:
        behind = (1,) * (x.ndim - 2 if self.per_channel else 0)
        return op.prelu(x, op.reshape(self.weight, (*self.weight.shape, *behind)))


@register
@dataclass(eq=False)
class LeakyReLU(FunctionLayer):
    """x above 0, slope * x below.

    >>> from caldera import nn
    >>> nn.LeakyReLU(0.5)([-2.0, 3.0]).tolist()
    [-1.0, 3.0]
    """

    function = staticmethod(op.leaky_relu)

    slope: float = 0.01


@register
@dataclass(eq=False)
class ELU(FunctionLayer):
    """x above 0, alpha * (exp(x) - 1) below.

    >>> from caldera import nn
    >>> nn.ELU(0.5)([-1000.0, 3.0]).tolist()
    [-0.5, 3.0]
    """

    function = staticmethod(op.elu)

    alpha: float = 1.0


@register
@dataclass(eq=False)
class CELU(Layer):
    """x above 0, alpha * (exp(x / alpha) - 1) below: its slope is 1 at 0 for any alpha.

    >>> from caldera import nn
    >>> nn.CELU(0.5)([-1000.0, 3.0]).tolist()
    [-0.5, 3.0]
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.alpha < math.inf, "CELU", "alpha > 0", self.alpha)

    def forward(self, x: Expr) -> Expr:
        return op.where(x > 0, x, op.elu(x / self.alpha) * self.alpha)


@register
@dataclass(eq=False)
class RReLU(Layer):
    """x above 0, slope * x below, with random slopes in training and their mean in evaluation.

    Args:
        low: Least slope of a value.
        high: Largest slope of a value.

    >>> from caldera import nn
    >>> nn.RReLU(0.25, 0.75)([-2.0, 3.0]).tolist()  # not while training
    [-1.0, 3.0]
    """

    low: float = 1 / 8
    high: float = 1 / 3

    def __post_init__(self) -> None:
        ordered = -math.inf < self.low <= self.high < math.inf
        require(ordered, "RReLU", "slopes with low <= high", f"{self.low}, {self.high}")

    def forward(self, x: Expr) -> Expr:
        now = context()
        slope: Expr | float = (self.low + self.high) / 2
        if now.training:
            source = now.random_source(self.path, math.prod(x.shape[1:]))
            slope = op.random_uniform(x.shape, self.low, self.high, x.dtype, **source)
        return op.where(x < 0, x * slope, x)


@register
@dataclass(eq=False)
class SELU(FunctionLayer):
    """ELU, scaled so that values keep mean 0 and variance 1 from layer to layer.

    >>> from caldera import nn
    >>> nn.SELU()([0.0]).tolist()
    [0.0]
    """

    function = staticmethod(op.selu)


@register
@dataclass(eq=False)
class GELU(FunctionLayer):
    """x times the probability that a standard normal number is below it.

    `approximate` takes the tanh formula of GPT-2.

    >>> from caldera import nn
    >>> nn.GELU()([0.0, 100.0]).tolist()
    [0.0, 100.0]
    """

    function = staticmethod(op.gelu)

    approximate: bool = False


@register
@dataclass(eq=False)
class SiLU(FunctionLayer):
    """x * sigmoid(x), also known as swish.

    >>> from caldera import nn
    >>> nn.SiLU()([0.0, 100.0]).tolist()
    [0.0, 100.0]
    """

    function = staticmethod(op.silu)


@register
@dataclass(eq=False)
class Softplus(FunctionLayer):
    """log(1 + exp(x)).

    >>> from caldera import nn
    >>> nn.Softplus()([-1000.0, 1000.0]).tolist()
    [0.0, 1000.0]
    """

    function = staticmethod(op.softplus)


@register
@dataclass(eq=False)
class HardSigmoid(FunctionLayer):
    """x / 6 + 1/2, kept between 0 and 1.

    >>> from caldera import nn
    >>> nn.HardSigmoid()([-4.0, 0.0, 4.0]).tolist()
    [0.0, 0.5, 1.0]
    """

    function = staticmethod(op.hard_sigmoid)


@register
@dataclass(eq=False)
class HardSwish(FunctionLayer):
    """x times the hard sigmoid of x.

    >>> from caldera import nn
    >>> nn.HardSwish()([-4.0, 4.0]).tolist()
    [-0.0, 4.0]
    """

    function = staticmethod(op.hard_swish)


@register
@dataclass(eq=False)
class Mish(FunctionLayer):
    """x times tanh(softplus(x)).

    >>> from caldera import nn
    >>> nn.Mish()([0.0, 100.0]).tolist()
    [0.0, 100.0]
    """

    function = staticmethod(op.mish)


@register
@dataclass(eq=False)
class Softsign(FunctionLayer):
    """x / (1 + |x|).

    >>> from caldera import nn
    >>> nn.Softsign()([1.0, -3.0]).tolist()
    [0.5, -0.75]
    """

    function = staticmethod(op.softsign)


@register
@dataclass(eq=False)
class RBF(FunctionLayer):
    """The Gaussian radial basis function exp(-(eps x)^2).

    >>> from caldera import nn
    >>> nn.RBF(2.0)([0.0, 100.0]).tolist()
    [1.0, 0.0]
    """

    function = staticmethod(op.rbf)

    eps: float = 1.0


@register
@dataclass(eq=False)
class Softmax(FunctionLayer):
    """exp(x) / sum(exp(x)) along `axis`.

    >>> from caldera import nn
    >>> nn.Softmax()([[1000.0, 1000.0]]).tolist()
    [[0.5, 0.5]]
    """

    function = staticmethod(op.softmax)

    axis: int = -1


@register
@dataclass(eq=False)
class LogSoftmax(FunctionLayer):
    """The logarithm of the softmax along `axis`.

    >>> from caldera import nn
    >>> nn.LogSoftmax()([[1000.0, 0.0]]).tolist()
    [[0.0, -1000.0]]
    """

    function = staticmethod(op.log_softmax)

    axis: int = -1
