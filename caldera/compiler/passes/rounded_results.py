"""A norm, a loss and the samples of a batch are written as a product reads them: they are rounded
on the way out.

In mixed precision a norm of float32 is followed by a cast, as are the samples that are gathered for
a batch, and between the products of a classifier there are casts before and after the loss and its
gradient: of a large vocabulary these are most of the memory that a step moves. Nothing is rounded
that was not before, nor more often.
"""

from __future__ import annotations

from functools import partial

from caldera.compiler.passes.joins import Join, Joins, Uses
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes
from caldera.core.graph.ops.epilogue import (
    cross_entropy_with_gradient,
    gather_rounded,
    layer_norm_rounded,
)
from caldera.core.graph.ops.indexing import gather
from caldera.core.graph.ops.loss import cross_entropy, cross_entropy_grad
from caldera.core.graph.ops.normalisation import layer_norm
from caldera.core.graph.program import topological
from caldera.core.tensor.dtype import HALVES, float32
from caldera.core.tensor.shape import size

LARGE = 1 << 20
"""Numbers in a batch from which on it is worth it: kernels that take whole small networks would not
know it."""


def _norm(uses: Uses, node: Node) -> Join | None:
    """A layer norm whose result all readers round to one dtype."""
    result = uses.output(node, 0)
    casts = () if result is None else _casts(uses, result)
    if not casts:
        return None
    build = partial(layer_norm_rounded.outputs, **node.attrs, dtype=casts[0].dtype)
    return Join(node.inputs, build, {node: (0, 1, 2), **dict.fromkeys(casts, (0,))})


def _gather(uses: Uses, node: Node) -> Join | None:
    """The same of a large gather."""
    if node.dtype != float32 or size(node.shape) < LARGE:
        return None
    casts = _casts(uses, node)
    if not casts:
        return None
    build = partial(gather_rounded.outputs, **node.attrs, dtype=casts[0].dtype)
    return Join(node.inputs, build, dict.fromkeys([node, *casts], (0,)))


def _casts(uses: Uses, value: Node) -> Nodes:
    """The casts to one half-precision dtype that alone read a value."""
    readers = uses.users[value]
    dtypes = {reader.dtype for reader in readers if reader.op.name == "cast"}
    if value in uses.roots or len(dtypes) != 1 or not dtypes <= HALVES - {value.dtype}:
        return ()
    return tuple(readers) if all(reader.op.name == "cast" for reader in readers) else ()


def _loss(uses: Uses, gradient: Node) -> Join | None:
    """A loss of logits in half precision, with the gradient that products alone read."""
    g, wide, labels = gradient.inputs
    narrow = wide.inputs[0] if wide.op.name == "cast" else None
    casts = _casts(uses, gradient)
    if narrow is None or narrow.dtype not in HALVES or not casts:
        return None
    if casts[0].dtype != narrow.dtype:
        return None
    for loss in uses.users[wide]:
        same = loss.op is cross_entropy and loss.attrs == gradient.attrs
        # What the gradient is multiplied by may depend on the loss, if somebody wants that.
        if same and loss.inputs[1] is labels and loss not in topological([g]):
            build = partial(cross_entropy_with_gradient.outputs, **loss.attrs)
            return Join(
                (g, narrow, labels), build, {loss: (0,)} | dict.fromkeys([gradient, *casts], (1,))
            )
    return None


rounded_results = Joins((layer_norm, _norm), (gather, _gather), (cross_entropy_grad, _loss))
"""Join layer norms, cross entropy and large gathers with the casts around them."""
