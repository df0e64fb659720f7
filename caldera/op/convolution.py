"""Convolutions: images (N, C, H, W), kernels (K, C / groups, kernel H, kernel W), as in PyTorch.

As everywhere in deep learning, convolution means cross-correlation: the kernel is not flipped.
`stride` and `dilation` are an int or a pair (vertical, horizontal). `padding` is

- an int, or a pair (vertical, horizontal): number of zeros on both sides,
- ((top, bottom), (left, right)): number of zeros for each side,
- "valid": none,
- "same": the number of zeros for which the output has ceil(length / stride) elements along each
  axis; an odd number has one more zero after the image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift_all
from caldera.core.graph import Node, location, scope
from caldera.core.graph.ops import concat, pad, product, reshape, slice_, transpose
from caldera.core.tensor import Shape
from caldera.errors import ShapeError
from caldera.op.windows import Paddings, Pairs, as_sizes, as_widths, expect_rank

__all__ = ["conv1d", "conv2d", "conv3d"]


_KERNELS = "K, C / groups"
_AXES = {1: "L", 2: "H, W", 3: "D, H, W"}


def operands(
    x: Any, w: Any, kernels: str, rank: int, stride: Any, dilation: Any, where: str
) -> tuple[Node, Node, Shape, Shape]:
    """Return the input and the kernels as nodes of floats, the strides and the dilations.

    Checked.
    """
    image, kernel = map(as_float, lift_all(x, w))
    axes = _AXES[rank]
    expect_rank(image, rank + 2, f"x of shape (N, C, {axes})", where)
    expect_rank(kernel, rank + 2, f"w of shape ({kernels}, {axes.lower()})", where)
    strides = as_sizes(stride, rank, "stride", where)
    return image, kernel, strides, as_sizes(dilation, rank, "dilation", where)


def conv2d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """Convolve images (N, C, H, W) with K kernels (K, C / groups, h, w) to (N, K, H', W').

    Args:
        x: Images.
        w: Kernels.
        stride: Distance between windows, one number or (rows, columns).
        padding: Width of the zero border, or "same" or "valid".
        dilation: Distance between the elements of a window.
        groups: Number of parts of the channels, each convolved with a separate set of K / groups
            kernels; C is a depthwise convolution.

    Returns:
        The images (N, K, H', W').

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]]])
    >>> w = cd.tensor([[[[1.0, 0.0], [0.0, -1.0]]]])
    >>> op.conv2d(x, w).tolist()
    [[[[-4.0, -4.0], [-4.0, -4.0]]]]
    >>> op.conv2d(x, w, stride=2, padding="same").shape
    (1, 1, 2, 2)
    """
    where = location("conv2d")
    image, kernel, strides, gaps = operands(x, w, _KERNELS, 2, stride, dilation, where)
    widths = as_widths(padding, where, image.shape[2:], kernel.shape[2:], strides, gaps)
    return Expr(
        product.conv2d(
            image,
            kernel,
            stride=strides,
            padding=widths,
            dilation=gaps,
            groups=as_groups(groups, where),
        )
    )


def as_groups(groups: Any, where: str) -> int:
    """Return the number of groups, checked."""
    if isinstance(groups, int) and groups >= 1:
        return groups
    raise ShapeError.build(where, expected="groups= an integer >= 1", got=repr(groups))


def conv1d(
    x: Any,
    w: Any,
    stride: int = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Expr:
    """Convolve sequences (N, C, L) with K kernels (K, C / groups, l) to (N, K, L').

    `padding` is a number for both ends, a pair (before, after), "same" or "valid".

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.tensor([[[1.0, 2.0, 4.0, 8.0]]]), cd.tensor([[[-1.0, 1.0]]])
    >>> op.conv1d(x, w).tolist()
    [[[1.0, 2.0, 4.0]]]
    >>> op.conv1d(x, w, padding=(1, 0)).tolist()
    [[[1.0, 1.0, 2.0, 4.0]]]
    """
    return in_rows("conv1d", conv2d, x, w, _KERNELS, stride, dilation, padding, groups)


def in_rows(
    name: str,
    convolve: Callable[..., Expr],
    x: Any,
    w: Any,
    kernels: str,
    stride: int,
    dilation: int,
    padding: int | Sequence[int] | str,
    groups: int,
    **more: Any,
) -> Expr:
    """Convolve sequences (N, C, L) as images (N, C, 1, L)."""
    where = location(name)
    *given, strides, gaps = operands(x, w, kernels, 1, stride, dilation, where)
    ends: Any = padding
    if not isinstance(padding, str):
        ends = ((0, 0), *as_widths(padding, where, (), (), (1,), (1,)))
    with scope(f"op.{name}"):
        rows = [Expr(reshape(each, (*each.shape[:2], 1, each.shape[2]))) for each in given]
        more |= {"stride": (1, *strides), "dilation": (1, *gaps)}
        result = convolve(*rows, padding=ends, groups=groups, **more)
    return Expr(reshape(result.node, (*result.shape[:2], result.shape[3])))


def conv3d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """Convolve volumes (N, C, D, H, W) with kernels (K, C / groups, d, h, w) to (N, K, D', H', W').

    `stride` and `dilation` are an int or one for each axis, `padding` also a pair for each axis. It
    is one `conv2d`, whose channels are the channels of all layers that a kernel covers.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.conv3d(cd.Tensor((2, 3, 5, 6, 7)), cd.Tensor((4, 3, 3, 3, 3)), padding="same").shape
    (2, 4, 5, 6, 7)
    """
    where = location("conv3d")
    volume, kernel, strides, gaps = operands(x, w, _KERNELS, 3, stride, dilation, where)
    widths = as_widths(padding, where, volume.shape[2:], kernel.shape[2:], strides, gaps)
    volume = pad(volume, ((0, 0), (0, 0), widths[0], (0, 0), (0, 0)))
    batch, channels, depth, height, width = volume.shape
    outputs, inputs, layers, *plane = kernel.shape
    count = product.conv_size(depth, layers, strides[0], (0, 0), gaps[0])
    if count < 1:
        raise ShapeError.build(
            where,
            expected=f"a depth of at least {gaps[0] * (layers - 1) + 1}, padding included",
            got=str(depth),
            hint="add padding, or use a smaller kernel or dilation",
        )
    reach = (count - 1) * strides[0] + 1
    before, after = ((0, batch, 1), (0, channels, 1)), ((0, height, 1), (0, width, 1))
    met = [
        slice_(volume, (*before, (start, start + reach, strides[0]), *after))
        for start in range(0, layers * gaps[0], gaps[0])
    ]
    # (N, C, D', H, W) for each layer of a kernel, as images (N D', C layers, H, W).
    stacked = concat(tuple(reshape(each, (batch, channels, 1, *each.shape[2:])) for each in met), 2)
    images = reshape(
        transpose(stacked, (0, 3, 1, 2, 4, 5)), (batch * count, channels * layers, height, width)
    )
    with scope("op.conv3d"):
        result = conv2d(
            Expr(images),
            Expr(reshape(kernel, (outputs, inputs * layers, *plane))),
            stride=strides[1:],
            padding=widths[1:],
            dilation=gaps[1:],
            groups=groups,
        )
    _, _, height, width = result.shape
    planes = reshape(result.node, (batch, count, outputs, height, width))
    return Expr(transpose(planes, (0, 2, 1, 3, 4)))
