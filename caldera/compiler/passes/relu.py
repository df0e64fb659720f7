"""Relu rewrites: bit masks for its gradient, and relu after max pooling.

The gradient of a large relu behind a product reads bits instead of the activations. The loop that
computes the activations also writes one bit for each: set if it is positive. That is a sixteenth of
the activations in half precision, and the gradient reads that much less: a third of all it moves.
Small layers do not benefit, and kernels for whole small networks do not support the masks.

A relu or a bias before a maximum over windows moves behind it, to fewer elements. Both preserve the
order of numbers, so they commute with the maximum; the three then form one op. In training the
gradient is masked by the sign of the maximum, and summed for the bias, before it is spread over the
windows. The input of the pooling is not kept.
"""

from __future__ import annotations

from functools import partial

from caldera.compiler.passes.constants import is_positive_test, is_sum_over, uniform
from caldera.compiler.passes.epilogue import summands
from caldera.compiler.passes.pattern import Join, Joins, Uses
from caldera.core.graph import ITEM, OPS, Node, Nodes, Program, item
from caldera.core.graph.ops import (
    accumulator,
    cast,
    constant,
    full,
    greater,
    matmul,
    max_pool2d,
    pool_scatter,
    relu,
    where,
)
from caldera.core.graph.ops.epilogue import (
    is_channel_bias,
    matmul_epilogue,
    max_pool2d_epilogue,
    relu_mask_grad,
)
from caldera.core.graph.ops.epilogue import relu_mask as relu_with_mask

LARGE = 1 << 22
"""Minimum number of activations of a layer for which the pass pays."""


def _with_mask(uses: Uses, product: Node) -> Join | None:
    """Return a large relu behind a product whose gradient can use a mask."""
    if product.attrs["activation"] != "relu":
        return None
    if len(product.shape) != 2 or product.spec.size < LARGE:
        return None
    tests = [user for user in uses.users[product] if is_positive_test(user, product)]
    masked = uses.only_reader(tests[0]) if len(tests) == 1 else None
    if masked is None or masked.op is not where:
        return None
    test, gradient, nothing = masked.inputs
    fits = gradient.spec.logical == masked.spec.logical and uniform(nothing) == 0
    # A loop that makes the gradient takes the mask along anyway.
    if test is not tests[0] or not fits or gradient.op.kind == "elementwise":
        return None
    attrs = dict(product.attrs)
    del attrs["activation"], attrs["attributes"]

    def build(*inputs: Node) -> Nodes:
        if len(inputs) > 2:
            plain = matmul_epilogue(*inputs, **attrs, activation=None, attributes=())
        else:
            plain = matmul(*inputs, **attrs)
        return relu_with_mask.outputs(plain)

    return Join(product.inputs, build, {product: (0,)})


def _masked_gradient(uses: Uses, node: Node) -> Join | None:
    """Return the gradient behind a relu with a mask, and the sums of its columns."""
    test, gradient, _ = node.inputs
    forward = uses.joined.get(test.inputs[0]) if test.inputs else None
    if forward is None or not is_positive_test(test, test.inputs[0]):
        return None
    sums = _sums(uses, node)

    def build(*inputs: Node) -> Nodes:
        *given, g = inputs
        mask = forward.build(*given)[1]
        return relu_mask_grad.outputs(g, mask, summed=bool(sums))

    replaces = {node: (0,), **dict.fromkeys(sums, (1,))}
    return Join((*forward.inputs, gradient), build, replaces)


def _sums(uses: Uses, masked: Node) -> Nodes:
    """Return the column sums of the value, or of its cast to the accumulation dtype."""
    values = [masked, *(user for user in uses.users[masked] if user.op.name == "cast")]
    return tuple(
        user
        for value in values
        if value.dtype == accumulator(masked.dtype)
        for user in uses.users[value]
        if is_sum_over(user, (0,))
    )


relu_mask = Joins((matmul_epilogue, _with_mask), (where, _masked_gradient))
"""Give large relus behind products a mask, if their gradients can use it."""


def pool_first(program: Program) -> Program:
    """Let relu and biases change places with the pooling that follows."""
    return _bias_behind(_relu_behind(program))


def _makes_fewer(node: Node) -> bool:
    """Return True for a pooling with fewer outputs than inputs."""
    is_pooling = node.op in (max_pool2d, max_pool2d_epilogue)
    return is_pooling and node.outputs[0].size < node.inputs[0].spec.size


def _pool_of(spread: Node) -> Node | None:
    """Return the pooling whose indices a gradient uses."""
    if spread.op is not pool_scatter or spread.inputs[1].op is not ITEM:
        return None
    return spread.inputs[1].inputs[0]


# --- relu


def _relu_before(uses: Uses, node: Node) -> Join | None:
    """Return a relu that only a pooling reads.

    The gradient behind it can be masked by the maximum.
    """
    (before,) = node.inputs
    pool = uses.only_reader(node)
    if pool is None or not _makes_fewer(pool) or _is_normalised(before):
        return None
    tests = [user for user in uses.users[before] if user is not node]
    if not all(is_positive_test(test, before) for test in tests):
        return None
    gradients = [user for test in tests for user in uses.users[test]]
    indices = [user for user in uses.users[pool] if user.attrs.get("index") == 1]
    spreads = [spread for index in indices for spread in uses.users[index]]
    if not uses.roots.isdisjoint([before, *tests, *indices, *spreads]):
        return None
    if len(gradients) != len(spreads) or not all(
        _is_gradient(uses, each) and each.inputs[1] in spreads for each in gradients
    ):
        return None
    build = partial(max_pool2d_epilogue.outputs, activated=True, **pool.attrs)
    return Join((before,), build, {pool: (0, 1)})


def _is_gradient(uses: Uses, node: Node) -> bool:
    """Return True for a spread gradient that is 0 where the relu was inactive."""
    if node.op is not where or uniform(node.inputs[2]) != 0:
        return False
    spread = node.inputs[1]
    return spread.op is pool_scatter and uses.users[spread] == [node]


def _gradient_before(uses: Uses, node: Node) -> Join | None:
    """The spread gradient behind a relu that is now behind the pooling: masked, then spread."""
    spread = node.inputs[1]
    pool = _pool_of(spread)
    if pool is None or pool not in uses.joined:
        return None

    def build(slope: Node, index: Node, largest: Node) -> Nodes:
        passes = greater(largest, constant(0, largest.dtype))
        stopped = where(passes, slope, full(slope.shape, 0, slope.dtype))
        return (spread.op.rebuild(spread, (stopped, index)),)

    return Join((*spread.inputs, item(pool, 0)), build, {node: (0,)})


_relu_behind = Joins((relu, _relu_before), (where, _gradient_before))


def _is_normalised(value: Node) -> bool:
    """Return True if the relu is part of a batch normalisation, which makes it free."""
    made_by = value.inputs[0] if value.op is ITEM else value
    if made_by.op.name == "add":
        return any(_is_normalised(given) for given in made_by.inputs)
    return made_by.op.name.startswith("batch_norm")


# --- bias

SPATIAL = {2, 3}
"""The axes of images over which windows lie."""


def _bias_before(uses: Uses, node: Node) -> Join | None:
    """Return a bias that only a pooling reads."""
    total = node.inputs[0]
    if not _makes_fewer(node) or len(node.inputs) != 1 or uses.only_reader(total) is not node:
        return None
    for image, bias in summands(total):
        if image.shape == total.shape and is_channel_bias(bias, image):
            attrs = {"activated": False, **node.attrs}
            build = partial(max_pool2d_epilogue.outputs, **attrs)
            return Join((image, bias), build, {node: (0, 1)})
    return None


def _sum_of_spread(uses: Uses, node: Node) -> Join | None:
    """The gradient of such a bias: each number was spread to one element, so it is their sum."""
    if not set(node.attrs["axis"]) >= SPATIAL:
        return None
    (given,) = node.inputs
    # Half precision is added up in float32.
    spread = given.inputs[0] if given.op.name == "cast" else given
    if _pool_of(spread) not in uses.joined:
        return None

    def build(numbers: Node) -> Nodes:
        return (node.op.rebuild(node, (cast(numbers, given.dtype),)),)

    return Join((spread.inputs[0],), build, {node: (0,)})


_bias_behind = Joins(
    (max_pool2d, _bias_before),
    (max_pool2d_epilogue, _bias_before),
    (OPS["sum"], _sum_of_spread),
)
