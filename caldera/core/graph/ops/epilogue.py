"""Products, convolutions, poolings, normalisation and losses with operations on their results.

Passes create them. A relu can also write one bit for each element, set if it is positive. Its
gradient then reads a sixteenth of the bytes of half-precision activations.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from caldera.core.graph import OPS, Node, Nodes, composite, refuse_dtype, refuse_shape
from caldera.core.graph.ops import (
    Axes,
    activation,
    add,
    cast,
    concat,
    constant,
    conv2d,
    conv2d_input,
    div,
    equal,
    floor,
    full,
    greater,
    matmul,
    max_pool2d,
    mul,
    narrow,
    pad,
    relu,
    reshape,
    rsqrt,
    slice_,
    square,
    sub,
    sum_,
    where,
    widen,
    widened,
)
from caldera.core.graph.ops.indexing import gather
from caldera.core.graph.ops.loss import cross_entropy, cross_entropy_grad
from caldera.core.graph.ops.normalisation import (
    batch_norm,
    batch_norm_grad,
    batch_norm_inference,
    layer_norm,
    layer_norm_grad,
)
from caldera.core.graph.ops.reduction import mean as mean_of
from caldera.core.tensor.dtype import HALVES, DType, float32, is_float

ACTIVATIONS = frozenset(
    op.name
    for op in (
        OPS["relu"],
        OPS["sigmoid"],
        OPS["tanh"],
        activation.elu,
        activation.gelu,
        activation.hard_sigmoid,
        activation.hard_swish,
        activation.leaky_relu,
        activation.selu,
        activation.silu,
        activation.softplus,
    )
)
"""The names of the functions that may follow a product."""

Attributes = tuple[tuple[str, Any], ...]


def is_bias(bias: Node, result: Node) -> bool:
    """Return True if `bias` has one number for each index along the last axis of `result`."""
    *leading, last = bias.shape or (0,)
    fits = len(leading) < len(result.shape) and last == result.shape[-1]
    return fits and all(n == 1 for n in leading)


def is_channel_bias(bias: Node, images: Node) -> bool:
    """Return True if `bias` has one number for each channel of `images`: shape (C, 1, 1)."""
    return bias.shape == (images.shape[1], 1, 1)


def apply_epilogue(
    result: Node, bias: Nodes, activation: str | None, attributes: Attributes
) -> Node:
    """activation(result + bias): the bias may be left out, and the activation be None."""
    for each in bias:
        result = add(result, each)
    return result if activation is None else OPS[activation](result, **dict(attributes))


@composite("matmul_epilogue", kind="product")
@widened
def matmul_epilogue(
    a: Node,
    b: Node,
    *bias: Node,
    ta: bool,
    tb: bool,
    activation: str | None,
    attributes: Attributes,
    **how: str,
) -> Node:
    """activation(a b + bias): the bias may be left out, and the activation be None."""
    result = matmul(a, b, ta=ta, tb=tb, **how)
    if len(bias) > 1 or not all(is_bias(each, result) for each in bias):
        refuse_shape(f"at most one bias, along the last axis of {result.shape}")
    return apply_epilogue(result, bias, activation, attributes)


@composite("conv2d_epilogue", kind="product")
@widened
def conv2d_epilogue(
    x: Node,
    w: Node,
    *bias: Node,
    activation: str | None,
    attributes: Attributes,
    **how: Any,
) -> Node:
    """activation(conv2d(x, w) + bias), with a bias of shape (channels, 1, 1) or none."""
    result = conv2d(x, w, **how)
    if len(bias) > 1 or not all(is_channel_bias(each, result) for each in bias):
        refuse_shape(f"at most one bias, along the channels of {result.shape}")
    return apply_epilogue(result, bias, activation, attributes)


@composite("max_pool2d_epilogue")
def max_pool2d_epilogue(x: Node, *bias: Node, activated: bool, **how: Any) -> Nodes:
    """Return the largest of each window plus a bias of shape (channels, 1, 1), if there is one,
    after a relu if `activated`; and where in its window the largest stands."""
    largest, index = max_pool2d.outputs(x, **how)
    if len(bias) > 1 or not all(is_channel_bias(each, largest) for each in bias):
        refuse_shape(f"at most one bias, along the channels of {largest.shape}")
    for each in bias:
        largest = add(largest, each)
    return relu(largest) if activated else largest, index


@composite("matmul_accumulate", kind="product")
@widened
def matmul_accumulate(
    c: Node, a: Node, b: Node, alpha: Node, beta: Node, *, ta: bool, tb: bool, **how: str
) -> Node:
    """beta c + alpha a b, for two matrices and two numbers, as a single BLAS call.

    A term with factor 0 is not read: NaNs in it have no effect.
    """
    product = matmul(a, b, ta=ta, tb=tb, **how)
    if c.shape != product.shape or len(c.shape) != 2:
        refuse_shape(f"a matrix of shape {product.shape} to add to")
    if alpha.shape or beta.shape:
        refuse_shape("alpha and beta to be single numbers")
    return add(_times_unless_0(c, beta), _times_unless_0(product, alpha))


def _times_unless_0(matrix: Node, number: Node) -> Node:
    """matrix * number, and 0 where the number is 0, even if the matrix holds a nan."""
    nothing = full((), 0, matrix.dtype)
    return where(equal(number, nothing), nothing, mul(matrix, number))


def _finished(y: Node, more: Nodes) -> Node:
    if len(more) > 1 or any(each.spec.logical != y.spec.logical for each in more):
        refuse_shape(f"at most one image to add, like {y.spec}")
    for each in more:
        y = add(y, each)
    return relu(y)


@composite("batch_norm_relu")
def batch_norm_relu(x: Node, scale: Node, shift: Node, *more: Node, axis: int, eps: float) -> Nodes:
    """relu(batch_norm(x) + more), with the mean and the variance; `more` may be left out."""
    y, mean, variance = batch_norm.outputs(x, scale, shift, axis=axis, eps=eps)
    return _finished(y, more), mean, variance


@composite("batch_norm_inference_relu")
def batch_norm_inference_relu(
    x: Node,
    scale: Node,
    shift: Node,
    mean: Node,
    variance: Node,
    *more: Node,
    axis: int,
    eps: float,
) -> Node:
    """relu(batch_norm_inference(x) + more); `more` may be left out."""
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    return _finished(y, more)


@composite("batch_norm_relu_grad")
def batch_norm_relu_grad(
    g: Node,
    x: Node,
    scale: Node,
    shift: Node,
    mean: Node,
    variance: Node,
    *,
    axis: int,
    eps: float,
) -> Nodes:
    """Return the gradients of relu(batch_norm(x)) with respect to x, scale and shift.

    Where the relu let something through is computed again from x: that is cheaper than to read it.
    """
    y = batch_norm_inference(x, scale, shift, mean, variance, axis=axis, eps=eps)
    masked = where(greater(y, constant(0, y.dtype)), g, full(g.shape, 0, g.dtype))
    return batch_norm_grad.outputs(masked, x, scale, mean, variance, axis=axis, eps=eps)


@composite("batch_norm_grad_elementwise")
def batch_norm_grad_elementwise(
    g: Node,
    x: Node,
    scale: Node,
    mean: Node,
    variance: Node,
    for_scale: Node,
    for_shift: Node,
    *,
    axis: int,
    eps: float,
) -> Node:
    """Return gradient of batch_norm with respect to x, given the gradients of scale and shift."""
    _check_wide(x)
    share = x.shape[axis] / x.spec.size if x.spec.size else 0.0
    column = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    inverse = rsqrt(add(variance, constant(eps, variance.dtype)))
    gain, slant = mul(scale, inverse), mul(for_scale, inverse)
    centred = sub(x, reshape(mean, column))
    common = add(reshape(for_shift, column), mul(centred, reshape(slant, column)))
    less = sub(g, mul(common, constant(share, g.dtype)))
    return mul(less, reshape(gain, column))


def _check_wide(x: Node) -> None:
    """Statistics are computed from stored values, which differ from computed ones in half
    precision.
    """
    if widen(x) is not x:
        refuse_dtype("float32 or float64, in which sums are kept")


@composite("conv2d_moments", kind="product")
def conv2d_moments(x: Node, w: Node, **how: Any) -> Nodes:
    """conv2d(x, w), with the mean and the variance of each channel."""
    _check_wide(x)
    y = conv2d(x, w, **how)
    average = mean_of(y, axis=(0, 2, 3), keepdims=True)
    variance = mean_of(square(sub(y, average)), axis=(0, 2, 3), keepdims=False)
    return y, reshape(average, variance.shape), variance


@composite("conv2d_input_norm_reduce", kind="product")
def conv2d_input_norm_reduce(
    g: Node,
    w: Node,
    x: Node,
    scale: Node,
    mean: Node,
    variance: Node,
    *rest: Node,
    added: bool,
    mask: str | None,
    eps: float,
    **how: Any,
) -> Nodes:
    """Return gradients of batch_norm(x), optionally with a relu, followed by a convolution.

    They are the gradient with respect to the normalised result, and the gradients of scale and
    shift, which are sums obtained from the first. `rest` starts with the value `added` to the
    convolution's gradient. Where the relu is inactive the gradient is 0: `mask` selects whether
    that is derived from "x", with the shift in `rest`, or from "y", the relu's result in `rest`;
    None if there is no relu.
    """
    _check_wide(g)
    slope = conv2d_input(g, w, **how)
    if len(rest) != added + (mask is not None):
        refuse_shape("an addend if one is declared, and the source of the mask")
    if added:
        slope = add(slope, rest[0])
    if mask is not None:
        seen = rest[-1]
        if mask == "x":
            seen = batch_norm_inference(x, scale, seen, mean, variance, axis=1, eps=eps)
        slope = where(greater(seen, constant(0, seen.dtype)), slope, full(slope.shape, 0, g.dtype))
    _, for_scale, for_shift = batch_norm_grad.outputs(
        slope, x, scale, mean, variance, axis=1, eps=eps
    )
    return slope, for_scale, for_shift


@composite("gather_rounded")
def gather_rounded(x: Node, indices: Node, *, axis: int, dtype: DType) -> Node:
    """gather(x, indices) in `dtype`."""
    return cast(gather(x, indices, axis=axis), dtype)


@composite("layer_norm_rounded")
def layer_norm_rounded(
    x: Node, scale: Node, shift: Node, *, axis: Axes, eps: float, dtype: DType
) -> Nodes:
    """layer_norm(x) in `dtype`, with the mean and the variance."""
    y, mean, variance = layer_norm.outputs(x, scale, shift, axis=axis, eps=eps)
    return cast(y, dtype), mean, variance


def _widened_to(more: Node, like: Node) -> Node:
    """Return the residual to add in the dtype of `like`, or in half precision."""
    if more.dtype not in {like.dtype, *(HALVES if widen(like) is like else ())}:
        refuse_dtype(f"{like.dtype.name} to add, or half precision to add to more")
    if more.shape != like.shape:
        refuse_shape(f"something of shape {like.shape} to add")
    return cast(more, like.dtype)


@composite("layer_norm_residual")
def layer_norm_residual(
    x: Node, more: Node, scale: Node, shift: Node, *, axis: Axes, eps: float, dtype: DType
) -> Nodes:
    """x + more, layer_norm of that in `dtype`, and the mean and the variance."""
    total = add(x, _widened_to(more, x))
    return total, *layer_norm_rounded.outputs(total, scale, shift, axis=axis, eps=eps, dtype=dtype)


@composite("layer_norm_grad_residual")
def layer_norm_grad_residual(
    g: Node,
    x: Node,
    scale: Node,
    mean: Node,
    variance: Node,
    *more: Node,
    axis: Axes,
    eps: float,
    dtype: DType | None,
    summed: bool,
) -> Nodes:
    """Return the gradients of layer_norm with respect to x, scale and shift; `more`, if it is
    there, is added to the first, which then follows in `dtype` (unless that is None), and, if
    `summed`, its sum over samples, of the shape of the scale."""
    dx, for_scale, for_shift = layer_norm_grad.outputs(
        g, x, scale, mean, variance, axis=axis, eps=eps
    )
    for each in more:
        dx = add(dx, _widened_to(each, dx))
    found = [dx, for_scale, for_shift]
    if dtype is not None:
        found.append(cast(dx, dtype))
    if summed:
        others = tuple(index for index in range(len(x.shape)) if index not in axis)
        found.append(sum_(dx, others, keepdims=False))
    return tuple(found)


@composite("cross_entropy_with_gradient")
def cross_entropy_with_gradient(g: Node, logits: Node, labels: Node, *, axis: int) -> Nodes:
    """Return the losses, and g times their gradients in the dtype of the logits.

    In half precision all is computed in float32, in which g and the losses are.
    """
    wide = widen(logits)
    losses = cross_entropy(wide, labels, axis=axis)
    gradients = cross_entropy_grad(g, wide, labels, axis=axis)
    return losses, cast(gradients, logits.dtype)


ROW_BITS = 128
"""Alignment of rows of a mask in bits, as in cuBLASLt."""
_BYTE = np.dtype(np.uint8)


def mask_bytes(columns: int) -> int:
    """Return bytes of a row of bits.

    >>> mask_bytes(4096), mask_bytes(130)
    (512, 32)
    """
    return -(-columns // ROW_BITS) * ROW_BITS // 8


def _check_matrix(x: Node) -> None:
    if not is_float(x.dtype):
        refuse_dtype("a floating-point dtype")
    if len(x.shape) != 2:
        refuse_shape("a matrix")


def _number(value: float) -> Node:
    return constant(value, float32)


@composite("relu_mask")
def relu_mask(x: Node) -> Nodes:
    """relu(x) of a matrix, and a bit mask of its positive elements.

    The bits of a row are adjacent, the first one lowest in its byte.
    """
    _check_matrix(x)
    rows, columns = x.shape
    y = relu(x)
    bits = cast(greater(y, constant(0, y.dtype)), float32)
    length = 8 * mask_bytes(columns)
    padded = pad(bits, ((0, 0), (0, length - columns)))
    parts = [slice_(padded, ((0, rows, 1), (place, length, 8))) for place in range(8)]
    worth = [mul(part, _number(2**place)) for place, part in enumerate(parts)]
    return y, cast(reduce(add, worth), _BYTE)


@composite("relu_mask_grad")
def relu_mask_grad(g: Node, mask: Node, *, summed: bool) -> Node | Nodes:
    """g where the mask is set and 0 elsewhere.

    If `summed`, with the sums of its columns, in float32 or wider.
    """
    _check_matrix(g)
    rows, columns = g.shape
    if (mask.shape, mask.dtype) != ((rows, mask_bytes(columns)), _BYTE):
        refuse_shape(f"a mask of {mask_bytes(columns)} bytes in each of {rows} rows")
    worth = reshape(cast(mask, float32), (*mask.shape, 1))
    halves = [floor(div(worth, _number(2**place))) for place in range(9)]
    places = [sub(low, mul(high, _number(2))) for low, high in pairwise(halves)]
    bits = concat(tuple(places), axis=2)
    flat = narrow(reshape(bits, (rows, 8 * mask_bytes(columns))), 1, 0, columns)
    masked = where(greater(flat, _number(0.5)), g, full(g.shape, 0, g.dtype))
    return (masked, sum_(widen(masked), (0,))) if summed else masked
