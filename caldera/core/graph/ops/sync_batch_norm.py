"""Batch normalisation over the samples of all ranks.

Each rank takes part with its own samples, of which there may be none. What is exchanged is a number
a channel and the count of elements for the mean, a number a channel for the variance, and two on
the way back.
"""

from __future__ import annotations

from functools import reduce

from caldera.core.graph.node import Node
from caldera.core.graph.opdef import Nodes, composite
from caldera.core.graph.ops.base import (
    Axes,
    broadcast_to,
    cast,
    constant,
    reduced_shape,
    reshape,
    sum_,
)
from caldera.core.graph.ops.collective import Number, all_sum, next_number
from caldera.core.graph.ops.elementwise import add, div, maximum, mul, rsqrt, square, sub
from caldera.core.graph.ops.movement import concat, narrow
from caldera.core.graph.ops.normalisation import batch_norm_inference
from caldera.core.graph.ops.reduction import count as count_of
from caldera.core.graph.ops.widening import widen

Several = tuple[Node | None, ...]


def _over(x: Node, axis: int) -> Axes:
    return tuple(each for each in range(len(x.shape)) if each != axis)


def _along(vector: Node, x: Node, axis: int) -> Node:
    return reshape(vector, reduced_shape(x.shape, _over(x, axis), keepdims=True))


def _mean(total: Node, count: Node) -> Node:
    """A sum over all ranks divided by the count of elements (0 where there are none)."""
    return div(total, maximum(count, constant(1.0, count.dtype)))


@composite("batch_norm_over_ranks")
def batch_norm_over_ranks(
    x: Node, scale: Node, shift: Node, *, axis: int, eps: float, mesh: str, number: Number
) -> Nodes:
    """x normalised by mean and variance of all ranks' samples; these two, and their count."""
    wide, over = widen(x), _over(x, axis)
    here = constant(float(count_of(x, over)), wide.dtype)
    count = all_sum(here, axis=mesh, number=(*number, 0))
    mean = _mean(all_sum(sum_(wide, over), axis=mesh, number=(*number, 1)), count)
    spread = sum_(square(sub(wide, _along(mean, x, axis))), over)
    variance = _mean(all_sum(spread, axis=mesh, number=(*number, 2)), count)
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    return y, mean, variance, count


@batch_norm_over_ranks.gradient
def _(
    g: Several,
    y: Nodes,
    x: Node,
    scale: Node,
    shift: Node,
    *,
    axis: int,
    eps: float,
    mesh: str,
    number: Number,
) -> Several:
    _, mean, variance, count = y
    extra = _from_statistics(g, x, mean, count, axis, mesh)
    if g[0] is None:
        return extra, None, None
    dx, dscale, dshift = batch_norm_over_ranks_grad.outputs(
        g[0], x, scale, mean, variance, count, axis=axis, eps=eps, mesh=mesh, number=next_number()
    )
    return dx if extra is None else add(dx, extra), dscale, dshift


def _from_statistics(
    g: Several, x: Node, mean: Node, count: Node, axis: int, mesh: str
) -> Node | None:
    """What the gradients of the mean and the variance add to that of x."""
    _, for_mean, for_variance, _ = g
    parts = []
    if for_mean is not None:
        whole = _mean(all_sum(for_mean, axis=mesh, number=next_number()), count)
        parts.append(broadcast_to(_along(whole, x, axis), x.shape))
    if for_variance is not None:
        whole = _mean(all_sum(for_variance, axis=mesh, number=next_number()), count)
        twice = mul(_along(whole, x, axis), constant(2.0, mean.dtype))
        parts.append(mul(sub(widen(x), _along(mean, x, axis)), twice))
    return cast(reduce(add, parts), x.dtype) if parts else None


@composite("batch_norm_over_ranks_grad")
def batch_norm_over_ranks_grad(
    g: Node,
    x: Node,
    scale: Node,
    mean: Node,
    variance: Node,
    count: Node,
    *,
    axis: int,
    eps: float,
    mesh: str,
    number: Number,
) -> Nodes:
    """The gradient of x, and what this rank's samples add to those of scale and shift."""
    over, wide, channels = _over(x, axis), widen(g), x.shape[axis]
    inverse = rsqrt(add(variance, constant(eps, variance.dtype)))
    unit = mul(sub(widen(x), _along(mean, x, axis)), _along(inverse, x, axis))
    for_scale, for_shift = sum_(mul(wide, unit), over), sum_(wide, over)
    both = all_sum(concat((for_scale, for_shift), 0), axis=mesh, number=(*number, 0))
    along_unit, level = (narrow(_mean(both, count), 0, k * channels, channels) for k in range(2))
    common = add(_along(level, x, axis), mul(unit, _along(along_unit, x, axis)))
    factor = mul(inverse, widen(scale))
    dx = mul(_along(factor, x, axis), sub(wide, common))
    return cast(dx, x.dtype), cast(for_scale, scale.dtype), cast(for_shift, scale.dtype)


SYNCHRONISED = frozenset({"batch_norm_over_ranks", "batch_norm_over_ranks_grad"})
"""What is taken apart before collectives are put in order."""
