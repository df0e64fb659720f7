"""Relu rewrites: bit masks for its gradient, and relu after max pooling.

The gradient of a large relu behind a product reads bits instead of the activations. The loop that
computes the activations also writes one bit for each: set if it is positive. That is a sixteenth
of the activations in half precision, and the gradient reads that much less: a third of all it
moves. Small layers gain nothing, and kernels for whole small networks do not support the masks.

A relu or a bias before a maximum over windows moves behind it, to fewer elements. Both preserve
the order of numbers, so they commute with the maximum; the three then form one op. In training
the gradient is masked by the sign of the maximum, and summed for the bias, before it is spread
over the windows. The input of the pooling need not be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.compiler.passes.constants import is_positive_test, uniform
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes, item
from caldera.core.graph.ops.base import cast, constant, full
from caldera.core.graph.ops.elementwise import add, greater, relu, where
from caldera.core.graph.ops.epilogue import is_channel_bias, matmul_epilogue, max_pool2d_epilogue
from caldera.core.graph.ops.pooling import max_pool2d, pool_scatter
from caldera.core.graph.ops.product import matmul
from caldera.core.graph.ops.relu_mask import relu_mask as relu_with_mask
from caldera.core.graph.ops.relu_mask import relu_mask_grad
from caldera.core.graph.ops.widening import accumulator
from caldera.core.graph.program import Program, users_of

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


@dataclass(frozen=True)
class _PoolFirstMatch:
    """A relu, the pooling that reads it, and its gradients behind the spread ones."""

    relu: Node
    pool: Node
    gradients: tuple[Node, ...]


def pool_first(program: Program) -> Program:
    """Let relu and biases change places with the pooling that follows."""
    return _bias_behind(_relu_behind(program))


def _makes_fewer(node: Node) -> bool:
    """Whether it is a pooling after which there are fewer elements."""
    is_pooling = node.op in (max_pool2d, max_pool2d_epilogue)
    return is_pooling and node.outputs[0].size < node.inputs[0].spec.size


# --- relu


def _relu_behind(program: Program) -> Program:
    order = program.order()
    finder = _Finder(program, order)
    matches = [match for node in order if (match := finder.find(node)) is not None]
    if not matches:
        return program
    pools = {match.pool: match for match in matches}
    gradients = {slope: match.pool for match in matches for slope in match.gradients}
    new: dict[Node, Node] = {}
    for node in order:
        given = tuple(new[each] for each in node.inputs)
        if node in pools:
            before = new[pools[node].relu.inputs[0]]
            new[node] = max_pool2d_epilogue.node(before, activated=True, **node.attrs)
        elif node in gradients:
            spread = node.inputs[1]
            slope, index = (new[each] for each in spread.inputs)
            most = item(new[gradients[node]], 0)
            stopped = where(
                greater(most, constant(0, most.dtype)), slope, full(slope.shape, 0, slope.dtype)
            )
            new[node] = spread.op.rebuild(spread, (stopped, index))
        else:
            new[node] = node.op.rebuild(node, given)
    return program.with_roots([new[root] for root in program.roots])


class _Finder:
    def __init__(self, program: Program, order: Sequence[Node]) -> None:
        self.roots = set(program.roots)
        self.users = users_of(order)

    def find(self, node: Node) -> _PoolFirstMatch | None:
        """What changes places, if `node` is a relu that nobody reads but a pooling."""
        if node.op is not relu or node in self.roots or _is_normalised(node.inputs[0]):
            return None
        pool, *others = self.users[node] or [node]
        if others or not _makes_fewer(pool):
            return None
        (before,) = node.inputs
        gradients: list[Node] = []
        for user in self.users[before]:
            if user is not node:
                if user.op is not greater or uniform(user.inputs[1]) != 0 or user in self.roots:
                    return None
                gradients += self.users[user]
        spreads = [spread for each in self._indices(pool) for spread in self.users[each]]
        if any(each in self.roots for each in (before, *self._indices(pool), *spreads)):
            return None
        if len(gradients) != len(spreads) or not all(
            self._is_gradient(each, spreads) for each in gradients
        ):
            return None
        return _PoolFirstMatch(node, pool, tuple(gradients))

    def _indices(self, pool: Node) -> list[Node]:
        return [user for user in self.users[pool] if user.attrs.get("index") == 1]

    def _is_gradient(self, node: Node, spreads: list[Node]) -> bool:
        """Whether it is a spread gradient where the relu let something through, else 0."""
        if node.op is not where or uniform(node.inputs[2]) != 0:
            return False
        spread = node.inputs[1]
        return spread in spreads and spread.op is pool_scatter and self.users[spread] == [node]


def _is_normalised(value: Node) -> bool:
    """Whether the relu is part of a batch normalisation, where it costs nothing."""
    made_by = value.inputs[0] if value.op is ITEM else value
    if made_by.op.name == "add":
        return any(_is_normalised(given) for given in made_by.inputs)
    return made_by.op.name.startswith("batch_norm")


# --- bias

SPATIAL = {2, 3}
"""The axes of images over which windows lie."""


def _bias_behind(program: Program) -> Program:
    order = program.order()
    users = users_of(order)
    roots = set(program.roots)
    biases: dict[Node, tuple[Node, Node]] = {}
    for node in order:
        if _makes_fewer(node) and users[node.inputs[0]] == [node] and len(node.inputs) == 1:
            found = _image_and_bias(node.inputs[0])
            if found is not None and node.inputs[0] not in roots:
                biases[node] = found
    if not biases:
        return program
    new: dict[Node, Node] = {}
    for node in order:
        given = tuple(new[each] for each in node.inputs)
        if node in biases:
            attrs = {"activated": False, **node.attrs}
            new[node] = max_pool2d_epilogue.node(*[new[each] for each in biases[node]], **attrs)
        elif _adds_up_spread(node, biases):
            # Every number was spread to one place, so the sum is that of the numbers.
            numbers = new[_uncast(node.inputs[0]).inputs[0]]
            new[node] = node.op.rebuild(node, (cast(numbers, node.inputs[0].dtype),))
        else:
            new[node] = node.op.rebuild(node, given)
    return program.with_roots([new[root] for root in program.roots])


def _image_and_bias(value: Node) -> tuple[Node, Node] | None:
    if value.op is not add:
        return None
    for image, bias in (value.inputs, value.inputs[::-1]):
        if image.shape == value.shape and is_channel_bias(bias, image):
            return image, bias
    return None


def _adds_up_spread(node: Node, biases: dict[Node, tuple[Node, Node]]) -> bool:
    if node.op.name != "sum" or not set(node.attrs["axis"]) >= SPATIAL:
        return False
    spread = _uncast(node.inputs[0])
    return spread.op is pool_scatter and spread.inputs[1].inputs[0] in biases


def _uncast(value: Node) -> Node:
    """What a cast reads: half precision is added up in float32."""
    return value.inputs[0] if value.op.name == "cast" else value
