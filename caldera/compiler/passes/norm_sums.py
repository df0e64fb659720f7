"""The sums of batch normalisation go into the convolution whose result they are taken of.

Forward these are mean and variance; what normalises is then the op for given statistics. Backward
they are the gradients of scale and shift, taken of the convolution's input gradient, maybe after
something is added to it and a relu's mask; what remains is one pass over the image. A kernel takes
them while what it writes is in its cache, which saves one more pass over memory each.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.compiler.passes.constants import is_positive_test, uniform
from caldera.compiler.passes.epilogue import is_spread, summands
from caldera.compiler.passes.joins import Join, Uses, rebuilt
from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes
from caldera.core.graph.ops.elementwise import where
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
from caldera.core.graph.program import Program
from caldera.core.tensor.dtype import float32, float64

GIVEN = {batch_norm: batch_norm_inference, batch_norm_relu: batch_norm_inference_relu}
"""By ops that take statistics of x, those that are given them."""
GRADIENTS = frozenset({batch_norm_grad, batch_norm_relu_grad})


def norm_sums(program: Program) -> Program:
    """Join convolutions with the sums of the normalisations that follow them."""
    if not any(node.op in GIVEN or node.op in GRADIENTS for node in program.order()):
        return program
    uses = Uses(program)
    for node in uses.order:
        if node.op in GIVEN and node.inputs[0].op is conv2d and _fits(node, node.inputs[0]):
            _join_moments(uses, node)
    found: dict[Node, _Gradient] = {}
    for node in uses.order:
        match = _gradient(uses, node) if node.op in GRADIENTS else None
        if match is not None:
            found.setdefault(match.value, match)
    for match in _untangled(uses, found):
        _join_gradients(uses, match)
    return rebuilt(program, uses.joined)


def _fits(norm: Node, image: Node) -> bool:
    """Whether a normalisation is one that kernels with sums know."""
    dtypes = {given.dtype for given in norm.inputs}
    of_images = len(image.shape) == 4 and norm.attrs["axis"] == 1
    return of_images and (dtypes == {float32} or dtypes == {float64})


def _join_moments(uses: Uses, norm: Node) -> None:
    """Let a convolution compute the moments, and normalise by these."""
    convolution = norm.inputs[0]
    count = len(convolution.inputs)

    def moments(*inputs: Node) -> Nodes:
        return conv2d_moments.outputs(*inputs, **convolution.attrs)

    def normalised(*inputs: Node) -> Nodes:
        x, scale, shift, *more = inputs[count:]
        statistics = moments(*inputs[:count])[1:]
        y = GIVEN[norm.op](x, scale, shift, *statistics, *more, **norm.attrs)
        return y, *statistics

    uses.add(Join(convolution.inputs, moments, {convolution: (0,)}))
    uses.add(Join((*convolution.inputs, *norm.inputs), normalised, {norm: (0, 1, 2)}))


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


def _gradient(uses: Uses, norm: Node) -> _Gradient | None:
    value = norm.inputs[0]
    mask: str | None = None
    seen: Nodes = ()
    slope, reader = value, norm
    if norm.op is batch_norm_relu_grad:
        # Behind the mask it is another value, which no other node may read.
        mask, seen = "x", (norm.inputs[3],)
        if uses.only_reader(value) is not norm:
            return None
    elif value.op is where and uniform(value.inputs[2]) == 0:
        condition, slope, _ = value.inputs
        tested = condition.inputs[0] if condition.inputs else condition
        if not is_positive_test(condition, tested) or tested.spec != value.spec:
            return None
        if slope.spec != value.spec or uses.only_reader(slope) is not value:
            return None
        mask, seen, reader = "y", (tested,), value
    for convolution, more in _terms(slope):
        end = slope if more else reader
        is_hidden = convolution is value or uses.only_reader(convolution) is end
        if is_hidden and _fits(norm, convolution):
            return _Gradient(norm, value, convolution, mask, more, seen)
    return None


def _terms(slope: Node) -> list[tuple[Node, Nodes]]:
    """The input gradients of convolutions that a value is or has in it, each with the rest."""
    if slope.op is conv2d_input:
        return [(slope, ())]
    return [
        (one, (other,))
        for one, other in summands(slope)
        if one.op is conv2d_input and one.spec == other.spec and not is_spread(other)
    ]


def _untangled(uses: Uses, found: dict[Node, _Gradient]) -> list[_Gradient]:
    """Those whose x and statistics need none of the gradients that now wait for such."""
    behind: set[Node] = set()
    for node in uses.order:
        if node in found or not behind.isdisjoint(node.inputs):
            behind.add(node)
    return [each for each in found.values() if behind.isdisjoint(each.new_needs)]


def _join_gradients(uses: Uses, match: _Gradient) -> None:
    """Let a convolution's gradient add up those of scale and shift, and compute the rest."""
    attrs = {
        **match.convolution.attrs,
        "added": bool(match.more),
        "mask": match.mask,
        "eps": match.norm.attrs["eps"],
    }
    inputs = (*match.convolution.inputs, *match.statistics, *match.more, *match.seen)
    first = len(match.convolution.inputs)

    def sums(*inputs: Node) -> Nodes:
        return conv2d_input_norm_reduce.outputs(*inputs, **attrs)

    def gradients(*inputs: Node) -> Nodes:
        slope, for_scale, for_shift = sums(*inputs)
        statistics = inputs[first : first + 4]
        dx = batch_norm_grad_elementwise(
            slope, *statistics, for_scale, for_shift, **match.norm.attrs
        )
        return dx, for_scale, for_shift

    uses.add(Join(inputs, sums, {match.value: (0,)}))
    uses.add(Join(inputs, gradients, {match.norm: (0, 1, 2)}))
