"""Matrix products and convolutions, with their gradients among themselves.

Convolution, its gradient with respect to the input and its gradient with respect to the weight are
three ops, each linear in both arguments. The derivative of each consists of the remaining two ops,
so derivatives of any order exist. `conv2d_input` is also the transposed convolution.

All these ops take an attribute `compute`: "tf32" allows a device to round float32 operands to the
11 digits that its tensor cores keep. The attribute is omitted where such rounding is not allowed.

Pooling over windows of images (N, C, H, W), each op with its adjoint.

Max pooling also returns the index of the largest element of each window, and its gradient is added
to that element only. `pool_scatter` adds values at these elements, `pool_gather` reads them there,
and the two are mutual gradients. Average pooling and `avg_pool2d_input` are adjoint to each other
in the same way. So derivatives of any order exist.

Conventions: of equal elements the first in row-major order wins; a nan wins over everything.
Padding never wins: it counts as -inf. A window of padding only (dilation can step over a small
image) has the maximum -inf, the index -1 and no gradient.
"""

from __future__ import annotations

from caldera.core.graph import Node, Nodes, Spec, op, refuse_dtype, refuse_shape
from caldera.core.graph.ops.base import check_float, reshape, sum_, sum_to
from caldera.core.graph.ops.elementwise import broadcast, mul
from caldera.core.graph.ops.movement import swap_last
from caldera.core.tensor import DType, Shape, bool_, int8, int32, is_inexact, size

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
"""((top, bottom), (left, right))"""


def _check_floats(*specs: Spec) -> None:
    if any(spec.dtype != specs[0].dtype or not is_inexact(spec.dtype) for spec in specs):
        refuse_dtype(
            "operands of the same floating-point dtype", hint="cast one operand with op.cast"
        )


@op(
    "matmul",
    kind="product",
    flops=lambda node: 2 * node.spec.size * node.inputs[0].shape[-2 if node.attrs["ta"] else -1],
)
def matmul(a: Spec, b: Spec, *, ta: bool, tb: bool, compute: str | None = None) -> Spec:
    """Return the product of (batches of) matrices, transposed if `ta` or `tb` is True.

    Sums of integers wrap in their dtype, as in NumPy.
    """
    if a.dtype != b.dtype or a.dtype == bool_:
        refuse_dtype("operands of the same numeric dtype", hint="cast one operand with op.cast")
    if a.rank < 2 or b.rank < 2:
        refuse_shape("matrices, or batches of matrices")
    rows, inner_a = a.shape[-2:][::-1] if ta else a.shape[-2:]
    inner_b, columns = b.shape[-2:][::-1] if tb else b.shape[-2:]
    if inner_a != inner_b:
        refuse_shape(
            f"equal inner sizes, not {inner_a} and {inner_b}",
            hint="the columns of the first must be the rows of the second",
        )
    batch = broadcast(Spec(a.shape[:-2], a.dtype), Spec(b.shape[:-2], b.dtype))
    return Spec((*batch, rows, columns), a.dtype)


@matmul.gradient
def _(g: Node, y: Node, a: Node, b: Node, *, ta: bool, tb: bool, **how: str) -> Nodes:
    da = matmul(b, g, ta=tb, tb=True, **how) if ta else matmul(g, b, ta=False, tb=not tb, **how)
    da = sum_to(da, a.shape)
    if len(b.shape) == 2 < len(a.shape) and not ta:
        # All matrices of the batch meet the same one: they are one tall matrix, and the sum over
        # the batch is part of the product.
        a, g = (reshape(each, (size(each.shape[:-1]), each.shape[-1])) for each in (a, g))
    db = matmul(g, a, ta=True, tb=ta, **how) if tb else matmul(a, g, ta=not ta, tb=False, **how)
    return da, sum_to(db, b.shape)


def product_loop(a: Node, b: Node, *, ta: bool, tb: bool, compute: str | None = None) -> Node:
    """Return `matmul` as one loop that multiplies and adds, for integers.

    The axis that is dense in `b` comes last: up to ten times as fast as NumPy's products.
    """
    a = swap_last(a) if ta else a
    a = reshape(a, (*a.shape[:-1], 1, a.shape[-1]) if tb else (*a.shape, 1))
    products = mul(a, reshape(b, (*b.shape[:-2], 1, *b.shape[-2:])))
    return sum_(products, (len(products.shape) - (1 if tb else 2),))


def matmul_any(a: Node, b: Node, ta: bool = False, tb: bool = False) -> Node:
    """The product as NumPy's `@` means it: vectors are rows on the left, columns on the right.

    The transpose of a vector is that vector.
    """
    left = reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    result = matmul(left, right, ta=ta and len(a.shape) > 1, tb=tb and len(b.shape) > 1)
    shape = list(result.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-1 if len(b.shape) == 1 else -2]
    return reshape(result, tuple(shape))


def _check_slope(g: Spec, expected: Shape) -> None:
    if g.shape != expected:
        refuse_shape(f"an output gradient of shape {expected}")


def conv_size(n: int, kernel: int, stride: int, padding: Pair, dilation: int) -> int:
    """The output length of a convolution or pooling along one axis (may be < 1: does not fit)."""
    return (n + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1


def _conv_shape(
    x: Shape, w: Shape, stride: Pair, padding: Padding, dilation: Pair, groups: int
) -> Shape:
    if len(x) != 4 or len(w) != 4:
        refuse_shape("x of shape (N, C, H, W) and w of shape (K, C / groups, kernel H, kernel W)")
    if groups < 1 or x[1] % groups or w[0] % groups or w[1] != x[1] // groups:
        refuse_shape(
            f"w to have {x[1]} / {groups} input channels and a multiple of {groups} outputs",
            hint="check the channels of x, w and groups=",
        )
    if 0 in w[2:]:
        refuse_shape("a kernel with at least one element")
    height, width = (
        conv_size(x[2 + i], w[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)
    )
    if height < 1 or width < 1:
        reach = " x ".join(str(dilation[i] * (w[2 + i] - 1) + 1) for i in (0, 1))
        refuse_shape(
            f"an image of at least {reach}, its padding {padding} included",
            hint="add padding, or use a smaller kernel or dilation",
        )
    return (x[0], w[0], height, width)


@op(
    "conv2d", kind="product", flops=lambda node: 2 * node.spec.size * size(node.inputs[1].shape[1:])
)
def conv2d(
    x: Spec,
    w: Spec,
    *,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> Spec:
    """Return cross-correlation of images (N, C, H, W) with kernels (K, C / groups, h, w)."""
    _check_floats(x, w)
    return Spec(_conv_shape(x.shape, w.shape, stride, padding, dilation, groups), x.dtype)


@op(
    "conv2d_input",
    kind="product",
    flops=lambda node: 2 * node.inputs[0].spec.size * size(node.inputs[1].shape[1:]),
)
def conv2d_input(
    g: Spec,
    w: Spec,
    *,
    shape: Shape,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> Spec:
    """Return the gradient of `conv2d` with respect to its input, which has `shape`."""
    _check_floats(g, w)
    _check_slope(g, _conv_shape(shape, w.shape, stride, padding, dilation, groups))
    return Spec(shape, g.dtype)


@op(
    "conv2d_weight",
    kind="product",
    flops=lambda node: 2 * node.inputs[1].spec.size * size(node.shape[1:]),
    gradient=lambda gw, y, x, g, *, shape, **how: (
        conv2d_input(g, gw, shape=x.shape, **how),
        conv2d(x, gw, **how),
    ),
)
def conv2d_weight(
    x: Spec,
    g: Spec,
    *,
    shape: Shape,
    stride: Pair,
    padding: Padding,
    dilation: Pair,
    groups: int,
    compute: str | None = None,
) -> Spec:
    """Return the gradient of `conv2d` with respect to its weight, which has `shape`."""
    _check_floats(x, g)
    _check_slope(g, _conv_shape(x.shape, shape, stride, padding, dilation, groups))
    return Spec(shape, x.dtype)


conv2d_input.gradient(
    lambda gx, y, g, w, *, shape, **how: (
        conv2d(gx, w, **how),
        conv2d_weight(gx, g, shape=w.shape, **how),
    )
)


conv2d.gradient(
    lambda g, y, x, w, **how: (
        conv2d_input(g, w, shape=x.shape, **how),
        conv2d_weight(x, g, shape=w.shape, **how),
    )
)


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
            hint="a window must overlap the image, not only the padding",
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


def _count_of_windows(node: Node) -> int:
    return node.outputs[0].size * size(node.attrs["size"])


def index_dtype(size: Pair) -> DType:
    """Return the smallest dtype for positions inside a window of this size, with -1 for none."""
    return int8 if size[0] * size[1] <= _MOST_IN_INT8 else int32


def _check_index(index: Spec, expected: Spec) -> None:
    if (index.shape, index.dtype) != (expected.shape, expected.dtype):
        refuse_shape(f"an index {expected}, as returned by max_pool2d")


@op("max_pool2d", flops=_count_of_windows)
def max_pool2d(
    x: Spec, *, size: Pair, stride: Pair, padding: Padding, dilation: Pair
) -> tuple[Spec, Spec]:
    """Return the largest element of each window, and where in its window (row-major) it stands."""
    check_float(x)
    shape = _pooled_shape(x.shape, size, stride, padding, dilation)
    return Spec(shape, x.dtype), Spec(shape, index_dtype(size))


@op("pool_scatter", flops=lambda node: node.inputs[0].spec.size)
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
    """Return zeros of `shape`, with each window's `g` added at the element that `index` names."""
    check_float(g)
    expected = _pooled_shape(shape, size, stride, padding, dilation)
    _check_slope(g, expected)
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
    """Return the element of each window of `x` at `index`; 0 for index -1."""
    check_float(x)
    shape = _pooled_shape(x.shape, size, stride, padding, dilation)
    _check_index(index, Spec(shape, index_dtype(size)))
    return Spec(shape, x.dtype)


pool_scatter.gradient(
    lambda gx, y, g, index, *, shape, **how: (pool_gather(gx, index, **how), None)
)


_NO_DILATION = (1, 1)


@op("avg_pool2d", flops=_count_of_windows)
def avg_pool2d(x: Spec, *, size: Pair, stride: Pair, padding: Padding, count_padding: bool) -> Spec:
    """Return the mean of each window; `count_padding` includes padding as elements of 0."""
    check_float(x)
    return Spec(_pooled_shape(x.shape, size, stride, padding, _NO_DILATION), x.dtype)


@op(
    "avg_pool2d_input",
    gradient=lambda gx, y, g, *, shape, **how: (avg_pool2d(gx, **how),),
    flops=lambda node: node.inputs[0].spec.size * size(node.attrs["size"]),
)
def avg_pool2d_input(
    g: Spec, *, shape: Shape, size: Pair, stride: Pair, padding: Padding, count_padding: bool
) -> Spec:
    """Return the gradient of `avg_pool2d` with respect to its input, which has `shape`."""
    check_float(g)
    _check_slope(g, _pooled_shape(shape, size, stride, padding, _NO_DILATION))
    return Spec(shape, g.dtype)


avg_pool2d.gradient(lambda g, y, x, **how: (avg_pool2d_input(g, shape=x.shape, **how),))
