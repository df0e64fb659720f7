"""Epilogues: biases, activations and sums joined with products and normalisations.

The bias and the activation are applied while the result of a product or convolution is still at
hand. The product and the sum must have no other reader. The gradients of relu, sigmoid and tanh
need only the activated value, so this holds in training too.

A batch normalisation takes over the relu after it, and an image added in between, which saves a
pass over memory for each. So does a convolution of bytes. The normalised value must have no other
reader. In training the gradient of the relu is fused into the gradient of the normalisation, which
recomputes the sign; with an added image it stays separate, since the gradient of the image needs it
too.

A convolution computes the sums of the batch normalisation that follows. Forward these are mean and
variance; the op for given statistics then normalises. Backward they are the gradients of scale and
shift, taken of the convolution's input gradient, maybe after a sum and the mask of a relu; one pass
over the image remains. A kernel adds them up while its result is in the cache, which saves one more
pass over memory each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from caldera.compiler.passes.constants import is_positive_test, source_of, uniform
from caldera.compiler.passes.lower import HasKernel
from caldera.compiler.passes.pattern import Join, Joins, Uses, rebuilt
from caldera.core.graph import ITEM, OPS, Node, Nodes, Op, Program, topological
from caldera.core.graph.ops import add, conv2d, conv2d_input, greater, matmul, relu, reshape, where
from caldera.core.graph.ops.epilogue import (
    ACTIVATIONS,
    batch_norm_grad_elementwise,
    batch_norm_inference_relu,
    batch_norm_relu,
    batch_norm_relu_grad,
    conv2d_epilogue,
    conv2d_input_norm_reduce,
    conv2d_moments,
    is_bias,
    is_channel_bias,
    matmul_epilogue,
)
from caldera.core.graph.ops.int8 import int8_conv2d, int8_conv2d_relu
from caldera.core.graph.ops.normalisation import batch_norm, batch_norm_grad, batch_norm_inference
from caldera.core.tensor.dtype import float32, float64

JOINED = {matmul: (matmul_epilogue, is_bias), conv2d: (conv2d_epilogue, is_channel_bias)}
"""For each product its joined op, and the test for biases it accepts."""


def epilogue(program: Program, has_kernel: HasKernel) -> Program:
    """Join products with the following bias and activation, if the device has such kernels."""
    products = {product for product, (joined, _) in JOINED.items() if has_kernel(joined.name)}
    ends = (*sorted(ACTIVATIONS), "add")
    matches = [(OPS[name], partial(_epilogue, products=products)) for name in ends]
    return Joins((greater, _test_of_activated), *matches)(program)


def _test_of_activated(uses: Uses, node: Node) -> Join | None:
    """x > 0 is relu(x) > 0: testing the latter leaves x without a reader."""
    tested, zero = node.inputs
    activated = [user for user in uses.users[tested] if user.op is relu]
    if not activated or uniform(zero) != 0:
        return None
    return Join((activated[0], zero), lambda *inputs: (greater(*inputs),), {node: (0,)})


def _epilogue(uses: Uses, node: Node, products: set[Op]) -> Join | None:
    """Return the product, the bias (if there is one) and the activation that `node` ends."""
    inner: Node = node
    activation: str | None = None
    if node.op is not add:
        (inner,), activation = node.inputs, node.op.name
        if inner.op.name == "reshape" and uses.only_reader(inner):
            (inner,) = inner.inputs
        if not uses.only_reader(inner):
            return None
    fused_later = _is_fused_later(uses, node)
    if activation is None and fused_later:
        return None
    found = (inner, ()) if inner.op in products else _with_bias(uses, inner, products)
    if found is None or (found[0].op is conv2d and fused_later):
        # A convolution with an epilogue may need a separate loop after it, so a sum that is fused
        # later would need a second one.
        return None
    product, bias = found
    attributes = () if activation is None else tuple(node.attrs.items())

    def build(*inputs: Node) -> Nodes:
        joined, _ = JOINED[product.op]
        attrs = {**product.attrs, "activation": activation, "attributes": attributes}
        return (reshape(joined(*inputs, **attrs), node.shape),)

    return Join((*product.inputs, *bias), build, {node: (0,)})


def _with_bias(uses: Uses, total: Node, products: set[Op]) -> tuple[Node, Nodes] | None:
    for product, bias in summands(total):
        if product.op in products and uses.only_reader(product):
            _, fits = JOINED[product.op]
            if fits(bias, product):
                return product, (bias,)
    return None


def summands(total: Node) -> Iterator[tuple[Node, Node]]:
    """Yield both orders of a sum's two terms; none if the node is not a sum."""
    if total.op is add:
        first, second = total.inputs
        yield first, second
        yield second, first


def _is_fused_later(uses: Uses, total: Node) -> bool:
    """Return True if element-wise readers will take the sum into their own loop anyway."""
    elementwise = all(user.op.kind == "elementwise" for user in uses.readers(total))
    return total not in uses.roots and elementwise


def _ending(uses: Uses, end: Node) -> Join | None:
    """Join a normalisation with an image added to its result and the final relu."""
    (before,) = end.inputs
    if not _is_hidden(uses, before, end):
        return None
    norm = _norm_of(uses, before)
    more: Nodes = ()
    if norm is None:
        for value, other in summands(before):
            norm, more = _norm_of(uses, value), (other,)
            fits = norm is not None and other.spec.logical == value.spec.logical
            if fits and _is_hidden(uses, value, before) and not _uses_statistics(other):
                break
        else:
            return None
    assert norm is not None
    return Join(
        (*norm.inputs, *more),
        partial(_ACTIVATED[norm.op].outputs, **norm.attrs),
        {norm: tuple(range(len(norm.outputs))), before: (0,), end: (0,)},
    )


def _norm_of(uses: Uses, value: Node) -> Node | None:
    """Return the normalisation, or convolution of bytes, whose result this is, if no relu has it
    yet."""
    if value.op in (batch_norm_inference, int8_conv2d):
        return value
    if value.op is ITEM and value.attrs["index"] == 0 and value.inputs[0].op is batch_norm:
        return None if value.inputs[0] in uses.joined else value.inputs[0]
    return None


_ACTIVATED = {
    batch_norm: batch_norm_relu,
    batch_norm_inference: batch_norm_inference_relu,
    int8_conv2d: int8_conv2d_relu,
}
"""For each op that takes over the relu after it, the op with both."""


def _is_hidden(uses: Uses, value: Node, reader: Node) -> bool:
    """Return True if only `reader` reads the value, and tests that compare it with 0."""
    if value in uses.roots:
        return False
    return all(user is reader or is_positive_test(user, value) for user in uses.users[value])


def _masked_gradient(uses: Uses, node: Node) -> Join | None:
    """Return the gradient of a normalisation with relu, behind the mask of that relu."""
    masked, x, scale, mean, variance = node.inputs
    if mean.op is not ITEM or masked.op is not where or masked in uses.roots:
        return None
    norm = mean.inputs[0]
    forward = uses.joined.get(norm)
    if forward is None or forward.inputs != norm.inputs or node.attrs != norm.attrs:
        return None
    same = (x, scale) == norm.inputs[:2] and variance.inputs == (norm,)
    statistics = mean.attrs["index"] == 1 and variance.attrs.get("index") == 2
    condition, slope, nothing = masked.inputs
    tested = condition.inputs[0] if condition.inputs else condition
    is_mask = is_positive_test(condition, tested) and tested in forward.replaces
    fits = slope.shape == masked.shape and uniform(nothing) == 0 and not is_spread(slope)
    if not (same and statistics and is_mask and fits and len(uses.users[masked]) == 1):
        return None
    return Join(
        (slope, x, scale, norm.inputs[2], mean, variance),
        partial(batch_norm_relu_grad.outputs, **node.attrs),
        {node: (0, 1, 2)},
    )


norm_epilogue = Joins((relu, _ending), (batch_norm_grad, _masked_gradient))
"""Join batch normalisations with the sum and the relu that follow them."""


def is_spread(value: Node) -> bool:
    """Return True for broadcasts: the mask reads them for free, a normalisation copies them."""
    return source_of(value, ("slice", "transpose", "flip")).op.name == "broadcast_to"


def _uses_statistics(value: Node) -> bool:
    """Return True if a value depends on batch statistics, possibly of the same normalisation.

    The normalisation could then not wait for the value.
    """
    return any(
        node.op is ITEM and node.attrs["index"] > 0 and node.inputs[0].op is batch_norm
        for node in topological([value])
    )


GIVEN = {batch_norm: batch_norm_inference, batch_norm_relu: batch_norm_inference_relu}
"""For each op that computes statistics, the op that receives them."""
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
    """Return True if kernels with sums support a normalisation."""
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
    """A normalisation's gradient, and the convolution gradient before it.

    `value` is the gradient with respect to the result of normalisation and relu. If the mask is
    computed from "x", it is the gradient after the mask.
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
        """Further inputs that `value` needs after the join."""
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
    """Return the gradients whose new inputs do not depend on other such gradients."""
    behind: set[Node] = set()
    for node in uses.order:
        if node in found or not behind.isdisjoint(node.inputs):
            behind.add(node)
    return [each for each in found.values() if behind.isdisjoint(each.new_needs)]


def _join_gradients(uses: Uses, match: _Gradient) -> None:
    """Join a convolution's gradient with the sums for scale and shift, and compute the rest."""
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
