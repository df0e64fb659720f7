"""A norm, a loss and the samples of a batch are written as a product reads them: they are rounded
on the way out.

In mixed precision a norm of float32 is followed by a cast, as are the samples that are gathered for
a batch, and between the products of a classifier there are casts before and after the loss and its
gradient: of a large vocabulary these are most of the memory that a step moves. Nothing is rounded
that was not before, nor more often.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.compiler.passes.dependency_order import dependency_order
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, item
from caldera.core.graph.ops.epilogue import (
    cross_entropy_with_gradient,
    gather_rounded,
    layer_norm_rounded,
)
from caldera.core.graph.ops.indexing import gather
from caldera.core.graph.ops.loss import cross_entropy, cross_entropy_grad
from caldera.core.graph.ops.normalisation import layer_norm
from caldera.core.graph.program import Program, topological, users_of
from caldera.core.tensor.dtype import HALVES, DType, float32
from caldera.core.tensor.shape import size

LARGE = 1 << 20
"""Numbers in a batch from which on it is worth it: kernels that take whole small networks would not
know it."""


def rounded_results(program: Program) -> Program:
    """Join layer norms, cross entropy and large gathers with the casts around them."""
    order = program.order()
    finder = _Finder(program, order)
    norms = {node: dtype for node in order if (dtype := finder.norm(node)) is not None}
    gathers = {node: dtype for node in order if (dtype := finder.gather(node)) is not None}
    losses = finder.losses()
    if not norms and not losses and not gathers:
        return program
    gradients = set(losses.values())
    rounded = gradients | set(gathers)
    new: dict[Node, Node] = {}

    def convert(node: Node) -> Node:
        if node in norms:
            return layer_norm_rounded.node(
                *[new[given] for given in node.inputs], **node.attrs, dtype=norms[node]
            )
        if node in gathers:
            x, indices = (new[given] for given in node.inputs)
            return gather_rounded.node(x, indices, **node.attrs, dtype=gathers[node])
        if node in losses:
            (narrow,), labels = node.inputs[0].inputs, node.inputs[1]
            both = (losses[node].inputs[0], narrow, labels)
            found = cross_entropy_with_gradient.node(*[new[each] for each in both], **node.attrs)
            new[losses[node]] = item(found, 1)
            return item(found, 0)
        if node.op.name == "cast" and (node.inputs[0] in rounded or _source(node) in norms):
            # It has been rounded already.
            return new[node.inputs[0]]
        return node.op.rebuild(node, tuple(new[given] for given in node.inputs))

    for node in _in_order(program, losses):
        if node not in gradients:
            new[node] = convert(node)
    return program.with_roots([new[root] for root in program.roots])


def _in_order(program: Program, losses: dict[Node, Node]) -> list[Node]:
    """All nodes; a loss comes after what its gradient needs, and before the gradient."""
    also: dict[Node, tuple[Node, ...]] = {}
    for loss, gradient in losses.items():
        also[loss], also[gradient] = gradient.inputs, (loss,)
    return dependency_order(program.roots, lambda node: (*node.inputs, *also.get(node, ())))


def _source(cast: Node) -> Node | None:
    """The node whose first result a cast reads, if it has several."""
    (value,) = cast.inputs
    return value.inputs[0] if value.op is ITEM and value.attrs["index"] == 0 else None


class _Finder:
    def __init__(self, program: Program, order: Sequence[Node]) -> None:
        self.order = order
        self.roots = set(program.roots)
        self.users = users_of(order)

    def norm(self, node: Node) -> DType | None:
        """The dtype to which everybody rounds the result of a layer norm."""
        if node.op is not layer_norm:
            return None
        results = [user for user in self.users[node] if user.attrs["index"] == 0]
        return self._rounded_to(results[0]) if results else None

    def gather(self, node: Node) -> DType | None:
        """The same of a large gather."""
        if node.op is not gather or node.dtype != float32 or size(node.shape) < LARGE:
            return None
        return self._rounded_to(node)

    def _rounded_to(self, value: Node) -> DType | None:
        readers = self.users[value]
        dtypes = {reader.dtype for reader in readers if reader.op.name == "cast"}
        if value in self.roots or len(dtypes) != 1 or not dtypes <= HALVES - {value.dtype}:
            return None
        return dtypes.pop() if all(reader.op.name == "cast" for reader in readers) else None

    def losses(self) -> dict[Node, Node]:
        """Losses of logits in half precision, each with the gradient that products alone read."""
        found: dict[Node, Node] = {}
        for gradient in self.order:
            if gradient.op is not cross_entropy_grad:
                continue
            g, wide, labels = gradient.inputs
            narrow = wide.inputs[0].dtype if wide.op.name == "cast" else None
            if narrow not in HALVES or self._rounded_to(gradient) != narrow:
                continue
            for loss in self.users[wide]:
                same = loss.op is cross_entropy and loss.attrs == gradient.attrs
                # What the gradient is multiplied by may depend on the loss, if somebody wants that.
                if same and loss.inputs[1] is labels and loss not in topological([g]):
                    found[loss] = gradient
        return found
