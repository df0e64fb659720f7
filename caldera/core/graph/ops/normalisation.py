"""Normalisation by batch, layer, group, and over neighbouring channels.

The ops that compute statistics of their input return (y, mean, variance): the gradient needs the
statistics, so a kernel keeps them instead of computing them again. Variances are divided by the
number of elements in the data. Half-precision inputs are normalised in float32: their statistics
are float32, and scale and shift may be.

Batch normalisation over the samples of all ranks.

Each rank takes part with its samples, possibly without any. The messages contain a number per
channel and the count of elements for the mean, a number per channel for the variance, and two
numbers per channel on the way back.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from caldera.core.graph import Node, Nodes, Op, composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    Axes,
    Gradient,
    accumulator,
    add,
    broadcast_to,
    cast,
    check_float,
    concat,
    constant,
    count,
    div,
    maximum,
    mul,
    narrow,
    pad,
    pow_,
    reduced_shape,
    reshape,
    rsqrt,
    scalar,
    square,
    sub,
    sum_,
    widen,
    widened,
)
from caldera.core.graph.ops.collective import Number, all_sum, backward_number
from caldera.core.graph.ops.reduction import count as count_of
from caldera.core.graph.ops.reduction import mean as mean_of
from caldera.core.tensor.shape import Shape


def _check(x: Node, parameters: Nodes, shape: Shape, what: str) -> None:
    check_float(x)
    dtypes = {parameter.dtype for parameter in parameters}
    if len(dtypes) > 1 or not dtypes <= {x.dtype, accumulator(x.dtype)}:
        refuse_dtype(f"{what} of dtype {accumulator(x.dtype).name}", hint="cast them with op.cast")
    if any(parameter.shape != shape for parameter in parameters):
        refuse_shape(f"{what} of shape {shape}")


def _share(x: Node, axes: Axes) -> Node:
    """Return one over the number of averaged elements; 0 for an empty average."""
    elements = count(x, axes)
    return constant(1 / elements if elements else 0, accumulator(x.dtype))


def _like(value: Node, parameter: Node) -> Node:
    return cast(reshape(value, parameter.shape), parameter.dtype)


def _others(rank: int, axes: Axes) -> Axes:
    return tuple(axis for axis in range(rank) if axis not in axes)


def _along(parameter: Node, shape: Shape, axes: Axes) -> Node:
    """A parameter of the sizes of `axes`, in float32 at least, ready to broadcast to `shape`."""
    aligned = reduced_shape(shape, _others(len(shape), axes), keepdims=True)
    return reshape(widen(parameter), aligned)


def _normalise(x: Node, scale: Node, shift: Node, over: Axes, own: Axes, eps: float) -> Nodes:
    """x normalised `over` some axes, then scaled along its `own` axes; the mean, the variance."""
    wide = widen(x)
    mean = mean_of(wide, axis=over, keepdims=True)
    centred = sub(wide, mean)
    variance = mean_of(square(centred), axis=over, keepdims=True)
    unit = mul(centred, rsqrt(add(variance, scalar(eps, variance))))
    y = add(mul(unit, _along(scale, x.shape, own)), _along(shift, x.shape, own))
    reduced = reduced_shape(x.shape, over, keepdims=False)
    return cast(y, x.dtype), reshape(mean, reduced), reshape(variance, reduced)


def _unit(x: Node, mean: Node, variance: Node, over: Axes, eps: float) -> Nodes:
    """x less its mean over its deviation, and one over the deviation."""
    shape = reduced_shape(x.shape, over, keepdims=True)
    inverse = rsqrt(add(reshape(variance, shape), scalar(eps, variance)))
    return mul(sub(widen(x), reshape(mean, shape)), inverse), inverse


def _from_statistics(g: Gradient, x: Node, mean: Node, over: Axes) -> Node | None:
    """Return the part of x's gradient that comes via mean and variance."""
    _, for_mean, for_variance = g
    shape = reduced_shape(x.shape, over, keepdims=True)
    parts = []
    if for_mean is not None:
        parts.append(broadcast_to(reshape(for_mean, shape), x.shape))
    if for_variance is not None:
        centred = sub(widen(x), reshape(mean, shape))
        parts.append(mul(centred, mul(reshape(for_variance, shape), scalar(2, mean))))
    return mul(reduce(add, parts), _share(x, over)) if parts else None


def _gradient(
    backward: Op, g: Gradient, y: Nodes, x: Node, scale: Node, extra: Node | None, **attrs: object
) -> Gradient:
    """The rule all three share: `backward` for y, and something `extra` for the statistics."""
    if extra is not None:
        extra = cast(reshape(extra, x.shape), x.dtype)
    if g[0] is None:
        return extra, None, None
    dx, dscale, dshift = backward.outputs(g[0], x, scale, *y[1:], **attrs)
    return dx if extra is None else add(dx, extra), dscale, dshift


# --- batch


@composite("batch_norm")
def batch_norm(x: Node, scale: Node, shift: Node, *, axis: int, eps: float) -> Nodes:
    """x normalised over all axes but `axis`, with its mean and variance."""
    _check(x, (scale, shift), (x.shape[axis],), f"scale and shift (along axis {axis})")
    return _normalise(x, scale, shift, _others(len(x.shape), (axis,)), (axis,), eps)


@batch_norm.gradient
def _(
    g: Gradient, y: Nodes, x: Node, scale: Node, shift: Node, *, axis: int, eps: float
) -> Gradient:
    extra = _from_statistics(g, x, y[1], _others(len(x.shape), (axis,)))
    return _gradient(batch_norm_grad, g, y, x, scale, extra, axis=axis, eps=eps)


@composite("batch_norm_grad")
def batch_norm_grad(
    g: Node, x: Node, scale: Node, mean: Node, variance: Node, *, axis: int, eps: float
) -> Nodes:
    """Return the gradients of batch_norm with respect to x (through y only), scale and shift."""
    over = _others(len(x.shape), (axis,))
    unit, inverse = _unit(x, mean, variance, over, eps)
    wide = widen(g)
    for_scale = sum_(mul(wide, unit), over, keepdims=True)
    for_shift = sum_(wide, over, keepdims=True)
    common = mul(add(for_shift, mul(unit, for_scale)), _share(x, over))
    dx = mul(mul(inverse, _along(scale, x.shape, (axis,))), sub(wide, common))
    return cast(dx, x.dtype), _like(for_scale, scale), _like(for_shift, scale)


@composite("batch_norm_inference")
def batch_norm_inference(
    x: Node, scale: Node, shift: Node, mean: Node, variance: Node, *, axis: int, eps: float
) -> Node:
    """x normalised by a given mean and variance along `axis`."""
    _check(x, (scale, shift), (x.shape[axis],), f"scale and shift (along axis {axis})")
    _check(x, (mean, variance), (x.shape[axis],), f"mean and variance (along axis {axis})")
    spread = rsqrt(add(widen(variance), scalar(eps, widen(variance))))
    factor = mul(widen(scale), spread)
    centred = sub(widen(x), _along(mean, x.shape, (axis,)))
    y = add(mul(centred, _along(factor, x.shape, (axis,))), _along(shift, x.shape, (axis,)))
    return cast(y, x.dtype)


# --- layer and group


def _backward(
    g: Node, x: Node, scale: Node, mean: Node, variance: Node, over: Axes, own: Axes, eps: float
) -> Nodes:
    """Return the gradients of `_normalise` with respect to x (through y only), scale and shift."""
    unit, inverse = _unit(x, mean, variance, over, eps)
    wide = widen(g)
    scaled = mul(wide, _along(scale, x.shape, own))
    along_unit = sum_(mul(scaled, unit), over, keepdims=True)
    common = mul(add(sum_(scaled, over, keepdims=True), mul(unit, along_unit)), _share(x, over))
    dx = mul(inverse, sub(scaled, common))
    others = _others(len(x.shape), own)
    for_scale, for_shift = sum_(mul(wide, unit), others), sum_(wide, others)
    return cast(dx, x.dtype), _like(for_scale, scale), _like(for_shift, scale)


@composite("layer_norm")
def layer_norm(x: Node, scale: Node, shift: Node, *, axis: Axes, eps: float) -> Nodes:
    """Normalise each sample over `axis`; also return its mean and variance."""
    shape = tuple(x.shape[each] for each in axis)
    _check(x, (scale, shift), shape, f"scale and shift (along axes {axis})")
    return _normalise(x, scale, shift, axis, axis, eps)


@layer_norm.gradient
def _(
    g: Gradient, y: Nodes, x: Node, scale: Node, shift: Node, *, axis: Axes, eps: float
) -> Gradient:
    extra = _from_statistics(g, x, y[1], axis)
    return _gradient(layer_norm_grad, g, y, x, scale, extra, axis=axis, eps=eps)


@composite("layer_norm_grad")
def layer_norm_grad(
    g: Node, x: Node, scale: Node, mean: Node, variance: Node, *, axis: Axes, eps: float
) -> Nodes:
    """Return the gradients of layer_norm with respect to x (through y only), scale and shift."""
    return _backward(g, x, scale, mean, variance, axis, axis, eps)


def _grouped(x: Node, groups: int) -> tuple[Node, Axes]:
    """(N, C, ...) as (N, groups, C / groups, ...), and the axes that are normalised."""
    n, channels, *rest = x.shape
    shape = (n, groups, channels // groups, *rest)
    return reshape(x, shape), tuple(range(2, len(shape)))


def _by_group(parameter: Node, groups: int) -> Node:
    return reshape(parameter, (groups, parameter.shape[0] // groups))


@composite("group_norm")
def group_norm(x: Node, scale: Node, shift: Node, *, groups: int, eps: float) -> Nodes:
    """(N, C, ...) normalised over each group of neighbouring channels, with mean and variance."""
    if len(x.shape) < 2:
        refuse_shape("x of shape (N, C, ...)")
    if groups < 1 or x.shape[1] % groups:
        refuse_shape(f"a number of channels that {groups} groups divide")
    _check(x, (scale, shift), (x.shape[1],), "scale and shift (one a channel)")
    parts, over = _grouped(x, groups)
    y, mean, variance = _normalise(
        parts, _by_group(scale, groups), _by_group(shift, groups), over, (1, 2), eps
    )
    return reshape(y, x.shape), mean, variance


@group_norm.gradient
def _(
    g: Gradient, y: Nodes, x: Node, scale: Node, shift: Node, *, groups: int, eps: float
) -> Gradient:
    parts, over = _grouped(x, groups)
    extra = _from_statistics(g, parts, y[1], over)
    return _gradient(group_norm_grad, g, y, x, scale, extra, groups=groups, eps=eps)


@composite("group_norm_grad")
def group_norm_grad(
    g: Node, x: Node, scale: Node, mean: Node, variance: Node, *, groups: int, eps: float
) -> Nodes:
    """Return the gradients of group_norm with respect to x (through y only), scale and shift."""
    parts, over = _grouped(x, groups)
    dx, dscale, dshift = _backward(
        reshape(g, parts.shape), parts, _by_group(scale, groups), mean, variance, over, (1, 2), eps
    )
    return reshape(dx, x.shape), reshape(dscale, scale.shape), reshape(dshift, scale.shape)


# --- neighbouring channels


def _window_sum(x: Node, before: int, after: int) -> Node:
    """For each channel (axis 1), the sum over the channels from `before` below to `after` above."""
    before, after = (min(each, x.shape[1]) for each in (before, after))  # behind them all is 0
    widths = tuple((before, after) if axis == 1 else (0, 0) for axis in range(len(x.shape)))
    padded = pad(x, widths)
    parts = [narrow(padded, 1, start, x.shape[1]) for start in range(before + after + 1)]
    return reduce(add, parts)


def _window_scale(x: Node, window: int, alpha: float, k: float) -> Node:
    squares = _window_sum(square(x), window // 2, (window - 1) // 2)
    return add(mul(squares, scalar(alpha / window, x)), scalar(k, x))


@composite("local_response_norm_grad")
@widened
def local_response_norm_grad(
    g: Node, x: Node, *, window: int, alpha: float, beta: float, k: float
) -> Node:
    """Return the gradient of local_response_norm: each channel's own part, and its neighbours'."""
    scale = _window_scale(x, window, alpha, k)
    own = mul(g, pow_(scale, scalar(-beta, x)))
    # The channels whose windows hold this one lie mirrored.
    met = _window_sum(div(mul(own, x), scale), (window - 1) // 2, window // 2)
    return sub(own, mul(mul(x, scalar(2 * alpha * beta / window, x)), met))


@composite(
    "local_response_norm",
    gradient=lambda g, y, x, **attrs: (local_response_norm_grad(g, x, **attrs),),
)
@widened
def local_response_norm(x: Node, *, window: int, alpha: float, beta: float, k: float) -> Node:
    """x / (k + alpha / window * sum of squares over `window` neighbouring channels) ** beta."""
    check_float(x)
    if len(x.shape) < 2:
        refuse_shape("x of shape (N, C, ...)")
    return mul(x, pow_(_window_scale(x, window, alpha, k), scalar(-beta, x)))


# --- batch, over the samples of all ranks


def _mean(total: Node, count: Node) -> Node:
    """Return a sum over all ranks divided by the element count; 0 if the count is 0."""
    return div(total, maximum(count, constant(1.0, count.dtype)))


@composite("batch_norm_over_ranks")
def batch_norm_over_ranks(
    x: Node, scale: Node, shift: Node, *, axis: int, eps: float, mesh: str, number: Number
) -> Nodes:
    """x normalised by mean and variance of all ranks' samples; these two, and their count."""
    wide, over = widen(x), _others(len(x.shape), (axis,))
    here = constant(float(count_of(x, over)), wide.dtype)
    count = all_sum(here, axis=mesh, number=(*number, 0))
    mean = _mean(all_sum(sum_(wide, over), axis=mesh, number=(*number, 1)), count)
    spread = sum_(square(sub(wide, _along(mean, x.shape, (axis,)))), over)
    variance = _mean(all_sum(spread, axis=mesh, number=(*number, 2)), count)
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    return y, mean, variance, count


@batch_norm_over_ranks.gradient
def _(g: Gradient, y: Nodes, x: Node, scale: Node, shift: Node, **attrs: Any) -> Gradient:
    number = backward_number(attrs["number"])
    extra = _from_statistics_of_ranks(g, x, y[1], y[3], attrs["axis"], attrs["mesh"], number)
    attrs["number"] = (*number, 2)
    return _gradient(batch_norm_over_ranks_grad, g, y, x, scale, extra, **attrs)


def _from_statistics_of_ranks(
    g: Gradient, x: Node, mean: Node, count: Node, axis: int, mesh: str, number: Number
) -> Node | None:
    """Return the part of x's gradient that comes via mean and variance."""
    _, for_mean, for_variance, _ = g
    parts = []
    if for_mean is not None:
        whole = _mean(all_sum(for_mean, axis=mesh, number=(*number, 0)), count)
        parts.append(broadcast_to(_along(whole, x.shape, (axis,)), x.shape))
    if for_variance is not None:
        whole = _mean(all_sum(for_variance, axis=mesh, number=(*number, 1)), count)
        twice = mul(_along(whole, x.shape, (axis,)), constant(2.0, mean.dtype))
        parts.append(mul(sub(widen(x), _along(mean, x.shape, (axis,))), twice))
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
    """Return the gradient of x, and this rank's terms in the gradients of scale and shift."""
    over, wide, channels = _others(len(x.shape), (axis,)), widen(g), x.shape[axis]
    inverse = rsqrt(add(variance, constant(eps, variance.dtype)))
    unit = mul(
        sub(widen(x), _along(mean, x.shape, (axis,))),
        _along(inverse, x.shape, (axis,)),
    )
    for_scale, for_shift = sum_(mul(wide, unit), over), sum_(wide, over)
    both = all_sum(concat((for_scale, for_shift), 0), axis=mesh, number=(*number, 0))
    along_unit, level = (narrow(_mean(both, count), 0, k * channels, channels) for k in range(2))
    common = add(
        _along(level, x.shape, (axis,)),
        mul(unit, _along(along_unit, x.shape, (axis,))),
    )
    factor = mul(inverse, widen(scale))
    dx = mul(_along(factor, x.shape, (axis,)), sub(wide, common))
    return cast(dx, x.dtype), cast(for_scale, scale.dtype), cast(for_shift, scale.dtype)


SYNCHRONISED = frozenset({"batch_norm_over_ranks", "batch_norm_over_ranks_grad"})
"""Ops that are decomposed before collectives are put in order."""
