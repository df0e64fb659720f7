"""What a residual block adds goes into the layer norm that follows, and into its gradient.

x + f(x) is read by the norm of the next block, and the gradient of that norm is added to the one
that came around it, rounded for products, and added up for a bias. Each of these is a pass over all
activations, and in a small network a launch that takes longer than its work. The norm and its
gradient have the values at hand: the first writes the sum, the second what the others would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.compiler.passes.dependency_order import dependency_order
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes, item
from caldera.core.graph.ops.elementwise import add
from caldera.core.graph.ops.epilogue import (
    layer_norm_grad_residual,
    layer_norm_residual,
    layer_norm_rounded,
)
from caldera.core.graph.ops.normalisation import layer_norm, layer_norm_grad
from caldera.core.graph.program import Program, topological, users_of
from caldera.core.tensor.dtype import HALVES, DType

_VIEWS = ("reshape", "transpose", "slice")


@dataclass(frozen=True)
class _Forward:
    """A norm of `total`, which is x and `more` added up."""

    norm: Node
    total: Node
    x: Node
    more: Node

    @property
    def needs(self) -> Nodes:
        return self.x, self.more, *self.norm.inputs[1:]

    def joined(self, inputs: Nodes) -> Node:
        attrs = {"dtype": self.norm.outputs[0].dtype, **self.norm.attrs}
        return layer_norm_residual.node(*inputs, **attrs)


@dataclass(frozen=True)
class _Backward:
    """The gradient of a norm, what is added to it, and what is made of that."""

    norm: Node
    total: Node
    more: Nodes
    casts: Nodes
    sums: Nodes

    @property
    def needs(self) -> Nodes:
        return *self.norm.inputs, *self.more

    @property
    def dtype(self) -> DType | None:
        return self.casts[0].dtype if self.casts else None

    def joined(self, inputs: Nodes) -> Node:
        return layer_norm_grad_residual.node(
            *inputs, **self.norm.attrs, dtype=self.dtype, summed=bool(self.sums)
        )

    @property
    def parts(self) -> dict[Node, int]:
        """What becomes which result of the joined node."""
        casts = dict.fromkeys(self.casts, 3)
        sums = dict.fromkeys(self.sums, 3 + bool(self.casts))
        return {self.total: 0, **casts, **sums}


def residual_norm(program: Program) -> Program:
    """Join layer norms, and their gradients, with the sums around them."""
    order = program.order()
    finder = _Finder(program, order)
    forward = {node: match for node in order if (match := finder.forward(node))}
    backward = {node: found for node in order if (found := finder.backward(node))}
    if not forward and not backward:
        return program
    return _rebuilt(program, forward, backward)


def _rebuilt(
    program: Program, forward: dict[Node, _Forward], backward: dict[Node, _Backward]
) -> Program:
    matches: dict[Node, _Forward | _Backward] = {**forward, **backward}
    parts = {match.total: (norm, 0) for norm, match in forward.items()}
    for norm, match in backward.items():
        parts.update({node: (norm, index) for node, index in match.parts.items()})
    new: dict[Node, Node] = {}

    def needs(node: Node) -> Nodes:
        if node in matches:
            return matches[node].needs
        return (parts[node][0],) if node in parts else node.inputs

    def convert(node: Node) -> Node:
        inputs = tuple(new[given] for given in needs(node))
        if node in matches:
            return matches[node].joined(inputs)
        if node in parts:
            return item(inputs[0], parts[node][1])
        if node.op is ITEM and node.inputs[0] in forward:
            # The sum comes first.
            return item(inputs[0], node.attrs["index"] + 1)
        return node.op.rebuild(node, inputs)

    for node in dependency_order(program.roots, needs):
        new[node] = convert(node)
    return program.with_roots([new[root] for root in program.roots])


class _Finder:
    def __init__(self, program: Program, order: Sequence[Node]) -> None:
        self.place = {node: place for place, node in enumerate(order)}
        self.roots = set(program.roots)
        self.users = users_of(order)
        self.taken: set[Node] = set()

    def forward(self, node: Node) -> _Forward | None:
        """The sum that a layer norm normalises, if nothing else would take it along."""
        if node.op not in (layer_norm, layer_norm_rounded):
            return None
        total = node.inputs[0]
        if total.op is not add or total in self.taken:
            return None
        x, more = sorted(total.inputs, key=lambda given: given.op.name == "cast")
        fits = x.spec.logical == more.spec.logical == total.spec.logical
        source = _source(more)
        if not fits or self._is_of_a_loop(x) or self._is_of_a_loop(source):
            return None
        if any(self._depends(given, total) for given in node.inputs[1:]):
            return None
        self.taken.add(total)
        return _Forward(node, total, x, source)

    def backward(self, node: Node) -> _Backward | None:
        """What follows the gradient of a layer norm with respect to its input."""
        if node.op is not layer_norm_grad:
            return None
        results = [user for user in self.users[node] if user.attrs["index"] == 0]
        if not results:
            return None
        (total,) = results
        more: Nodes = ()
        readers = self.users[total]
        if len(readers) == 1 and total not in self.roots:
            found = self._added(node, total, readers[0])
            if found is not None:
                total, more = readers[0], (found,)
        casts = self._casts(total)
        sums = self._sums(node, total)
        if not more and not casts and not sums:
            return None
        self.taken.add(total)
        return _Backward(node, total, more, casts, sums)

    def _added(self, norm: Node, gradient: Node, total: Node) -> Node | None:
        """What a sum adds to the gradient, if that does not wait for the norm."""
        if total.op is not add or total in self.taken or total.inputs[0] is total.inputs[1]:
            return None
        (other,) = [given for given in total.inputs if given is not gradient]
        if other.spec.logical != gradient.spec.logical or self._depends(other, norm):
            return None
        return _source(other)

    def _casts(self, total: Node) -> Nodes:
        """How products read it."""
        casts = [user for user in self.users[total] if user.op.name == "cast"]
        narrow = [each for each in casts if each.dtype in HALVES and self._is_product_of(each)]
        return tuple(narrow) if len({each.dtype for each in narrow}) == 1 else ()

    def _is_product_of(self, value: Node) -> bool:
        """Whether somebody reads it who does not take it into a loop."""
        readers = self.users[value]
        return any(
            self._is_product_of(user) if user.op.name in _VIEWS else user.op.kind != "elementwise"
            for user in readers
        )

    def _sums(self, norm: Node, total: Node) -> Nodes:
        """Its sums over samples: one number for each element of a row."""
        axes, rank = norm.attrs["axis"], len(total.shape)
        others = tuple(axis for axis in range(rank) if axis not in axes)
        found = [user for user in self.users[total] if _is_sum(user, others)]
        if axes == (rank - 1,):
            as_rows = (total.spec.size // max(total.shape[-1], 1), total.shape[-1])
            for user in self.users[total]:
                if user.op.name == "reshape" and user.shape == as_rows:
                    found += [each for each in self.users[user] if _is_sum(each, (0,))]
        return tuple(found)

    def _is_of_a_loop(self, value: Node) -> bool:
        """Whether an element-wise op makes it for this one reader, which it would take along."""
        while value.op.name in _VIEWS and len(self.users[value]) == 1:
            value = value.inputs[0]
        return value.op.kind == "elementwise" and len(self.users[value]) == 1

    def _depends(self, value: Node, on: Node) -> bool:
        return self.place[value] > self.place[on] and on in topological([value])


def _source(value: Node) -> Node:
    """What is added, before it was widened for that."""
    if value.op.name == "cast" and value.inputs[0].dtype in HALVES and value.dtype not in HALVES:
        return value.inputs[0]
    return value


def _is_sum(node: Node, axes: tuple[int, ...]) -> bool:
    return node.op.name == "sum" and node.attrs["axis"] == axes and not node.attrs["keepdims"]
