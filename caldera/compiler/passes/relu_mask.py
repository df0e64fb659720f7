"""The gradient of a large relu behind a product reads bits instead of the activations.

Where the relu let something through is a bit of each activation, which the loop that computes it
has at hand. What is written that way is a sixteenth of the activations in half precision, and the
gradient reads that much less: a third of all it moves. Of small layers nothing is gained, and the
kernels that take whole small networks would not know them.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.compiler.passes.constants import is_positive_test, uniform
from caldera.core.graph.body import users_of
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, item
from caldera.core.graph.ops.elementwise import where
from caldera.core.graph.ops.epilogue import matmul_epilogue
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.relu_mask import relu_mask as relu_with_mask
from caldera.core.graph.ops.relu_mask import relu_mask_grad
from caldera.core.graph.ops.widening import accumulator
from caldera.core.graph.program import Program

LARGE = 1 << 22
"""Activations of a layer from which on it is worth it."""


@dataclass(frozen=True)
class _Match:
    """A product with a relu, the gradient behind that relu, and the sums of its columns."""

    product: Node
    masked: Node
    gradient: Node
    sums: Nodes

    def activated(self, inputs: Nodes) -> Node:
        """The relu by itself, with its mask."""
        attrs = dict(self.product.attrs)
        del attrs["activation"], attrs["attributes"]
        plain = (
            matmul_epilogue(*inputs, **attrs, activation=None, attributes=())
            if len(inputs) > 2
            else matmul(*inputs, **attrs)
        )
        return relu_with_mask.node(plain)


def relu_mask(program: Program) -> Program:
    """Give large relus behind products a mask, if their gradients can use it."""
    order = program.order()
    users = users_of(order)
    roots = set(program.roots)
    matches = [match for node in order if (match := _match(node, users, roots))]
    if not matches:
        return program
    products = {match.product: match for match in matches}
    gradients = {match.masked: match for match in matches}
    sums = {node: match for match in matches for node in match.sums}
    new: dict[Node, Node] = {}
    both: dict[Node, Node] = {}

    def convert(node: Node) -> Node:
        if node in products:
            inputs = tuple(new[given] for given in node.inputs)
            both[node] = products[node].activated(inputs)
            return item(both[node], 0)
        if node in gradients:
            match = gradients[node]
            mask = item(both[match.product], 1)
            summed = bool(match.sums)
            both[node] = relu_mask_grad.node(new[match.gradient], mask, summed=summed)
            return item(both[node], 0) if summed else both[node]
        if node in sums:
            return item(both[sums[node].masked], 1)
        return node.op.rebuild(node, tuple(new[given] for given in node.inputs))

    for node in order:
        new[node] = convert(node)
    return program.with_roots([new[root] for root in program.roots])


def _match(product: Node, users: dict[Node, list[Node]], roots: set[Node]) -> _Match | None:
    if product.op is not matmul_epilogue or product.attrs["activation"] != "relu":
        return None
    if len(product.shape) != 2 or product.spec.size < LARGE:
        return None
    tests = [user for user in users[product] if is_positive_test(user, product)]
    readers = [user for test in tests for user in users[test]]
    if len(tests) != 1 or tests[0] in roots or len(readers) != 1 or readers[0].op is not where:
        return None
    (masked,) = readers
    test, gradient, nothing = masked.inputs
    fits = gradient.spec.logical == masked.spec.logical and uniform(nothing) == 0
    # A loop that makes the gradient takes the mask along anyway.
    if test is not tests[0] or not fits or gradient.op.kind == "elementwise":
        return None
    return _Match(product, masked, gradient, _sums(masked, users))


def _sums(masked: Node, users: dict[Node, list[Node]]) -> Nodes:
    """The sums of its columns, of what it is or of what it is in float32."""
    values = [masked, *(user for user in users[masked] if user.op.name == "cast")]
    return tuple(
        user
        for value in values
        if value.dtype == accumulator(masked.dtype)
        for user in users[value]
        if user.op.name == "sum" and user.attrs["axis"] == (0,) and not user.attrs["keepdims"]
    )
