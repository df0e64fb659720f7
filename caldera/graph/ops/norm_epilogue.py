"""Batch normalisation with the relu that follows, and what is added in between. Made by a pass."""

from __future__ import annotations

from caldera.graph.node import Node
from caldera.graph.opdef import Nodes, composite, refuse_shape
from caldera.graph.ops.base import full
from caldera.graph.ops.elementwise import add, greater, relu, where
from caldera.graph.ops.leaf import constant
from caldera.graph.ops.normalisation import batch_norm, batch_norm_grad, batch_norm_inference


def _finished(y: Node, more: Nodes) -> Node:
    if len(more) > 1 or any(each.spec.logical != y.spec.logical for each in more):
        refuse_shape(f"at most one image to add, like {y.spec}")
    for each in more:
        y = add(y, each)
    node: Node = relu(y)
    return node


@composite("batch_norm_relu")
def batch_norm_relu(x: Node, scale: Node, shift: Node, *more: Node, axis: int, eps: float) -> Nodes:
    """relu(batch_norm(x) + more), with the mean and the variance; `more` may be left out."""
    y, mean, variance = batch_norm(x, scale, shift, axis=axis, eps=eps)
    return _finished(y, more), mean, variance


@composite("batch_norm_inference_relu")
def batch_norm_inference_relu(
    x: Node, scale: Node, shift: Node, mean: Node, variance: Node, *more: Node,
    axis: int, eps: float,
) -> Node:  # fmt: skip
    """relu(batch_norm_inference(x) + more); `more` may be left out."""
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    return _finished(y, more)


@composite("batch_norm_relu_grad")
def batch_norm_relu_grad(
    g: Node, x: Node, scale: Node, shift: Node, mean: Node, variance: Node, *,
    axis: int, eps: float,
) -> Nodes:  # fmt: skip
    """The gradients of relu(batch_norm(x)) with respect to x, scale and shift.

    Where the relu let something through is computed again from x: that is cheaper than to read it.
    """
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    masked = where(greater(y, constant(0, y.dtype)), g, full(g.shape, 0, g.dtype))
    gradients: Nodes = batch_norm_grad(masked, x, scale, mean, variance, axis=axis, eps=eps)
    return gradients
