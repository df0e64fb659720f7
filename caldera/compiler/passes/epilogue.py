"""Epilogue fusion into products, convolutions and batch normalisations.

The bias and the activation are applied while the result of a product or convolution is still at
hand. The product and the sum must have no other reader. The gradients of relu, sigmoid and tanh
need only the activated value, so this holds in training too.

A batch normalisation takes over the relu after it, and an image added in between, which saves a
pass over memory for each. The normalised value must have no other reader. In training the
gradient of the relu is fused into that of the normalisation, which recomputes the sign; with an
added image it stays separate, since the gradient of that image needs it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.compiler.passes.constants import is_positive_test, uniform
from caldera.compiler.passes.dependency_order import dependency_order
from caldera.compiler.passes.lower import HasKernel
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes, Op, item
from caldera.core.graph.ops.base import reshape
from caldera.core.graph.ops.elementwise import add, greater, relu, where
from caldera.core.graph.ops.epilogue import (
    ACTIVATIONS,
    batch_norm_inference_relu,
    batch_norm_relu,
    batch_norm_relu_grad,
    conv2d_epilogue,
    is_bias,
    is_channel_bias,
    matmul_epilogue,
)
from caldera.core.graph.ops.normalisation import batch_norm, batch_norm_grad, batch_norm_inference
from caldera.core.graph.ops.product import conv2d, matmul
from caldera.core.graph.program import Program, topological, users_of

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


@dataclass(frozen=True)
class _Match:
    """A normalisation, the relu that ends it, and what is added before that."""

    norm: Node
    end: Node
    more: Nodes

    @property
    def needs(self) -> Nodes:
        """What has to be there before."""
        return (*self.norm.inputs, *self.more)


def norm_epilogue(program: Program) -> Program:
    """Join batch normalisations with the sum and the relu that follow them."""
    order = program.order()
    finder = _NormEpilogueFinder(program, order)
    matches = finder.matches()
    if not matches:
        return program
    gradients = finder.gradients(matches)
    return _rebuilt(program, matches, gradients)


class _NormEpilogueFinder:
    def __init__(self, program: Program, order: Sequence[Node]) -> None:
        self.order = order
        self.roots = set(program.roots)
        self.users = users_of(order)

    def matches(self) -> dict[Node, _Match]:
        """By the normalisation, what becomes one node."""
        found: dict[Node, _Match] = {}
        for node in self.order:
            if node.op is relu:
                match = self._ending(node, found)
                if match is not None:
                    found[match.norm] = match
        return found

    def _ending(self, end: Node, found: dict[Node, _Match]) -> _Match | None:
        (before,) = end.inputs
        norm = self._norm_of(before, found)
        if norm is not None:
            return _Match(norm, end, ()) if self._is_hidden(before, end) else None
        if before.op is not add or not self._is_hidden(before, end):
            return None
        for value, other in (before.inputs, before.inputs[::-1]):
            norm = self._norm_of(value, found)
            if norm is None or other.spec.logical != value.spec.logical:
                continue
            if self._is_hidden(value, before) and not _uses_statistics(other):
                return _Match(norm, end, (other,))
        return None

    def _norm_of(self, value: Node, found: dict[Node, _Match]) -> Node | None:
        """The normalisation whose result this is."""
        if value.op is batch_norm_inference:
            return value
        if value.op is ITEM and value.attrs["index"] == 0 and value.inputs[0].op is batch_norm:
            return None if value.inputs[0] in found else value.inputs[0]
        return None

    def _is_hidden(self, value: Node, reader: Node) -> bool:
        """Whether nobody reads the value but `reader`, and those who ask whether it is positive."""
        if value in self.roots:
            return False
        return all(user is reader or is_positive_test(user, value) for user in self.users[value])

    def gradients(self, matches: dict[Node, _Match]) -> dict[Node, Node]:
        """The gradients of normalisations with relu, and the gradient before the relu of each."""
        found: dict[Node, Node] = {}
        for node in self.order:
            if node.op is not batch_norm_grad:
                continue
            masked, x, scale, mean, variance = node.inputs
            if mean.op is not ITEM or masked.op is not where or masked in self.roots:
                continue
            norm = mean.inputs[0]
            match = matches.get(norm)
            if match is None or match.more or node.attrs != norm.attrs:
                continue
            same = (x, scale) == norm.inputs[:2] and variance.inputs == (norm,)
            statistics = mean.attrs["index"] == 1 and variance.attrs.get("index") == 2
            condition, slope, nothing = masked.inputs
            tested = condition.inputs[0] if condition.inputs else condition
            ends = (match.end, *match.end.inputs)
            is_mask = is_positive_test(condition, tested) and tested in ends
            fits = slope.shape == masked.shape and uniform(nothing) == 0 and not is_spread(slope)
            if same and statistics and is_mask and fits and len(self.users[masked]) == 1:
                found[node] = slope
        return found


def is_spread(value: Node) -> bool:
    """Whether a value is broadcast: the mask reads that for nothing, a normalisation copies it."""
    while value.op.name in ("slice", "transpose", "flip"):
        value = value.inputs[0]
    return value.op.name == "broadcast_to"


def _uses_statistics(value: Node) -> bool:
    """Whether a value depends on the mean or variance of a batch, maybe of the one it is added to.

    Then that batch could not wait for it.
    """
    return any(
        node.op is ITEM and node.attrs["index"] > 0 and node.inputs[0].op is batch_norm
        for node in topological([value])
    )


def _rebuilt(program: Program, matches: dict[Node, _Match], gradients: dict[Node, Node]) -> Program:
    ends = {match.end: match for match in matches.values()}
    hidden = {match.end.inputs[0]: match.end for match in matches.values()}
    new: dict[Node, Node] = {}

    def needs(node: Node) -> Nodes:
        """What must be rebuilt before; a joined node may need what stood behind its first part."""
        if node in ends:
            return ends[node].needs
        if node in matches:
            return matches[node].needs
        if node in gradients:
            _, x, scale, mean, variance = node.inputs
            return gradients[node], x, scale, _shift(node), mean, variance
        return tuple(hidden.get(given, given) for given in node.inputs)

    def convert(node: Node) -> Node:
        inputs = tuple(new[given] for given in needs(node))
        match = ends.get(node) or matches.get(node)
        if match is not None:
            joined = batch_norm_relu if match.norm.op is batch_norm else batch_norm_inference_relu
            result = joined.node(*inputs, **match.norm.attrs)
            return item(result, 0) if node in ends and len(result.outputs) > 1 else result
        if node in gradients:
            return batch_norm_relu_grad.node(*inputs, **node.attrs)
        return node.op.rebuild(node, inputs)

    for node in dependency_order(program.roots, needs):
        new[node] = convert(node)
    return program.with_roots([new[root] for root in program.roots])


def _shift(gradient: Node) -> Node:
    """The shift of the normalisation whose gradient this is."""
    norm = gradient.inputs[3].inputs[0]
    return norm.inputs[2]
