"""The sums of batch normalisation go into the convolution whose result they are taken of.

Forward these are mean and variance; what normalises is then the op for given statistics. Backward
they are the gradients of scale and shift, taken of the convolution's input gradient, maybe after
something is added to it and a relu's mask; what remains is one pass over the image. A kernel takes
them while what it writes is in its cache, which saves one more pass over memory each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from caldera.compiler.passes.constants import is_positive_test, uniform
from caldera.compiler.passes.dependency_order import dependency_order
from caldera.compiler.passes.epilogue import is_spread
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import ITEM, Nodes, item
from caldera.core.graph.ops.elementwise import add, where
from caldera.core.graph.ops.epilogue import (
    batch_norm_grad_elementwise,
    batch_norm_inference_relu,
    batch_norm_relu,
    batch_norm_relu_grad,
    conv2d_input_norm_reduce,
    conv2d_moments,
)
from caldera.core.graph.ops.normalisation import batch_norm, batch_norm_grad, batch_norm_inference
from caldera.core.graph.ops.product import conv2d, conv2d_input
from caldera.core.graph.program import Program, users_of
from caldera.core.tensor.dtype import float32, float64

GIVEN = {batch_norm: batch_norm_inference, batch_norm_relu: batch_norm_inference_relu}
"""By ops that take statistics of x, those that are given them."""


@dataclass(frozen=True)
class _Gradient:
    """A normalisation's gradient, and the convolution's behind it.

    `value` is the gradient with respect to what normalisation and relu gave, or, if the mask is
    seen from "x", what that becomes behind the mask.
    """

    norm: Node
    value: Node
    convolution: Node
    mask: str | None
    more: Nodes
    seen: Nodes

    @property
    def statistics(self) -> Nodes:
        """x, scale, mean and variance."""
        x, scale = self.norm.inputs[1:3]
        return x, scale, *self.norm.inputs[-2:]

    @property
    def new_needs(self) -> Nodes:
        """What the value did not need before."""
        return *self.statistics, *(self.seen if self.mask == "x" else ())

    @property
    def needs(self) -> Nodes:
        """The inputs of the joined node."""
        return *self.convolution.inputs, *self.statistics, *self.more, *self.seen


def norm_sums(program: Program) -> Program:
    """Join convolutions with the sums of the normalisations that follow them."""
    order = program.order()
    forward = {node: node.inputs[0] for node in order if node.op in GIVEN and _is_convolved(node)}
    gradients = _untangled(order, _gradients(program, order))
    if not forward and not gradients:
        return program
    return _rebuilt(program, forward, gradients)


def _fits(norm: Node, image: Node) -> bool:
    """Whether a normalisation is one that kernels with sums know."""
    dtypes = {given.dtype for given in norm.inputs}
    of_images = len(image.shape) == 4 and norm.attrs["axis"] == 1
    return of_images and (dtypes == {float32} or dtypes == {float64})


def _is_convolved(norm: Node) -> bool:
    image = norm.inputs[0]
    return image.op is conv2d and _fits(norm, image)


# --- gradients


def _gradients(program: Program, order: Sequence[Node]) -> list[_Gradient]:
    users = users_of(order)
    roots = set(program.roots)
    found: list[_Gradient] = []

    def is_only_read_by(value: Node, reader: Node) -> bool:
        return value not in roots and list(users[value]) == [reader]

    def match(norm: Node) -> _Gradient | None:
        value = norm.inputs[0]
        mask: str | None = None
        seen: Nodes = ()
        slope, reader = value, norm
        if norm.op is batch_norm_relu_grad:
            # Behind the mask it is another value, which nobody else may want.
            mask, seen = "x", (norm.inputs[3],)
            if not is_only_read_by(value, norm):
                return None
        elif value.op is where and uniform(value.inputs[2]) == 0:
            condition, slope, _ = value.inputs
            tested = condition.inputs[0] if condition.inputs else condition
            if not is_positive_test(condition, tested) or tested.spec != value.spec:
                return None
            if slope.spec != value.spec or not is_only_read_by(slope, value):
                return None
            mask, seen, reader = "y", (tested,), value
        for convolution, more in _summands(slope):
            is_hidden = convolution is value or is_only_read_by(
                convolution, slope if more else reader
            )
            if is_hidden and _fits(norm, convolution):
                return _Gradient(norm, value, convolution, mask, more, seen)
        return None

    for node in order:
        if node.op in (batch_norm_grad, batch_norm_relu_grad):
            match_found = match(node)
            if match_found is not None and match_found.value not in {m.value for m in found}:
                found.append(match_found)
    return found


def _summands(slope: Node) -> list[tuple[Node, Nodes]]:
    """The input gradients of convolutions that a value is or has in it, each with the rest."""
    if slope.op is conv2d_input:
        return [(slope, ())]
    if slope.op is not add:
        return []
    pairs = (slope.inputs, slope.inputs[::-1])
    return [
        (one, (other,))
        for one, other in pairs
        if one.op is conv2d_input and one.spec == other.spec and not is_spread(other)
    ]


def _untangled(order: Sequence[Node], found: list[_Gradient]) -> list[_Gradient]:
    """Those whose x and statistics need none of the gradients that now wait for such."""
    waiting = {each.value for each in found}
    behind: set[Node] = set()
    for node in order:
        if node in waiting or any(given in behind for given in node.inputs):
            behind.add(node)
    return [each for each in found if not any(given in behind for given in each.new_needs)]


# --- rebuilding


def _rebuilt(program: Program, forward: dict[Node, Node], gradients: list[_Gradient]) -> Program:
    convolved = set(forward.values())
    by_value = {each.value: each for each in gradients}
    by_norm = {each.norm: each for each in gradients}
    new: dict[Node, Nodes] = {}

    def needs(node: Node) -> Nodes:
        return by_value[node].needs if node in by_value else node.inputs

    def sums_of(match: _Gradient) -> Nodes:
        attrs = {
            **match.convolution.attrs,
            "added": bool(match.more),
            "mask": match.mask,
            "eps": match.norm.attrs["eps"],
        }
        inputs = [new[given][0] for given in match.needs]
        return conv2d_input_norm_reduce.outputs(*inputs, **attrs)

    def convert(node: Node) -> Nodes:
        if node.op is ITEM:
            return (new[node.inputs[0]][node.attrs["index"]],)
        if node in by_value:
            return sums_of(by_value[node])[:1]
        inputs = [new[given][0] for given in node.inputs]
        if node in convolved:
            return conv2d_moments.outputs(*inputs, **node.attrs)[:1]
        if node in forward:
            statistics = conv2d_moments.outputs(
                *[new[given][0] for given in forward[node].inputs], **forward[node].attrs
            )[1:]
            x, scale, shift, *more = inputs
            y = GIVEN[node.op](x, scale, shift, *statistics, *more, **node.attrs)
            return y, *statistics
        if node in by_norm:
            match = by_norm[node]
            slope, for_scale, for_shift = sums_of(match)
            given = [new[each][0] for each in match.statistics]
            dx = batch_norm_grad_elementwise(slope, *given, for_scale, for_shift, **node.attrs)
            return dx, for_scale, for_shift
        result = node.op.rebuild(node, tuple(inputs))
        if len(result.outputs) == 1:
            return (result,)
        return tuple(item(result, index) for index in range(len(result.outputs)))

    for node in dependency_order(program.roots, needs):
        new[node] = convert(node)
    return program.with_roots([new[root][0] for root in program.roots])
