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

from collections.abc import Callable, Sequence
from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift_all
from caldera.core.graph import Node, describe, location, scope
from caldera.core.graph.ops import Padding, Pair, concat, pad, product, reshape, slice_, transpose
from caldera.errors import ConfigError, ShapeError
from caldera.op.windows import (
    Paddings,
    Pairs,
    as_padding,
    as_pair,
    as_sizes,
    as_widths,
    expect_rank,
)

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"]


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
    how = {"stride": stride, "dilation": dilation}
    return _in_rows("conv1d", conv2d, x, w, "(K, C / groups, l)", padding, groups, how)


def _in_rows(
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
    sequence, kernel = _operands(x, w)
    expect_rank(sequence, 3, "x of shape (N, C, L)", where)
    expect_rank(kernel, 3, f"w of shape {layout}", where)
    ends: Any = padding
    if name != "conv1d" or not isinstance(padding, str):
        ends = ((0, 0), *as_widths(padding, where, (), (), (1,), (1,)))
    sizes = {each: (0 if each == "output_padding" else 1, value) for each, value in how.items()}
    with scope(f"op.{name}"):
        rows = [
            Expr(reshape(each, (*each.shape[:2], 1, each.shape[2]))) for each in (sequence, kernel)
        ]
        result = convolve(*rows, padding=ends, groups=groups, **sizes)
    return Expr(reshape(result.node, (*result.shape[:2], result.shape[3])))


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
    padding. With a stride several sizes are possible; `output_padding`, smaller than the stride or
    the dilation, is how many rows and columns more it has at the bottom and right.

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
    widths = _padding_of_transpose(padding, extra, strides, dilations, where)
    widths, extra, beyond = _reached(widths, extra, strides)
    _check_channels(image, kernel, parts, where)
    sizes = zip(image.shape[2:], kernel.shape[2:], strides, dilations, widths, extra, strict=True)
    height, width = (
        (length - 1) * step + gap * (window - 1) + 1 + more - sum(sides)
        for length, window, step, gap, sides, more in sizes
    )
    if min(height, width) < 1:
        raise ShapeError.build(
            where,
            expected="an output of at least one row and column",
            got=f"{height} x {width}",
            hint="use less padding, or a larger kernel or stride",
        )
    result = product.conv2d_input(
        image,
        kernel,
        shape=(image.shape[0], kernel.shape[1] * parts, height, width),
        stride=strides,
        padding=widths,
        dilation=dilations,
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
    padding: Paddings, extra: Pair, strides: Pair, dilations: Pair, where: str
) -> Padding:
    """The padding as numbers, where it and `output_padding` say which size the output has."""
    if isinstance(padding, str) and padding == "same":
        raise ConfigError.build(
            where,
            expected="padding= numbers or 'valid'",
            got="'same'",
            hint="several output sizes would do; give padding= and output_padding= as numbers",
        )
    widths = as_padding(padding, where, (), (), strides, dilations)
    if any(extra[i] >= max(strides[i], dilations[i]) for i in (0, 1)):
        raise ShapeError.build(
            where,
            expected=f"output_padding= smaller than the stride {strides} or the dilation "
            f"{dilations}",
            got=f"{extra}",
        )
    return widths


def _reached(
    widths: Sequence[Pair], extra: Pair, strides: Pair
) -> tuple[tuple[Pair, Pair], Pair, Pair]:
    """Padding and output padding, where that is smaller than the stride, and how many rows and
    columns behind that no element of a kernel reaches.

    Output padding of a stride and more gives back what the padding had cut off, and then zeros.
    """
    kept, smaller, beyond = [], [], []
    for (before, after), more, stride in zip(widths, extra, strides, strict=True):
        back = min(more, after) if more >= stride else 0
        kept.append((before, after - back))
        smaller.append(more if more < stride else 0)
        beyond.append(0 if more < stride else more - back)
    return (kept[0], kept[1]), (smaller[0], smaller[1]), (beyond[0], beyond[1])


def conv_transpose1d(
    x: Any,
    w: Any,
    stride: int = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Expr:
    """The transpose of `conv1d`: sequences (N, C, L), kernels (C, K / groups, l).

    `output_padding` is how many elements more the output has at its end, fewer than the stride
    or the dilation.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x, w = cd.tensor([[[1.0, 2.0, 4.0]]]), cd.tensor([[[1.0, 10.0]]])
    >>> op.conv_transpose1d(x, w).tolist()
    [[[1.0, 12.0, 24.0, 40.0]]]
    """
    how = {"stride": stride, "dilation": dilation, "output_padding": output_padding}
    return _in_rows(
        "conv_transpose1d", conv_transpose2d, x, w, "(C, K / groups, l)", padding, groups, how
    )


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
    is one `conv2d`, whose channels are those of all the layers that a kernel meets.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.conv3d(cd.Tensor((2, 3, 5, 6, 7)), cd.Tensor((4, 3, 3, 3, 3)), padding="same").shape
    (2, 4, 5, 6, 7)
    """
    where = location("conv3d")
    volume, kernel = _operands(x, w)
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
