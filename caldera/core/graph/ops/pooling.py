"""Pooling over windows of images (N, C, H, W), each op with its adjoint.

Max pooling also says which element of each window won, and its gradient goes to that element alone:
`pool_scatter` adds values at the winners, `pool_gather` reads them there, and each is the other's
gradient. Average pooling and `avg_pool2d_input` are adjoint to each other in the same way. So
derivatives of any order exist.

Conventions: of equal elements the first in row-major order wins; a nan wins over everything.
Padding never wins: it counts as -inf, and a window that holds nothing else (dilation can step over
a small image) gives -inf, with the index -1 and no gradient.
"""

from __future__ import annotations

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.opdef import op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.product import Padding, Pair, conv_size
from caldera.core.tensor.dtype import DType, int8, int32, is_float
from caldera.core.tensor.shape import Shape

_MOST_IN_INT8 = 127


def _pooled_shape(
    shape: Shape, size: Pair, stride: Pair, padding: Padding, dilation: Pair
) -> Shape:
    if len(shape) != 4:
        refuse_shape("an image of shape (N, C, H, W)")
    reach = tuple(dilation[i] * (size[i] - 1) + 1 for i in (0, 1))
    window = f"{reach[0]} x {reach[1]}"
    if any(max(padding[i]) >= reach[i] for i in (0, 1)):
        refuse_shape(
            f"padding narrower than the window of {window}, not {padding}",
            hint="a window must not lie in the padding alone",
        )
    lengths = tuple(
        conv_size(shape[2 + i], size[i], stride[i], padding[i], dilation[i]) for i in (0, 1)
    )
    if 0 in shape[2:] or min(lengths) < 1:
        refuse_shape(
            f"an image of at least {window}, its padding {padding} included",
            hint="add padding, or use a smaller window or dilation",
        )
    return (*shape[:2], *lengths)


def _check_float(x: Spec) -> None:
    if not is_float(x.dtype):
        refuse_dtype("a floating-point dtype", hint="cast it with op.cast(x, 'float32')")


def index_dtype(size: Pair) -> DType:
    """The smallest dtype for positions inside a window of this size, with -1 for none."""
    return int8 if size[0] * size[1] <= _MOST_IN_INT8 else int32


def _check_index(index: Spec, expected: Spec) -> None:
    if (index.shape, index.dtype) != (expected.shape, expected.dtype):
        refuse_shape(f"an index {expected}, as max_pool2d gives it")


@op("max_pool2d")
def max_pool2d(
    x: Spec, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair
) -> tuple[Spec, Spec]:
    """The largest element of each window, and where in its window (row-major) it stands."""
    _check_float(x)
    shape = _pooled_shape(x.shape, size, stride, padding, dilation)
    return Spec(shape, x.dtype), Spec(shape, index_dtype(size))


@op(
    "pool_scatter",
    flops=lambda node: node.inputs[0].spec.size,
)
def pool_scatter(
    g: Spec,
    index: Spec,
    *,
    shape: Shape,
    size: Pair,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
) -> Spec:
    """Zeros of `shape`, with each window's `g` added at the element that `index` names."""
    _check_float(g)
    expected = _pooled_shape(shape, size, stride, padding, dilation)
    if g.shape != expected:
        refuse_shape(f"an output gradient of shape {expected}")
    _check_index(index, Spec(expected, index_dtype(size)))
    return Spec(shape, g.dtype)


max_pool2d.gradient(
    lambda g, y, x, **how: (
        None if g[0] is None else pool_scatter(g[0], y[1], shape=x.shape, **how),
    )
)


@op(
    "pool_gather",
    gradient=lambda g, y, x, index, **how: (pool_scatter(g, index, shape=x.shape, **how), None),
)
def pool_gather(
    x: Spec, index: Spec, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair
) -> Spec:
    """The element of each window of `x` that `index` names (0 where it names none)."""
    _check_float(x)
    shape = _pooled_shape(x.shape, size, stride, padding, dilation)
    _check_index(index, Spec(shape, index_dtype(size)))
    return Spec(shape, x.dtype)


pool_scatter.gradient(
    lambda gx, y, g, index, *, shape, **how: (pool_gather(gx, index, **how), None)
)


_NO_DILATION = (1, 1)


@op("avg_pool2d")
def avg_pool2d(x: Spec, *, size: Pair, stride: Pair, padding: Padding, count_padding: bool) -> Spec:
    """The mean of each window; `count_padding` says whether padding counts as elements of 0."""
    _check_float(x)
    return Spec(_pooled_shape(x.shape, size, stride, padding, _NO_DILATION), x.dtype)


@op("avg_pool2d_input", gradient=lambda gx, y, g, *, shape, **how: (avg_pool2d(gx, **how),))
def avg_pool2d_input(
    g: Spec, *, shape: Shape, size: Pair, stride: Pair, padding: Padding, count_padding: bool
) -> Spec:
    """The gradient of `avg_pool2d` with respect to its input, which has `shape`."""
    _check_float(g)
    expected = _pooled_shape(shape, size, stride, padding, _NO_DILATION)
    if g.shape != expected:
        refuse_shape(f"an output gradient of shape {expected}")
    return Spec(shape, g.dtype)


avg_pool2d.gradient(lambda g, y, x, **how: (avg_pool2d_input(g, shape=x.shape, **how),))


def _window_flops(node: Node) -> int:
    rows, columns = node.attrs["size"]
    return node.outputs[0].size * rows * columns


max_pool2d.flops(_window_flops)
avg_pool2d.flops(_window_flops)


@avg_pool2d_input.flops
def _(node: Node) -> int:
    rows, columns = node.attrs["size"]
    return node.inputs[0].spec.size * rows * columns
