"""Pooling over windows of images (N, C, H, W).

`size`, `stride` and `dilation` are an int or a pair (vertical, horizontal); without a stride the
windows lie side by side. `padding` is written as for `op.conv2d`, and must be narrower than the
window. Windows that would stick out at the end are left out.
"""

from __future__ import annotations

from typing import Any

from caldera.errors import ShapeError
from caldera.graph.node import Node, describe
from caldera.graph.opdef import location
from caldera.graph.ops import pooling
from caldera.graph.ops.reduction import mean
from caldera.lazy import Expr, as_float, lift
from caldera.op.convolution import Paddings, Pairs, as_padding, as_pair, expect_rank


def _images(x: Any, where: str) -> Node:
    node = as_float(lift(x))
    expect_rank(node, 4, "x of shape (N, C, H, W)", where)
    return node


def max_pool2d(
    x: Any,
    size: Pairs,
    stride: Pairs | None = None,
    padding: Paddings = 0,
    dilation: Pairs = 1,
) -> Expr:
    """The largest element of each window; padding never wins.

    The gradient goes to that element; of equal ones, to the first in row-major order. A nan in a
    window is its result.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]]])
    >>> op.max_pool2d(x, 2, stride=1).tolist()
    [[[[5.0, 6.0]]]]
    """
    where = location("max_pool2d")
    image = _images(x, where)
    window = as_pair(size, "size", where)
    strides = window if stride is None else as_pair(stride, "stride", where)
    dilations = as_pair(dilation, "dilation", where)
    widths = as_padding(padding, where, image.shape[2:], window, strides, dilations)
    values, _ = pooling.max_pool2d(
        image, size=window, stride=strides, padding=widths, dilation=dilations
    )
    return Expr(values)


def avg_pool2d(
    x: Any,
    size: Pairs,
    stride: Pairs | None = None,
    padding: Paddings = 0,
    count_padding: bool = True,
) -> Expr:
    """The mean of each window.

    Padding counts as elements of 0, as in PyTorch; with `count_padding=False` the mean is taken
    over the elements of the image alone.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[4.0, 8.0], [12.0, 16.0]]]])
    >>> op.avg_pool2d(x, 2).tolist()
    [[[[10.0]]]]
    >>> op.avg_pool2d(x, 2, padding=1).tolist()
    [[[[1.0, 2.0], [3.0, 4.0]]]]
    >>> op.avg_pool2d(x, 2, padding=1, count_padding=False).tolist()
    [[[[4.0, 8.0], [12.0, 16.0]]]]
    """
    where = location("avg_pool2d")
    image = _images(x, where)
    window = as_pair(size, "size", where)
    strides = window if stride is None else as_pair(stride, "stride", where)
    widths = as_padding(padding, where, image.shape[2:], window, strides, (1, 1))
    return Expr(
        pooling.avg_pool2d(
            image, size=window, stride=strides, padding=widths, count_padding=bool(count_padding)
        )
    )


def global_average_pool(x: Any) -> Expr:
    """The mean of each channel over all its positions: (N, C, H, W) to (N, C).

    Sequences (N, C, L) work as well.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.global_average_pool(cd.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])).tolist()
    [[3.0]]
    """
    node = as_float(lift(x))
    rank = len(node.shape)
    if rank < 3:
        raise ShapeError.build(
            location("global_average_pool"), expected="x of shape (N, C, H, W)", got=describe(node)
        )
    return Expr(mean(node, axis=tuple(range(2, rank)), keepdims=False))
