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
from caldera.errors import ShapeError
from caldera.op.windows import (
    Paddings,
    Pairs,
    as_padding,
    as_pair,
    as_sizes,
    as_widths,
    expect_rank,
)

__all__ = ["conv1d", "conv2d", "conv3d"]


def operands(x: Any, w: Any) -> tuple[Node, Node]:
    """The input and the kernels, as nodes of floats."""
    image, kernel = lift_all(x, w)
    return as_float(image), as_float(kernel)


def conv2d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """Convolve images (N, C, H, W) with K kernels (K, C / groups, h, w) to (N, K, H', W').

    With `groups`, the channels are split into that number of parts, each convolved with a separate
    set of K / groups kernels; groups = C is a depthwise convolution.

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
    image, kernel = operands(x, w)
    expect_rank(image, 4, "x of shape (N, C, H, W)", where)
    expect_rank(kernel, 4, "w of shape (K, C / groups, h, w)", where)
    strides = as_pair(stride, "stride", where)
    dilations = as_pair(dilation, "dilation", where)
    widths = as_padding(padding, where, image.shape[2:], kernel.shape[2:], strides, dilations)
    return Expr(
        product.conv2d(
            image,
            kernel,
            stride=strides,
            padding=widths,
            dilation=dilations,
            groups=as_groups(groups, where),
        )
    )


def as_groups(groups: Any, where: str) -> int:
    """The number of groups, checked."""
    if isinstance(groups, int) and groups >= 1:
        return groups
    raise ShapeError.build(where, expected="groups= a whole number of at least 1", got=repr(groups))


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
    how = {"stride": stride, "dilation": dilation}
    return in_rows("conv1d", conv2d, x, w, "(K, C / groups, l)", padding, groups, how)


def in_rows(
    name: str,
    convolve: Callable[..., Expr],
    x: Any,
    w: Any,
    layout: str,
    padding: int | Sequence[int] | str,
    groups: int,
    how: dict[str, int],
) -> Expr:
    """Convolve sequences (N, C, L) as images (N, C, 1, L)."""
    where = location(name)
    sequence, kernel = operands(x, w)
    expect_rank(sequence, 3, "x of shape (N, C, L)", where)
    expect_rank(kernel, 3, f"w of shape {layout}", where)
    ends: Any = padding
    if not isinstance(padding, str):
        ends = ((0, 0), *as_widths(padding, where, (), (), (1,), (1,)))
    sizes = {each: (0 if each == "output_padding" else 1, value) for each, value in how.items()}
    with scope(f"op.{name}"):
        rows = [
            Expr(reshape(each, (*each.shape[:2], 1, each.shape[2]))) for each in (sequence, kernel)
        ]
        result = convolve(*rows, padding=ends, groups=groups, **sizes)
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
    volume, kernel = operands(x, w)
    expect_rank(volume, 5, "x of shape (N, C, D, H, W)", where)
    expect_rank(kernel, 5, "w of shape (K, C / groups, d, h, w)", where)
    strides = as_sizes(stride, 3, "stride", where)
    gaps = as_sizes(dilation, 3, "dilation", where)
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
