"""Layer norms joined with residual sums, and results rounded for the products that read them.

x + f(x) is read by the norm of the next block. The gradient of that norm is added to the gradient
of the residual branch, rounded for products, and summed for a bias. Each of these is a pass over
all activations, and in a small network a launch that takes longer than its work. The norm and its
gradient have the values at hand: the first writes the sum, the second the remaining results.

In mixed precision a norm of float32 is followed by a cast, as are the samples that are gathered for
a batch. Between the products of a classifier there are casts before and after the loss and its
gradient: with a large vocabulary these are most of the memory traffic of a step. The norm, the
gather and the loss write the rounded values. Only values that were rounded before are rounded, and
no more often.
"""

from __future__ import annotations

from functools import partial

from caldera.compiler.passes.constants import is_sum_over
from caldera.compiler.passes.pattern import Join, Joins, Uses
from caldera.core.graph import Node, Nodes, topological
from caldera.core.graph.ops.elementwise import add
from caldera.core.graph.ops.epilogue import (
    cross_entropy_with_gradient,
    gather_rounded,
    layer_norm_grad_residual,
    layer_norm_residual,
    layer_norm_rounded,
)
from caldera.core.graph.ops.indexing import gather
from caldera.core.graph.ops.loss import cross_entropy, cross_entropy_grad
from caldera.core.graph.ops.normalisation import layer_norm, layer_norm_grad
from caldera.core.tensor import HALVES, float32, size

_VIEWS = ("reshape", "transpose", "slice")


def _sum_before(uses: Uses, node: Node) -> Join | None:
    """Return the sum that a layer norm normalises, if no other loop would take it along."""
    total = node.inputs[0]
    if total.op is not add or total in uses.joined:
        return None
    x, more = sorted(total.inputs, key=lambda given: given.op.name == "cast")
    fits = x.spec.logical == more.spec.logical == total.spec.logical
    source = _source(more)
    if not fits or _is_of_a_loop(uses, x) or _is_of_a_loop(uses, source):
        return None
    if any(uses.depends(given, total) for given in node.inputs[1:]):
        return None
    attrs = {"dtype": node.outputs[0].dtype, **node.attrs}
    build = partial(layer_norm_residual.outputs, **attrs)
    return Join((x, source, *node.inputs[1:]), build, {total: (0,), node: (1, 2, 3)})


def _after_gradient(uses: Uses, node: Node) -> Join | None:
    """Join the gradient of a layer norm's input with the nodes that follow it."""
    total = uses.output(node, 0)
    if total is None:
        return None
    more: Nodes = ()
    reader = uses.only_reader(total)
    added = None if reader is None else _added(uses, node, total, reader)
    if reader is not None and added is not None:
        total, more = reader, (added,)
    casts, sums = _casts(uses, total), _sums(uses, node, total)
    if not more and not casts and not sums:
        return None
    build = partial(
        layer_norm_grad_residual.outputs,
        **node.attrs,
        dtype=casts[0].dtype if casts else None,
        summed=bool(sums),
    )
    replaces = {node: (0, 1, 2), total: (0,), **dict.fromkeys(casts, (3,))}
    replaces |= dict.fromkeys(sums, (3 + bool(casts),))
    return Join((*node.inputs, *more), build, replaces)


def _added(uses: Uses, norm: Node, gradient: Node, total: Node) -> Node | None:
    """Return the term added to the gradient, if it does not depend on the norm."""
    if total.op is not add or total in uses.joined or total.inputs[0] is total.inputs[1]:
        return None
    (other,) = [given for given in total.inputs if given is not gradient]
    if other.spec.logical != gradient.spec.logical or uses.depends(other, norm):
        return None
    return _source(other)


def _casts(uses: Uses, total: Node) -> Nodes:
    """Return the half-precision casts for products."""
    casts = [user for user in uses.users[total] if user.op.name == "cast"]
    narrow = [each for each in casts if each.dtype in HALVES and _is_product_of(uses, each)]
    return tuple(narrow) if len({each.dtype for each in narrow}) == 1 else ()


def _is_product_of(uses: Uses, value: Node) -> bool:
    """Return True if a node reads it that does not take it into a loop."""
    return any(
        _is_product_of(uses, user) if user.op.name in _VIEWS else user.op.kind != "elementwise"
        for user in uses.users[value]
    )


def _sums(uses: Uses, norm: Node, total: Node) -> Nodes:
    """Return the sums of `total` over samples: one number for each element of a row."""
    axes, rank = norm.attrs["axis"], len(total.shape)
    others = tuple(axis for axis in range(rank) if axis not in axes)
    found = [user for user in uses.users[total] if is_sum_over(user, others)]
    if axes == (rank - 1,):
        as_rows = (total.spec.size // max(total.shape[-1], 1), total.shape[-1])
        for user in uses.users[total]:
            if user.op.name == "reshape" and user.shape == as_rows:
                found += [each for each in uses.users[user] if is_sum_over(each, (0,))]
    return tuple(found)


def _is_of_a_loop(uses: Uses, value: Node) -> bool:
    """Return True if an element-wise op makes it for this one reader, and could fuse it."""
    while value.op.name in _VIEWS and len(uses.users[value]) == 1:
        value = value.inputs[0]
    return value.op.kind == "elementwise" and len(uses.users[value]) == 1


def _source(value: Node) -> Node:
    """Return a value before a cast to a wider dtype."""
    if value.op.name == "cast" and value.inputs[0].dtype in HALVES and value.dtype not in HALVES:
        return value.inputs[0]
    return value


residual_norm = Joins(
    (layer_norm, _sum_before),
    (layer_norm_rounded, _sum_before),
    (layer_norm_grad, _after_gradient),
)
"""Join layer norms, and their gradients, with the sums around them."""


LARGE = 1 << 20
"""Minimum number of elements of a batch: kernels for whole small networks do not support the joins.
"""


def _norm(uses: Uses, node: Node) -> Join | None:
    """Join a layer norm with the casts of all its readers to the same dtype."""
    result = uses.output(node, 0)
    casts = () if result is None else _rounding_casts(uses, result)
    if not casts:
        return None
    build = partial(layer_norm_rounded.outputs, **node.attrs, dtype=casts[0].dtype)
    return Join(node.inputs, build, {node: (0, 1, 2), **dict.fromkeys(casts, (0,))})


def _gather(uses: Uses, node: Node) -> Join | None:
    """Join a large gather with the casts that round its result."""
    if node.dtype != float32 or size(node.shape) < LARGE:
        return None
    casts = _rounding_casts(uses, node)
    if not casts:
        return None
    build = partial(gather_rounded.outputs, **node.attrs, dtype=casts[0].dtype)
    return Join(node.inputs, build, dict.fromkeys([node, *casts], (0,)))


def _rounding_casts(uses: Uses, value: Node) -> Nodes:
    """Return the casts to one half-precision dtype if these are a value's only readers."""
    readers = uses.users[value]
    dtypes = {reader.dtype for reader in readers if reader.op.name == "cast"}
    if value in uses.roots or len(dtypes) != 1 or not dtypes <= HALVES - {value.dtype}:
        return ()
    return tuple(readers) if all(reader.op.name == "cast" for reader in readers) else ()


def _loss(uses: Uses, gradient: Node) -> Join | None:
    """Join a loss of half-precision logits with its gradient, if only products read that."""
    g, wide, labels = gradient.inputs
    narrow = wide.inputs[0] if wide.op.name == "cast" else None
    casts = _rounding_casts(uses, gradient)
    if narrow is None or narrow.dtype not in HALVES or not casts:
        return None
    if casts[0].dtype != narrow.dtype:
        return None
    for loss in uses.users[wide]:
        same = loss.op is cross_entropy and loss.attrs == gradient.attrs
        # The factor of the gradient may depend on the loss in user code.
        if same and loss.inputs[1] is labels and loss not in topological([g]):
            build = partial(cross_entropy_with_gradient.outputs, **loss.attrs)
            return Join(
                (g, narrow, labels), build, {loss: (0,)} | dict.fromkeys([gradient, *casts], (1,))
            )
    return None


rounded_results = Joins((layer_norm, _norm), (gather, _gather), (cross_entropy_grad, _loss))
"""Join layer norms, cross entropy and large gathers with the casts around them."""
