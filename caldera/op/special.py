"""Trigonometric, hyperbolic, special and activation functions, and softmax along an axis.

Angles are in radians. Outside of its domain a function returns nan. Activations are right for
infinite arguments and keep NaN. Integers are computed in float32 (except by relu, which keeps
them). `op.sin`, `op.cos` and `op.tanh` are defined in `unary`.
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import activation, elementwise, special
from caldera.core.tensor.shape import normalise_axis
from caldera.op.arguments import along_an_axis, as_number, float_function

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cosh",
    "digamma",
    "elu",
    "erfc",
    "erfinv",
    "gelu",
    "hard_sigmoid",
    "hard_swish",
    "hypot",
    "leaky_relu",
    "lgamma",
    "log_softmax",
    "logaddexp",
    "mish",
    "prelu",
    "rbf",
    "relu",
    "selu",
    "silu",
    "sinh",
    "softmax",
    "softplus",
    "softsign",
    "tan",
]


def tan(x: Any) -> Expr:
    """Return the tangent of an angle.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.tan(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.tan, x)


def asin(x: Any) -> Expr:
    """Return the angle from -pi / 2 to pi / 2 that has this sine; nan outside of -1 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.asin(cd.tensor([0.0, 2.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.asin, x)


def acos(x: Any) -> Expr:
    """Return the angle from 0 to pi that has this cosine; nan outside of -1 to 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.acos(cd.tensor([1.0, 2.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.acos, x)


def atan(x: Any) -> Expr:
    """Return the angle from -pi / 2 to pi / 2 that has this tangent.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.atan(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.atan, x)


def atan2(y: Any, x: Any) -> Expr:
    """Return the angle from -pi to pi of the point (x, y), with the signs of zeros as in NumPy.

    Its derivative at the origin is taken as 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> round(op.atan2(cd.tensor([1.0]), cd.tensor([-1.0])).item(), 4)
    2.3562
    """
    return float_function(special.atan2, y, x)


def sinh(x: Any) -> Expr:
    """Return the hyperbolic sine, (exp(x) - exp(-x)) / 2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.sinh(cd.tensor([0.0, 1000.0])).tolist()
    [0.0, inf]
    """
    return float_function(special.sinh, x)


def cosh(x: Any) -> Expr:
    """Return the hyperbolic cosine, (exp(x) + exp(-x)) / 2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.cosh(cd.tensor([0.0, -1000.0])).tolist()
    [1.0, inf]
    """
    return float_function(special.cosh, x)


def asinh(x: Any) -> Expr:
    """Return the inverse of the hyperbolic sine.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.asinh(cd.tensor([0.0])).tolist()
    [0.0]
    """
    return float_function(special.asinh, x)


def acosh(x: Any) -> Expr:
    """Return the inverse of the hyperbolic cosine; nan below 1.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.acosh(cd.tensor([1.0, 0.0])).tolist()
    [0.0, nan]
    """
    return float_function(special.acosh, x)


def atanh(x: Any) -> Expr:
    """Return the inverse of the hyperbolic tangent: infinite at -1 and 1, and nan beyond.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.atanh(cd.tensor([0.0, 1.0, 2.0])).tolist()
    [0.0, inf, nan]
    """
    return float_function(special.atanh, x)


def erfc(x: Any) -> Expr:
    """Compute 1 - erf(x), exact for small results.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.erfc(cd.tensor([0.0, 100.0])).tolist()
    [1.0, 0.0]
    """
    return float_function(special.erfc, x)


def erfinv(x: Any) -> Expr:
    """Return the inverse of `op.erf`: infinite at -1 and 1, and nan beyond.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.erfinv(cd.tensor([0.0, 1.0, 2.0])).tolist()
    [0.0, inf, nan]
    """
    return float_function(special.erfinv, x)


def lgamma(x: Any) -> Expr:
    """Return the logarithm of the magnitude of the gamma function: log((x - 1)!) for whole numbers.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.lgamma(cd.tensor([1.0, 2.0, 0.0])).tolist()
    [0.0, 0.0, inf]
    """
    return float_function(special.lgamma, x)


def digamma(x: Any) -> Expr:
    """Return the derivative of `op.lgamma`; nan at negative whole numbers, infinite at 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> round(op.digamma(cd.tensor([1.0])).item(), 4)
    -0.5772
    """
    return float_function(special.digamma, x)


def hypot(a: Any, b: Any) -> Expr:
    """Return the length sqrt(a^2 + b^2), without overflow; its derivative at the origin is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hypot(cd.tensor([3.0, 0.0]), cd.tensor([4.0, 0.0])).tolist()
    [5.0, 0.0]
    """
    return float_function(special.hypot, a, b)


def logaddexp(a: Any, b: Any) -> Expr:
    """Compute log(exp(a) + exp(b)), without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.logaddexp(cd.tensor([1000.0]), cd.tensor([0.0])).tolist()
    [1000.0]
    """
    return float_function(special.logaddexp, a, b)


def relu(x: Any) -> Expr:
    """Return max(x, 0); its derivative at 0 is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.relu(cd.tensor([-2.0, 0.0, 3.0])).tolist()
    [0.0, 0.0, 3.0]
    """
    return Expr(elementwise.relu(lift(x)))


def leaky_relu(x: Any, slope: float = 0.01) -> Expr:
    """Return x above 0 and slope * x below; its derivative at 0 is `slope`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.leaky_relu(cd.tensor([-2.0, 3.0]), slope=0.5).tolist()
    [-1.0, 3.0]
    """
    return float_function(activation.leaky_relu, x, slope=as_number(slope, "slope", "leaky_relu"))


def elu(x: Any, alpha: float = 1.0) -> Expr:
    """Return x above 0 and alpha * (exp(x) - 1) below; its derivative at 0 is `alpha`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.elu(cd.tensor([-1000.0, 0.0, 3.0]), alpha=0.5).tolist()
    [-0.5, 0.0, 3.0]
    """
    return float_function(activation.elu, x, alpha=as_number(alpha, "alpha", "elu"))


def selu(x: Any) -> Expr:
    """Compute a scaled elu, which keeps mean 0 and variance 1 from layer to layer.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.selu(cd.tensor([0.0, 1.0], dtype="float64")).tolist()
    [0.0, 1.0507009873554805]
    """
    return float_function(activation.selu, x)


def gelu(x: Any, approximate: bool = False) -> Expr:
    """Return x times the probability that a standard normal number is below it.

    By the error function, or with `approximate` by the tanh formula of GPT-2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.gelu(cd.tensor([-100.0, 0.0, 100.0])).tolist()
    [-0.0, 0.0, 100.0]
    """
    return float_function(activation.gelu, x, approximate=bool(approximate))


def silu(x: Any) -> Expr:
    """Compute x * sigmoid(x), also known as swish.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.silu(cd.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return float_function(activation.silu, x)


def softplus(x: Any) -> Expr:
    """Compute log(1 + exp(x)), without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.softplus(cd.tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return float_function(activation.softplus, x)


def hard_sigmoid(x: Any) -> Expr:
    """Compute x / 6 + 1/2, limited to 0 and 1; its derivative at -3 and 3 is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hard_sigmoid(cd.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return float_function(activation.hard_sigmoid, x)


def hard_swish(x: Any) -> Expr:
    """Compute x * hard_sigmoid(x); its derivative is 0 at -3 and 1 at 3.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hard_swish(cd.tensor([0.0, 4.0])).tolist()
    [0.0, 4.0]
    """
    return float_function(activation.hard_swish, x)


def prelu(x: Any, slope: Any) -> Expr:
    """Return x above 0 and slope * x below, with trainable slopes that broadcast to x.

    For a slope each channel of images (N, C, H, W) it has the shape (C, 1, 1). The derivative at 0
    is the slope.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.prelu(cd.tensor([[-2.0, -2.0], [3.0, 0.0]]), cd.tensor([0.5, 0.25])).tolist()
    [[-1.0, -0.5], [3.0, 0.0]]
    """
    return float_function(activation.prelu, x, slope)


def mish(x: Any) -> Expr:
    """Compute x * tanh(softplus(x)).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mish(cd.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return float_function(activation.mish, x)


def softsign(x: Any) -> Expr:
    """Compute x / (1 + |x|).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.softsign(cd.tensor([1.0, -3.0, float("inf")])).tolist()
    [0.5, -0.75, 1.0]
    """
    return float_function(activation.softsign, x)


def rbf(x: Any, eps: float = 1.0) -> Expr:
    """Return the Gaussian radial basis function exp(-(eps x)^2).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.rbf(cd.tensor([0.0, 100.0]), eps=2.0).tolist()
    [1.0, 0.0]
    """
    return float_function(activation.rbf, x, eps=as_number(eps, "eps", "rbf"))


@along_an_axis
def softmax(x: Any, axis: int = -1) -> Expr:
    """Return exp(x) / sum(exp(x)) along `axis`, without overflow.

    A row with +inf has its whole weight there; a row of only -inf results in NaN.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.softmax(cd.tensor([[1000.0, 1000.0], [0.0, -float("inf")]])).tolist()
    [[0.5, 0.5], [1.0, 0.0]]
    """
    node = as_float(lift(x))
    position = normalise_axis(axis, len(node.shape), location("softmax"))
    return Expr(activation.softmax(node, axis=position))


@along_an_axis
def log_softmax(x: Any, axis: int = -1) -> Expr:
    """Compute log(softmax(x)) along `axis`, also where the softmax itself rounds to 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log_softmax(cd.tensor([1000.0, 0.0])).tolist()
    [0.0, -1000.0]
    """
    node = as_float(lift(x))
    position = normalise_axis(axis, len(node.shape), location("log_softmax"))
    return Expr(activation.log_softmax(node, axis=position))
