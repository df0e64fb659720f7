"""Activation functions, softmax and log-softmax.

Results at the ends of the range are exact: an infinite argument returns the limit, NaN stays NaN,
and no derivative is inf * 0. For this, factors are clipped where their co-factor is exactly 0 or 1
in every dtype.

Conventions where the derivative is not unique, all of them tested: at 0 leaky_relu, elu and selu
have the slope of the negative side. At -3 and 3 hard_sigmoid and hard_swish have the outer slope
(0, and for hard_swish 1 at 3).

A row of softmax with +inf is 1 there, shared equally between several. A row of only -inf has no
limit and is NaN. Over an axis of length 0 the result is empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from caldera.core.graph import Node, Nodes, Op, composite
from caldera.core.graph.ops import (
    abs_,
    add,
    broadcasting,
    cast,
    check_float,
    div,
    equal,
    erf,
    exp,
    expm1,
    greater,
    less,
    log,
    log1p,
    max_,
    maximum,
    minimum,
    mul,
    neg,
    reciprocal,
    relu,
    scalar,
    sigmoid,
    square,
    sub,
    sum_,
    tanh,
    where,
    widened,
)

SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805
# Beyond these, the normal density, the normal distribution and sigmoid are exactly 0 or 1 also in
# float64.
_NORMAL_END = 40.0
_SIGMOID_END = 1000.0
# Adding 1 to this has no effect, even in float64.
_LARGE = 2.0**60


def _clipped(x: Node, end: float) -> Node:
    return minimum(maximum(x, scalar(-end, x)), scalar(end, x))


def _activation(
    name: str, *, gradient: Callable[..., Node] | None = None
) -> Callable[[Callable[..., Node]], Op]:
    """Decorate an element-wise function of floating-point numbers.

    `gradient(g, y, x)` returns the gradient of its input.
    """
    backward = None if gradient is None else widened(broadcasting(gradient))

    def define(rule: Callable[..., Node]) -> Op:
        def checked(x: Node, *slopes: Node, **attrs: float) -> Node:
            check_float(x)
            return rule(x, *slopes, **attrs)

        return composite(name, kind="elementwise", gradient=backward)(widened(checked))

    return define


# --- pieces that are straight on one side


@_activation(
    "leaky_relu",
    gradient=lambda g, y, x, *, slope: mul(
        g, where(greater(x, scalar(0, x)), scalar(1, x), scalar(slope, x))
    ),
)
def leaky_relu(x: Node, *, slope: float) -> Node:
    """x above 0, slope * x below."""
    return where(greater(x, scalar(0, x)), x, mul(x, scalar(slope, x)))


def _negative_part(x: Node) -> Node:
    """Return x for x <= 0, else 0 (NaN stays NaN); unlike min(x, 0), with slope 1 at 0."""
    return where(greater(x, scalar(0, x)), scalar(0, x), x)


@_activation(
    "elu",
    gradient=lambda g, y, x, *, alpha: mul(
        g,
        where(
            greater(x, scalar(0, x)),
            scalar(1, x),
            mul(exp(_negative_part(x)), scalar(alpha, x)),
        ),
    ),
)
def elu(x: Node, *, alpha: float) -> Node:
    """x above 0, alpha * (exp(x) - 1) below."""
    below = mul(expm1(_negative_part(x)), scalar(alpha, x))
    return where(greater(x, scalar(0, x)), x, below)


@_activation("selu")
def selu(x: Node) -> Node:
    """elu scaled so that activations keep mean 0 and variance 1 (Klambauer et al., 2017)."""
    return mul(elu(x, alpha=SELU_ALPHA), scalar(SELU_SCALE, x))


@_activation("softplus", gradient=lambda g, y, x: mul(g, sigmoid(x)))
def softplus(x: Node) -> Node:
    """log(1 + exp(x)), without overflow."""
    return add(relu(x), log1p(exp(neg(abs_(x)))))


@_activation("prelu")
def prelu(x: Node, slope: Node) -> Node:
    """x above 0, slope * x below, with slopes that are learned."""
    return where(greater(x, scalar(0, x)), x, mul(_negative_part(x), slope))


@_activation("softsign")
def softsign(x: Node) -> Node:
    """x / (1 + |x|)."""
    return div(_clipped(x, _LARGE), add(scalar(1, x), minimum(abs_(x), scalar(_LARGE, x))))


@softsign.gradient
@widened
def _(g: Node, y: Node, x: Node) -> Nodes:
    inverse = reciprocal(add(scalar(1, x), abs_(x)))
    return (mul(mul(g, inverse), inverse),)


# --- x times a gate between 0 and 1


def _normal_gate(x: Node) -> Node:
    """Return the probability that a standard normal number is below x."""
    half = scalar(0.5, x)
    return add(mul(erf(mul(x, scalar(math.sqrt(0.5), x))), half), half)


def _tanh_argument(x: Node) -> Node:
    cubic = add(mul(square(x), scalar(0.044715, x)), scalar(1, x))
    return mul(mul(x, scalar(math.sqrt(2 / math.pi), x)), cubic)


def _tanh_gate(x: Node) -> Node:
    """Return the gate of GELU by Hendrycks and Gimpel's (2016) approximation."""
    half = scalar(0.5, x)
    return add(mul(tanh(_tanh_argument(x)), half), half)


@_activation("gelu")
def gelu(x: Node, *, approximate: bool) -> Node:
    """x times the probability that a standard normal number is below it."""
    gate = _tanh_gate(x) if approximate else _normal_gate(x)
    return mul(maximum(x, scalar(-_NORMAL_END, x)), gate)


@gelu.gradient
@widened
def _(g: Node, y: Node, x: Node, *, approximate: bool) -> Nodes:
    near = _clipped(x, _NORMAL_END)
    if approximate:
        gate = _tanh_gate(near)
        # gate' = 2 gate (1 - gate) argument'
        slope = add(mul(square(near), scalar(3 * 0.044715, x)), scalar(1, x))
        slope = mul(slope, scalar(2 * math.sqrt(2 / math.pi), x))
        density = mul(mul(gate, sub(scalar(1, x), gate)), slope)
    else:
        gate = _normal_gate(near)
        bell = exp(mul(square(near), scalar(-0.5, x)))
        density = mul(bell, scalar(1 / math.sqrt(2 * math.pi), x))
    return (mul(g, add(gate, mul(near, density))),)


@_activation("silu")
def silu(x: Node) -> Node:
    """x * sigmoid(x), also known as swish."""
    return mul(maximum(x, scalar(-_SIGMOID_END, x)), sigmoid(x))


@silu.gradient
@widened
def _(g: Node, y: Node, x: Node) -> Nodes:
    gate = sigmoid(x)
    bend = mul(_clipped(x, _SIGMOID_END), sub(scalar(1, x), gate))
    return (mul(g, mul(gate, add(bend, scalar(1, x)))),)


@_activation("mish")
def mish(x: Node) -> Node:
    """x * tanh(softplus(x)) (Misra, 2019)."""
    return mul(maximum(x, scalar(-_SIGMOID_END, x)), tanh(softplus(x)))


@mish.gradient
@widened
def _(g: Node, y: Node, x: Node) -> Nodes:
    gate = tanh(softplus(x))
    bend = mul(sub(scalar(1, x), square(gate)), sigmoid(x))
    return (mul(g, add(gate, mul(_clipped(x, _SIGMOID_END), bend))),)


@_activation(
    "hard_sigmoid",
    gradient=lambda g, y, x: mul(
        g, where(less(abs_(x), scalar(3, x)), scalar(1 / 6, x), scalar(0, x))
    ),
)
def hard_sigmoid(x: Node) -> Node:
    """x / 6 + 1/2, kept between 0 and 1."""
    line = add(mul(x, scalar(1 / 6, x)), scalar(0.5, x))
    return minimum(maximum(line, scalar(0, x)), scalar(1, x))


@_activation("hard_swish")
def hard_swish(x: Node) -> Node:
    """x * hard_sigmoid(x)."""
    return mul(maximum(x, scalar(-3, x)), hard_sigmoid(x))


@hard_swish.gradient
@widened
def _(g: Node, y: Node, x: Node) -> Nodes:
    inside = less(abs_(x), scalar(3, x))
    line = add(mul(x, scalar(1 / 3, x)), scalar(0.5, x))
    outside = cast(greater(x, scalar(0, x)), x.dtype)
    return (mul(g, where(inside, line, outside)),)


@_activation("rbf")
def rbf(x: Node, *, eps: float) -> Node:
    """Return the Gaussian radial basis function exp(-(eps x)^2)."""
    return exp(neg(square(mul(x, scalar(eps, x)))))


@rbf.gradient
@widened
def _(g: Node, y: Node, x: Node, *, eps: float) -> Nodes:
    near = _clipped(mul(x, scalar(eps, x)), _NORMAL_END)
    slope = mul(mul(near, exp(neg(square(near)))), scalar(-2 * eps, x))
    return (mul(g, slope),)


# --- over an axis


def below_largest(x: Node, axis: int) -> Node:
    """x less the largest element along `axis`, and 0 where x is +inf."""
    largest = max_(x, axis=(axis,), keepdims=True)
    infinite = equal(x, scalar(math.inf, x))
    return where(infinite, scalar(0, x), sub(x, largest))


@composite("softmax_grad")
@widened
def softmax_grad(g: Node, y: Node, *, axis: int) -> Node:
    """Return gradient of softmax, from the gradient of its result `y`."""
    return mul(y, sub(g, sum_(mul(g, y), (axis,), keepdims=True)))


@composite("softmax", gradient=lambda g, y, x, *, axis: (softmax_grad(g, y, axis=axis),))
@widened
def softmax(x: Node, *, axis: int) -> Node:
    """exp(x) / sum(exp(x)) along `axis`, without overflow."""
    check_float(x)
    if x.shape[axis] == 0:
        return x
    weights = exp(below_largest(x, axis))
    return div(weights, sum_(weights, (axis,), keepdims=True))


@composite("log_softmax_grad")
@widened
def log_softmax_grad(g: Node, y: Node, *, axis: int) -> Node:
    """Return gradient of log_softmax, from the gradient of its result `y`."""
    return sub(g, mul(exp(y), sum_(g, (axis,), keepdims=True)))


@composite("log_softmax", gradient=lambda g, y, x, *, axis: (log_softmax_grad(g, y, axis=axis),))
@widened
def log_softmax(x: Node, *, axis: int) -> Node:
    """log(softmax(x)) along `axis`, right also where the softmax is 0 in floating point."""
    check_float(x)
    if x.shape[axis] == 0:
        return x
    below = below_largest(x, axis)
    return sub(below, log(sum_(exp(below), (axis,), keepdims=True)))
