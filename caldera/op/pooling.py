"""Pooling over windows of sequences (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W).

`size`, `stride` and `dilation` are an int, or one for each axis; without a stride the windows lie
side by side. `padding` is written as for the convolutions, and must be narrower than the window.
Windows that would extend beyond the end are omitted, unless `ceil_mode` is set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from caldera.compiler.lazy import Expr, as_float, lift
from caldera.core.graph import Node, describe, location
from caldera.core.graph.ops import Padding, Pair, mean, pad, product, reshape
from caldera.core.tensor.shape import Shape
from caldera.errors import ShapeError
from caldera.op.windows import Paddings, as_sizes, as_widths, beyond_padding, expect_rank

__all__ = [
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "global_average_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
]

Sizes = int | Sequence[int]
_LAYOUTS = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


@dataclass(frozen=True)
class _Windows:
    """One entry per axis. `beyond` is the length of the last window outside the padding."""

    size: Shape
    stride: Shape
    dilation: Shape
    padding: tuple[Pair, ...]
    beyond: Shape

    def along(self, *axes: int) -> tuple[Pair, Pair, Padding, Pair]:
        """Return size, stride, padding and dilation of two axes.

        -1 is one that is left as it is.
        """
        axis = {-1: (1, 1, (0, 0), 1)} | {
            i: (self.size[i], self.stride[i], (a, b + self.beyond[i]), self.dilation[i])
            for i, (a, b) in enumerate(self.padding)
        }
        first, second = (axis[each] for each in axes)
        return tuple(zip(first, second, strict=True))  # type: ignore[return-value]


def _laid(
    name: str,
    x: Any,
    rank: int,
    size: Sizes,
    stride: Sizes | None,
    padding: Paddings,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Node, _Windows]:
    where = location(name)
    node = as_float(lift(x))
    expect_rank(node, rank + 2, f"x of shape {_LAYOUTS[rank]}", where)
    window = as_sizes(size, rank, "size", where)
    strides = window if stride is None else as_sizes(stride, rank, "stride", where)
    dilations = as_sizes(dilation, rank, "dilation", where)
    image = node.shape[2:]
    widths = as_widths(padding, where, image, window, strides, dilations)
    beyond = (0,) * rank
    if ceil_mode:
        reach = [d * (n - 1) + 1 for n, d in zip(window, dilations, strict=True)]
        beyond = tuple(map(beyond_padding, image, reach, strides, widths))
    return node, _Windows(window, strides, dilations, widths, beyond)


def _max(x: Node, windows: _Windows, *axes: int) -> Node:
    size, stride, padding, dilation = windows.along(*axes)
    return product.max_pool2d.outputs(
        x, size=size, stride=stride, padding=padding, dilation=dilation
    )[0]


def _average(count_padding: bool) -> Any:
    def average(x: Node, windows: _Windows, *axes: int) -> Node:
        size, stride, padding, _ = windows.along(*axes)
        return product.avg_pool2d(
            x, size=size, stride=stride, padding=padding, count_padding=count_padding
        )

    return average


def _pooled(pool: Any, x: Node, windows: _Windows) -> Expr:
    """Pooling is over two axes: one is a row of two, and three are taken two and then one."""
    rank = len(windows.size)
    if rank == 2:
        return Expr(pool(x, windows, 0, 1))
    batch, channels, *image = x.shape
    if rank == 1:
        y = pool(reshape(x, (batch, channels, 1, *image)), windows, -1, 0)
        return Expr(reshape(y, (batch, channels, y.shape[-1])))
    depth, height, width = image
    plane = pool(reshape(x, (batch, channels * depth, height, width)), windows, 1, 2)
    *_, height, width = plane.shape
    y = pool(reshape(plane, (batch, channels, depth, height * width)), windows, 0, -1)
    return Expr(reshape(y, (batch, channels, y.shape[2], height, width)))


def _averaged(x: Node, windows: _Windows, count_padding: bool) -> Expr:
    if count_padding and any(windows.beyond):
        # What counts is padded first: what lies beyond that never counts.
        x = pad(x, ((0, 0), (0, 0), *windows.padding))
        none = ((0, 0),) * len(windows.padding)
        windows = _Windows(windows.size, windows.stride, windows.dilation, none, windows.beyond)
        count_padding = False
    return _pooled(_average(count_padding), x, windows)


def max_pool1d(
    x: Any,
    size: int,
    stride: int | None = None,
    padding: int | Sequence[int] | str = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Expr:
    """Return the largest element of each window of sequences (N, C, L); see `op.max_pool2d`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[1.0, 5.0, 2.0, 4.0, 3.0]]])
    >>> op.max_pool1d(x, 2).tolist(), op.max_pool1d(x, 2, ceil_mode=True).tolist()
    ([[[5.0, 4.0]]], [[[5.0, 4.0, 3.0]]])
    """
    return _pooled(_max, *_laid("max_pool1d", x, 1, size, stride, padding, dilation, ceil_mode))


def max_pool2d(
    x: Any,
    size: Sizes,
    stride: Sizes | None = None,
    padding: Paddings = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Expr:
    """Return the largest element of each window; padding is never the largest.

    Its element receives the gradient; of equal ones, the first in row-major order. A nan in a
    window is its result.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]]])
    >>> op.max_pool2d(x, 2, stride=1).tolist()
    [[[[5.0, 6.0]]]]
    """
    return _pooled(_max, *_laid("max_pool2d", x, 2, size, stride, padding, dilation, ceil_mode))


def max_pool3d(
    x: Any,
    size: Sizes,
    stride: Sizes | None = None,
    padding: Paddings = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Expr:
    """Return the largest element of each window of volumes (N, C, D, H, W); see `op.max_pool2d`.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.max_pool3d(cd.Tensor((2, 3, 4, 6, 8)), 2).shape
    (2, 3, 2, 3, 4)
    """
    return _pooled(_max, *_laid("max_pool3d", x, 3, size, stride, padding, dilation, ceil_mode))


def avg_pool1d(
    x: Any,
    size: int,
    stride: int | None = None,
    padding: int | Sequence[int] | str = 0,
    count_padding: bool = True,
    ceil_mode: bool = False,
) -> Expr:
    """Return the mean of each window of sequences (N, C, L), as `op.avg_pool2d` has it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> x = cd.tensor([[[1.0, 5.0, 2.0, 4.0, 3.0]]])
    >>> op.avg_pool1d(x, 2).tolist(), op.avg_pool1d(x, 2, ceil_mode=True).tolist()
    ([[[3.0, 3.0]]], [[[3.0, 3.0, 3.0]]])
    """
    laid = _laid("avg_pool1d", x, 1, size, stride, padding, ceil_mode=ceil_mode)
    return _averaged(*laid, bool(count_padding))


def avg_pool2d(
    x: Any,
    size: Sizes,
    stride: Sizes | None = None,
    padding: Paddings = 0,
    count_padding: bool = True,
    ceil_mode: bool = False,
) -> Expr:
    """Return the mean of each window.

    Padding counts as elements of 0, as in PyTorch; with `count_padding=False` the mean is only over
    the elements of the image. Positions beyond the padding in `ceil_mode` never count.

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
    laid = _laid("avg_pool2d", x, 2, size, stride, padding, ceil_mode=ceil_mode)
    return _averaged(*laid, bool(count_padding))


def avg_pool3d(
    x: Any,
    size: Sizes,
    stride: Sizes | None = None,
    padding: Paddings = 0,
    count_padding: bool = True,
    ceil_mode: bool = False,
) -> Expr:
    """Return the mean of each window of volumes (N, C, D, H, W), as `op.avg_pool2d` has it.

    >>> import caldera as cd
    >>> from caldera import op
    >>> op.avg_pool3d(cd.Tensor((2, 3, 4, 6, 8)), 2).shape
    (2, 3, 2, 3, 4)
    """
    laid = _laid("avg_pool3d", x, 3, size, stride, padding, ceil_mode=ceil_mode)
    return _averaged(*laid, bool(count_padding))


def global_average_pool(x: Any) -> Expr:
    """Return the mean of each channel over all its positions: (N, C, H, W) to (N, C).

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
