"""The logarithm of a softmax, and hand-written cross entropy, in their stable form.

These are the only rewrites that change values, for the better. Where a probability is too small for
floating point, its logarithm is exact instead of -inf, and the loss and its derivative are numbers
instead of NaN. A logarithm with an epsilon in it stays as it was written.
"""

from __future__ import annotations

from caldera.compiler.passes.pattern import Rules, anything, p
from caldera.core.graph.node import Node
from caldera.core.graph.ops import broadcast_to, neg, reshape, sum_
from caldera.core.graph.ops.activation import log_softmax, log_softmax_grad
from caldera.core.graph.ops.loss import cross_entropy_probabilities

x = anything("x")
probabilities = p.softmax(x, name="probabilities")


def _log_softmax_gradient(g: Node, x: Node, probabilities: Node) -> Node:
    """softmax'(g / softmax) is the derivative of log_softmax."""
    logarithm = log_softmax(x, **probabilities.attrs)
    spread = broadcast_to(g, x.shape)
    return log_softmax_grad(spread, logarithm, **probabilities.attrs)


def _cross_entropy(targets: Node, x: Node, logarithm: Node, node: Node) -> Node | None:
    """sum(targets * log_softmax(x)) over at least the classes."""
    classes, axes = logarithm.attrs["axis"], node.attrs["axis"]
    if classes not in axes:
        return None
    losses = cross_entropy_probabilities(x, broadcast_to(targets, x.shape), axis=classes)
    rest = tuple(axis - (axis > classes) for axis in axes if axis != classes)
    return reshape(neg(sum_(losses, rest)), node.shape)


RULES = Rules(
    (
        p.log(probabilities),
        lambda x, probabilities: log_softmax(x, **probabilities.attrs),
    ),
    (p.softmax_grad(p.div(anything("g"), probabilities), probabilities), _log_softmax_gradient),
    (
        p.sum(p.mul(anything("targets"), p.log_softmax(x, name="logarithm")), name="node"),
        _cross_entropy,
    ),
)
