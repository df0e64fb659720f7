"""Transposes of convolutions: inputs (N, C, ...), kernels (C, K / groups, ...), as in PyTorch.

`stride` and `dilation` are an int or one for each axis. `padding` is written as for the
convolutions; with "same" the output is `stride` times as large as the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.graph import Node, describe, location, scope
from caldera.core.graph.ops import Pair, add, pad, product, reshape, slice_, transpose
from caldera.core.tensor import Shape
from caldera.errors import ShapeError
from caldera.op.convolution import as_groups, in_rows, operands
from caldera.op.windows import Paddings, Pairs, as_sizes, as_widths

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]

_KERNELS = "C, K / groups"


def conv_transpose2d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    output_padding: Pairs = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """Return the transpose of a convolution: images (N, C, H, W), kernels (C, K / groups, h, w).

    The output is as large as the image from which `conv2d` with the same stride, padding, dilation
    and kernel makes one of the size of `x`: (H - 1) * stride + dilation * (h - 1) + 1 less the
    padding. With a stride several sizes are possible; `output_padding`, smaller than the stride or
    the dilation, is the number of additional rows and columns at the bottom and right. With
    padding="same" the output is `stride` times as large as `x`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), cd.tensor([[[[1.0, 1.0], [1.0, 1.0]]]])
    >>> op.conv_transpose2d(x, w).tolist()
    [[[[1.0, 3.0, 2.0], [4.0, 10.0, 6.0], [3.0, 7.0, 4.0]]]]
    >>> op.conv_transpose2d(x, w, stride=2, output_padding=1).shape
    (1, 1, 5, 5)
    >>> op.conv_transpose2d(x, w, stride=3, padding="same").shape
    (1, 1, 6, 6)
    """
    where = location("conv_transpose2d")
    image, kernel, strides, gaps = operands(x, w, _KERNELS, 2, stride, dilation, where)
    given, more = _padding_of_transpose(
        padding, output_padding, kernel.shape[2:], strides, gaps, where
    )
    parts = as_groups(groups, where)
    widths, extra, beyond = _reached(given, more, strides)
    _check_channels(image, kernel, parts, where)
    sizes = zip(image.shape[2:], kernel.shape[2:], strides, gaps, widths, extra, strict=True)
    height, width = (
        (length - 1) * step + gap * (window - 1) + 1 + more - sum(sides)
        for length, window, step, gap, sides, more in sizes
    )
    require(
        min(height, width) >= 1,
        where,
        "an output of at least one row and column",
        f"{height} x {width}",
        hint="use less padding, or a larger kernel or stride",
        error=ShapeError,
    )
    result = product.conv2d_input(
        image,
        kernel,
        shape=(image.shape[0], kernel.shape[1] * parts, height, width),
        stride=strides,
        padding=tuple(widths),
        dilation=gaps,
        groups=parts,
    )
    return Expr(pad(result, ((0, 0), (0, 0), *((0, rows) for rows in beyond))))


def _check_channels(image: Node, kernel: Node, parts: int, where: str) -> None:
    if kernel.shape[0] != image.shape[1] or image.shape[1] % parts:
        raise ShapeError.build(
            where,
            expected="w of shape (C, K / groups, h, w), with the channels C of x, "
            f"a multiple of {parts}",
            got=f"{describe(image)}, {describe(kernel)}",
            hint="check the channels of x, w and groups=",
        )


def _padding_of_transpose(
    padding: Paddings,
    output_padding: Pairs,
    window: Shape,
    strides: Shape,
    dilations: Shape,
    where: str,
) -> tuple[tuple[Pair, ...], Shape]:
    """Return the padding and output padding as numbers, which determine the size of the output."""
    rank = len(strides)
    extra = as_sizes(output_padding, rank, "output_padding", where, 0)
    if isinstance(padding, str) and padding == "same":
        require(
            not any(extra),
            where,
            "no output_padding with padding='same'",
            output_padding,
            hint="the output is as large as the input, times the stride; give padding= as "
            "numbers for another size",
        )
        # Padding of the convolution that computes the input from an image `stride` times as large.
        widths = as_widths("same", where, strides, window, strides, dilations)
        reaches = (gap * (n - 1) + 1 for n, gap in zip(window, dilations, strict=True))
        return widths, tuple(max(s - n, 0) for s, n in zip(strides, reaches, strict=True))
    widths = as_widths(padding, where, (), (), strides, dilations)
    require(
        not any(more >= max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)),
        where,
        f"output_padding= smaller than the stride {strides} or the dilation {dilations}",
        extra,
        error=ShapeError,
    )
    return widths, extra


def _reached(
    widths: Sequence[Pair], extra: Shape, strides: Shape
) -> tuple[list[Pair], list[int], list[int]]:
    """Return padding, output padding below the stride, and the rows and columns of zeros behind.

    Output padding >= stride restores the rows and columns that the padding had removed, followed by
    zeros, which no element of a kernel reaches.
    """
    kept, smaller, beyond = [], [], []
    for (before, after), more, stride in zip(widths, extra, strides, strict=True):
        back = min(more, after) if more >= stride else 0
        kept.append((before, after - back))
        smaller.append(more if more < stride else 0)
        beyond.append(0 if more < stride else more - back)
    return kept, smaller, beyond


def conv_transpose1d(
    x: Any,
    w: Any,
    stride: int = 1,
    padding: int | Sequence[int] | str = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Expr:
    """Return the transpose of `conv1d`: sequences (N, C, L), kernels (C, K / groups, l).

    `output_padding` is the number of additional elements at the end of the output, fewer than the
    stride or the dilation.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.tensor([[[1.0, 2.0, 4.0]]]), cd.tensor([[[1.0, 10.0]]])
    >>> op.conv_transpose1d(x, w).tolist()
    [[[1.0, 12.0, 24.0, 40.0]]]
    """
    return in_rows(
        "conv_transpose1d",
        conv_transpose2d,
        x,
        w,
        _KERNELS,
        stride,
        dilation,
        padding,
        groups,
        output_padding=(0, output_padding),
    )


def conv_transpose3d(
    x: Any,
    w: Any,
    stride: Pairs = 1,
    padding: Paddings = 0,
    output_padding: Pairs = 0,
    dilation: Pairs = 1,
    groups: int = 1,
) -> Expr:
    """Return the transpose of `conv3d`: volumes (N, C, D, H, W), kernels (C, K / groups, d, h, w).

    The parameters are as for `conv_transpose2d`. It is one `conv_transpose2d` for all the layers of
    a kernel, whose results are added along the depth.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.Tensor((2, 3, 5, 6, 7)), cd.Tensor((3, 4, 3, 3, 3))
    >>> op.conv_transpose3d(x, w, stride=2, padding="same").shape
    (2, 4, 10, 12, 14)
    """
    where = location("conv_transpose3d")
    volume, kernel, strides, gaps = operands(x, w, _KERNELS, 3, stride, dilation, where)
    widths, extra = _padding_of_transpose(
        padding, output_padding, kernel.shape[2:], strides, gaps, where
    )
    batch, channels, depth, height, width = volume.shape
    inputs, outputs, layers, *plane = kernel.shape
    images = reshape(transpose(volume, (0, 2, 1, 3, 4)), (batch * depth, channels, height, width))
    with scope("op.conv_transpose3d"):
        result = conv_transpose2d(
            Expr(images),
            Expr(reshape(kernel, (inputs, outputs * layers, *plane))),
            stride=strides[1:],
            padding=widths[1:],
            output_padding=extra[1:],
            dilation=gaps[1:],
            groups=groups,
        )
    _, filters, height, width = result.shape
    split = (batch, depth, filters // layers, layers, height, width)
    parts = transpose(reshape(result.node, split), (3, 0, 2, 1, 4, 5))
    whole = (batch, filters // layers, depth, height, width)
    return Expr(_added_along_depth(parts, whole, strides[0], gaps[0], widths[0], extra[0], where))


def _added_along_depth(
    parts: Node, whole: Shape, stride: int, gap: int, widths: Pair, extra: int, where: str
) -> Node:
    """The sum of the layers' volumes (layers, N, K, D, H, W), each where its layer puts it."""
    batch, filters, depth, height, width = whole
    reach = gap * (parts.shape[0] - 1)
    length = depth * stride + reach + extra
    kept = (depth - 1) * stride + reach + 1 + extra - sum(widths)
    require(
        kept >= 1,
        where,
        "an output of at least one layer",
        kept,
        hint="use less padding",
        error=ShapeError,
    )
    total: Node | None = None
    for layer in range(parts.shape[0]):
        volume = reshape(
            slice_(parts, ((layer, layer + 1, 1), *((0, n, 1) for n in parts.shape[1:]))),
            (batch, filters, depth, 1, height, width),
        )
        spread = reshape(
            pad(volume, ((0, 0),) * 3 + ((0, stride - 1),) + ((0, 0),) * 2),
            (batch, filters, depth * stride, height, width),
        )
        before = layer * gap
        moved = pad(
            spread,
            ((0, 0), (0, 0), (before, length - depth * stride - before), (0, 0), (0, 0)),
        )
        total = moved if total is None else add(total, moved)
    assert total is not None
    begin = ((0, batch, 1), (0, filters, 1), (widths[0], widths[0] + kept, 1))
    return slice_(total, (*begin, (0, height, 1), (0, width, 1)))
