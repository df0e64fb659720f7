"""Convolutions: images (N, C, H, W), kernels (K, C / groups, kernel H, kernel W), as in PyTorch.

What is called convolution here is, as everywhere in deep learning, cross-correlation: the kernel is
not flipped. `stride` and `dilation` are an int or a pair (vertical, horizontal). `padding` is

- an int, or a pair (vertical, horizontal): that many zeros on both sides,
- ((top, bottom), (left, right)): each side by itself,
- "valid": none,
- "same": so many that the output has ceil(length / stride) elements along each axis; if their
  number is odd, the odd one comes after the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from caldera.errors import ConfigError, ShapeError
from caldera.graph.node import Node, describe
from caldera.graph.opdef import location, scope
from caldera.graph.ops import product
from caldera.graph.ops.base import reshape
from caldera.graph.ops.product import Padding, Pair
from caldera.lazy import Expr, as_float, lift_all
from caldera.tensor.shape import Shape

Pairs = int | Sequence[int]
Paddings = int | Sequence[int] | Sequence[Sequence[int]] | str


def as_pair(value: Any, name: str, where: str, minimum: int = 1) -> Pair:
    """A pair (vertical, horizontal) of whole numbers, from one number or two."""
    values = value if isinstance(value, Sequence) else (value, value)
    try:
        first, second = (index(each) for each in values)
    except (TypeError, ValueError):
        first = second = minimum - 1
    if min(first, second) < minimum:
        raise ShapeError.build(
            where, expected=f"{name}= one or two whole numbers of at least {minimum}",
            got=repr(value),
        )  # fmt: skip
    return first, second


def as_padding(
    padding: Any, where: str, image: Shape, window: Shape, stride: Pair, dilation: Pair
) -> Padding:
    """((top, bottom), (left, right)) from any way to write a padding (see the module's text)."""
    if isinstance(padding, str):
        if padding == "valid":
            return (0, 0), (0, 0)
        if padding != "same":
            raise ConfigError.build(
                where, expected="padding= numbers, 'same' or 'valid'", got=repr(padding)
            )
        vertical, horizontal = (_same(image[i], window[i], stride[i], dilation[i]) for i in (0, 1))
        return vertical, horizontal
    if isinstance(padding, Sequence) and any(isinstance(side, Sequence) for side in padding):
        if len(padding) != 2:
            raise ShapeError.build(
                where, expected="padding= ((top, bottom), (left, right))", got=repr(padding)
            )
        top_bottom, left_right = (as_pair(side, "padding", where, 0) for side in padding)
        return top_bottom, left_right
    vertical_width, horizontal_width = as_pair(padding, "padding", where, 0)
    return (vertical_width, vertical_width), (horizontal_width, horizontal_width)


def _same(length: int, window: int, stride: int, dilation: int) -> Pair:
    outputs = -(-length // stride)
    total = max((outputs - 1) * stride + dilation * (window - 1) + 1 - length, 0)
    return total // 2, total - total // 2


def expect_rank(node: Node, rank: int, layout: str, where: str) -> None:
    """Refuse anything that has not `rank` axes."""
    if len(node.shape) != rank:
        raise ShapeError.build(where, expected=layout, got=describe(node))


def _operands(x: Any, w: Any) -> tuple[Node, Node]:
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

    With `groups`, the channels are cut into that many parts, each convolved with its own K / groups
    kernels; groups = C is a depthwise convolution.

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
    image, kernel = _operands(x, w)
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
            groups=_as_groups(groups, where),
        )
    )


def _as_groups(groups: Any, where: str) -> int:
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
    where = location("conv1d")
    sequence, kernel = _operands(x, w)
    expect_rank(sequence, 3, "x of shape (N, C, L)", where)
    expect_rank(kernel, 3, "w of shape (K, C / groups, l)", where)
    ends: Any = padding
    if not isinstance(padding, str):
        ends = ((0, 0), as_pair(padding, "padding", where, 0))
    with scope("op.conv1d"):
        result = conv2d(
            _as_row(sequence),
            _as_row(kernel),
            stride=(1, stride),
            padding=ends,
            dilation=(1, dilation),
            groups=groups,
        )
    batch, channels, _, length = result.shape
    return Expr(reshape(result.node, (batch, channels, length)))


def _as_row(node: Node) -> Expr:
    """(N, C, L) as (N, C, 1, L)."""
    return Expr(reshape(node, (*node.shape[:2], 1, node.shape[2])))


def conv_transpose2d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    output_padding: Pairs = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """The transpose of a convolution: images (N, C, H, W), kernels (C, K / groups, h, w).

    The output is as large as the image from which `conv2d` with the same stride, padding, dilation
    and kernel makes one of the size of `x`: (H - 1) * stride + dilation * (h - 1) + 1 less the
    padding. With a stride several sizes are possible; `output_padding`, smaller than the stride,
    is how many rows and columns more it has at the bottom and right.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cd.tensor([[[[1.0, 1.0], [1.0, 1.0]]]])
    >>> op.conv_transpose2d(x, w).tolist()
    [[[[1.0, 3.0, 2.0], [4.0, 10.0, 6.0], [3.0, 7.0, 4.0]]]]
    >>> op.conv_transpose2d(x, w, stride=2, output_padding=1).shape
    (1, 1, 5, 5)
    """
    where = location("conv_transpose2d")
    image, kernel = _operands(x, w)
    expect_rank(image, 4, "x of shape (N, C, H, W)", where)
    expect_rank(kernel, 4, "w of shape (C, K / groups, h, w)", where)
    strides = as_pair(stride, "stride", where)
    dilations = as_pair(dilation, "dilation", where)
    extra = as_pair(output_padding, "output_padding", where, 0)
    parts = _as_groups(groups, where)
    if padding == "same":
        raise ConfigError.build(
            where, expected="padding= numbers or 'valid'", got="'same'",
            hint="several output sizes would do; give padding= and output_padding= as numbers",
        )  # fmt: skip
    widths = as_padding(padding, where, (), (), strides, dilations)
    if any(extra[i] >= strides[i] for i in (0, 1)):
        raise ShapeError.build(
            where, expected=f"output_padding= smaller than the stride {strides}", got=f"{extra}"
        )
    if kernel.shape[0] != image.shape[1] or image.shape[1] % parts:
        raise ShapeError.build(
            where,
            expected="w of shape (C, K / groups, h, w), with the channels C of x, "
            f"a multiple of {parts}",
            got=f"{describe(image)}, {describe(kernel)}",
            hint="check the channels of x, w and groups=",
        )  # fmt: skip
    height, width = (
        (image.shape[2 + i] - 1) * strides[i]
        + dilations[i] * (kernel.shape[2 + i] - 1)
        + 1
        + extra[i]
        - sum(widths[i])
        for i in (0, 1)
    )
    if min(height, width) < 1:
        raise ShapeError.build(
            where, expected="an output of at least one row and column", got=f"{height} x {width}",
            hint="use less padding, or a larger kernel or stride",
        )  # fmt: skip
    return Expr(
        product.conv2d_input(
            image,
            kernel,
            shape=(image.shape[0], kernel.shape[1] * parts, height, width),
            stride=strides,
            padding=widths,
            dilation=dilations,
            groups=parts,
        )
    )
