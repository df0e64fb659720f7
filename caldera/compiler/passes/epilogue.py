"""Bias and activation go into the product or convolution: its result is finished while at hand.

The product and the sum must have no other reader, for what nobody can see need not be kept. The
gradients of relu, sigmoid and tanh need only the activated value, so this holds in training too.
"""

from __future__ import annotations

from collections.abc import Sequence

from caldera.compiler.passes.constants import uniform
from caldera.compiler.passes.lower import HasKernel
from caldera.core.graph.body import users_of
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Op
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.elementwise import add, greater, relu
from caldera.core.graph.ops.epilogue import (
    ACTIVATIONS,
    conv2d_epilogue,
    is_bias,
    is_channel_bias,
    matmul_epilogue,
)
from caldera.core.graph.ops.product import conv2d, matmul
from caldera.core.graph.program import Program

JOINED = {matmul: (matmul_epilogue, is_bias), conv2d: (conv2d_epilogue, is_channel_bias)}
"""What products become, and which biases they take."""


def epilogue(program: Program, has_kernel: HasKernel) -> Program:
    """Join products with the bias and the activation that follow them, where there are kernels."""
    order = program.order()
    products = {product for product, (joined, _) in JOINED.items() if has_kernel(joined.name)}
    finder = _Finder(program, order, products)
    new: dict[Node, Node] = {}

    def convert(node: Node) -> Node:
        found = finder.find(node)
        if found is None:
            return node.op.rebuild(node, tuple([new[given] for given in node.inputs]))
        product, bias, activation = found
        joined, _ = JOINED[product.op]
        result = joined(
            *[new[given] for given in (*product.inputs, *bias)],
            **product.attrs,
            activation=None if activation is None else activation.op.name,
            attributes=() if activation is None else tuple(activation.attrs.items()),
        )
        return reshape(result, node.shape)

    for node in order:
        if node in finder.same_test:
            activated = finder.same_test[node]
            new[activated] = convert(activated)
            new[node] = greater(new[activated], new[node.inputs[1]])
        else:
            new[node] = convert(node)
    return program.with_roots([new[root] for root in program.roots])


class _Finder:
    def __init__(self, program: Program, order: Sequence[Node], products: set[Op]) -> None:
        self.roots = set(program.roots)
        self.users = users_of(order)
        self.products = products
        # x > 0 is relu(x) > 0: asking the latter leaves x without a reader.
        self.same_test: dict[Node, Node] = {}
        for node in order:
            if node.op is greater and uniform(node.inputs[1]) == 0:
                activated = [user for user in self.users[node.inputs[0]] if user.op is relu]
                if activated:
                    self.same_test[node] = activated[0]

    def _readers(self, node: Node) -> list[Node]:
        return [user for user in self.users[node] if user not in self.same_test]

    def _is_hidden(self, node: Node) -> bool:
        """Whether one node alone reads this one."""
        return node not in self.roots and len(self._readers(node)) == 1

    def find(self, node: Node) -> tuple[Node, tuple[Node, ...], Node | None] | None:
        """The product, the bias (if there is one) and the activation that `node` ends."""
        if node.op.name in ACTIVATIONS:
            inner = node.inputs[0]
            if inner.op.name == "reshape" and self._is_hidden(inner):
                inner = inner.inputs[0]
            if not self._is_hidden(inner):
                return None
            found = (inner, ()) if inner.op in self.products else self._with_bias(inner)
            if found is None or (found[0].op is conv2d and self._is_fused_later(node)):
                # A convolution may have to be followed by a loop of its own: none beside another.
                return None
            return *found, node
        if node.op is add and not self._is_fused_later(node):
            found = self._with_bias(node)
            return None if found is None else (*found, None)
        return None

    def _with_bias(self, total: Node) -> tuple[Node, tuple[Node, ...]] | None:
        if total.op is not add:
            return None
        for product, bias in (total.inputs, total.inputs[::-1]):
            if product.op in self.products and self._is_hidden(product):
                _, fits = JOINED[product.op]
                if fits(bias, product):
                    return product, (bias,)
        return None

    def _is_fused_later(self, total: Node) -> bool:
        """Whether element-wise readers will take the sum into their own loop anyway."""
        readers = self._readers(total)
        return total not in self.roots and all(user.op.kind == "elementwise" for user in readers)
