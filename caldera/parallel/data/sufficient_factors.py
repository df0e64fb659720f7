"""Gradients of dense layers by their factors: inputs and output gradients of all ranks.

The gradient of a weight is inputs.T @ output_gradient, a sum over samples. Where batches are small
and layers wide, the two matrices of all ranks are less than the gradient: then ranks gather them,
and each multiplies them for itself. Nothing is lost; what it costs is the product over the samples
of all ranks.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.graph.ops.collective import Message, all_gather_flat
from caldera.core.graph.ops.movement import pad
from caldera.core.graph.ops.product import matmul
from caldera.data import Share


def factors_are_smaller(samples: int, inputs: int, outputs: int) -> bool:
    """Whether a rank sends fewer bytes with factors (`samples` are those of all ranks together).

    A rank sends (n - 1) / n * samples * (inputs + outputs) values as factors, and 2 (n - 1) / n *
    inputs * outputs in a ring that sums gradients.

    >>> from caldera.parallel.data.sufficient_factors import factors_are_smaller
    >>> factors_are_smaller(100, 784, 528), factors_are_smaller(800, 784, 528)
    (True, False)
    """
    return samples * (inputs + outputs) < 2 * inputs * outputs


def has_factors(gradient: Node, share: Share) -> bool:
    """Whether a gradient is a product over the samples of which the factors are smaller.

    All ranks answer alike, also those that have no samples of a batch.
    """
    if gradient.op is not matmul or not gradient.attrs["ta"] or gradient.attrs["tb"]:
        return False
    inputs, gradients = gradient.inputs
    if len(inputs.shape) != 2 or len(gradients.shape) != 2 or _has_positions(gradients):
        return False
    if inputs.shape[0] != len(share):
        return False
    return factors_are_smaller(share.count, inputs.shape[1], gradients.shape[1])


def by_factors(gradient: Node, share: Share, message: Message) -> Node:
    """The sum of a gradient over ranks, from the factors of all of them.

    Ranks with fewer samples than others send rows of zeros, which add nothing.
    """
    rows = -(-share.count // message.ranks)
    factors = [pad(each, ((0, rows - each.shape[0]), (0, 0))) for each in gradient.inputs]
    shapes = [(rows * message.ranks, factor.shape[1]) for factor in factors]
    inputs, gradients = all_gather_flat(factors, shapes, message)
    return matmul(inputs, gradients, **gradient.attrs)


def _has_positions(gradients: Node) -> bool:
    """Whether there is a row for each position of a sequence, and not one for each sample."""
    if gradients.op.name != "reshape":
        return False
    before = gradients.inputs[0].shape
    return len(before) > 2 and before[-1] == gradients.shape[-1]
