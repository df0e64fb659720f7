"""Activation functions, element by element, and softmax along an axis.

All of them are right for infinite arguments and keep NaN; integers are computed in float32 (except
by relu, which keeps them).
"""

from __future__ import annotations

from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph.opdef import location
from caldera.core.graph.ops import activation, elementwise
from caldera.core.tensor.shape import normalise_axis
from caldera.op.arguments import along_an_axis, as_number, float_function


def relu(x: Any) -> Expr:
    """max(x, 0); its derivative at 0 is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.relu(cd.tensor([-2.0, 0.0, 3.0])).tolist()
    [0.0, 0.0, 3.0]
    """
    return Expr(elementwise.relu(lift(x)))


def leaky_relu(x: Any, slope: float = 0.01) -> Expr:
    """x above 0 and slope * x below; its derivative at 0 is `slope`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.leaky_relu(cd.tensor([-2.0, 3.0]), slope=0.5).tolist()
    [-1.0, 3.0]
    """
    return float_function(activation.leaky_relu, x, slope=as_number(slope, "slope", "leaky_relu"))


def elu(x: Any, alpha: float = 1.0) -> Expr:
    """x above 0 and alpha * (exp(x) - 1) below; its derivative at 0 is `alpha`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.elu(cd.tensor([-1000.0, 0.0, 3.0]), alpha=0.5).tolist()
    [-0.5, 0.0, 3.0]
    """
    return float_function(activation.elu, x, alpha=as_number(alpha, "alpha", "elu"))


def selu(x: Any) -> Expr:
    """elu, scaled so that activations keep mean 0 and variance 1 from layer to layer.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.selu(cd.tensor([0.0, 1.0], dtype="float64")).tolist()
    [0.0, 1.0507009873554805]
    """
    return float_function(activation.selu, x)


def gelu(x: Any, approximate: bool = False) -> Expr:
    """x times the probability that a standard normal number is below it.

    By the error function, or with `approximate` by the tanh formula of GPT-2.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.gelu(cd.tensor([-100.0, 0.0, 100.0])).tolist()
    [-0.0, 0.0, 100.0]
    """
    return float_function(activation.gelu, x, approximate=bool(approximate))


def silu(x: Any) -> Expr:
    """x * sigmoid(x), also known as swish.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.silu(cd.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return float_function(activation.silu, x)


def softplus(x: Any) -> Expr:
    """log(1 + exp(x)), without overflow.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.softplus(cd.tensor([-1000.0, 1000.0])).tolist()
    [0.0, 1000.0]
    """
    return float_function(activation.softplus, x)


def hard_sigmoid(x: Any) -> Expr:
    """x / 6 + 1/2, kept between 0 and 1; its derivative at -3 and 3 is 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hard_sigmoid(cd.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return float_function(activation.hard_sigmoid, x)


def hard_swish(x: Any) -> Expr:
    """x * hard_sigmoid(x); its derivative is 0 at -3 and 1 at 3.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.hard_swish(cd.tensor([0.0, 4.0])).tolist()
    [0.0, 4.0]
    """
    return float_function(activation.hard_swish, x)


def prelu(x: Any, slope: Any) -> Expr:
    """x above 0 and slope * x below, with slopes that broadcast to x and can be learned.

    For a slope each channel of images (N, C, H, W) it has the shape (C, 1, 1). The derivative at 0
    is the slope.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.prelu(cd.tensor([[-2.0, -2.0], [3.0, 0.0]]), cd.tensor([0.5, 0.25])).tolist()
    [[-1.0, -0.5], [3.0, 0.0]]
    """
    return float_function(activation.prelu, x, slope)


def mish(x: Any) -> Expr:
    """x * tanh(softplus(x)).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.mish(cd.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return float_function(activation.mish, x)


def softsign(x: Any) -> Expr:
    """x / (1 + |x|).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.softsign(cd.tensor([1.0, -3.0, float("inf")])).tolist()
    [0.5, -0.75, 1.0]
    """
    return float_function(activation.softsign, x)


def rbf(x: Any, eps: float = 1.0) -> Expr:
    """The Gaussian radial basis function exp(-(eps x)^2).

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.rbf(cd.tensor([0.0, 100.0]), eps=2.0).tolist()
    [1.0, 0.0]
    """
    return float_function(activation.rbf, x, eps=as_number(eps, "eps", "rbf"))


@along_an_axis
def softmax(x: Any, axis: int = -1) -> Expr:
    """exp(x) / sum(exp(x)) along `axis`, without overflow.

    A row that holds +inf puts everything there; one of nothing but -inf gives NaN.

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
    """log(softmax(x)) along `axis`, right also where the softmax itself rounds to 0.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.log_softmax(cd.tensor([1000.0, 0.0])).tolist()
    [0.0, -1000.0]
    """
    node = as_float(lift(x))
    position = normalise_axis(axis, len(node.shape), location("log_softmax"))
    return Expr(activation.log_softmax(node, axis=position))
