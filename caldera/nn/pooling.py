"""Pooling: reduction of neighbourhoods in sequences, images and volumes.

Inputs are sequences (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W). `size` and `stride`
are a number or one for each axis; without a stride the windows are adjacent. `padding` is written
as for `nn.Conv2D`. Windows that extend past the end of an axis are left out; with `partial_windows`
they count with the elements they cover (PyTorch's ceil mode).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.core.tensor import as_list
from caldera.nn.basic import FunctionLayer, check_counts, register
from caldera.nn.convolution import INPUTS
from caldera.nn.layer import Layer

AVERAGE_POOLS: Mapping[int, Callable[..., Expr]] = {
    1: op.avg_pool1d,
    2: op.avg_pool2d,
    3: op.avg_pool3d,
}
MAX_POOLS = {1: op.max_pool1d, 2: op.max_pool2d, 3: op.max_pool3d}
"""Pooling ops by their number of spatial axes."""


def checked_axes(layer: Layer, x: Expr, axes: Sequence[int] = (1, 2, 3)) -> int:
    """Return the number of axes of an input (N, C, ...) behind the channels, one of `axes`."""
    layer.require(
        x.ndim - 2 in axes, " or ".join(INPUTS[each] for each in axes), f"shape {x.shape}"
    )
    return x.ndim - 2


@register
@dataclass(eq=False)
class Pooling2D(Layer):
    """The largest element ("max") or the mean ("average") of each window.

    >>> from caldera import nn, op
    >>> nn.Pooling2D("average", 2)(op.input("x", (5, 3, 28, 28))).shape
    (5, 3, 14, 14)
    """

    kind: str = "max"
    size: int | Sequence[int] = 2
    stride: int | Sequence[int] | None = None
    padding: Any = 0

    def __post_init__(self) -> None:
        require(self.kind in ("max", "average"), "Pooling2D", "'max' or 'average'", repr(self.kind))

    def forward(self, x: Expr) -> Expr:
        pool = op.max_pool2d if self.kind == "max" else op.avg_pool2d
        return pool(x, self.size, self.stride, self.padding)


@register
@dataclass(eq=False)
class MaxPool2D(Layer):
    """The largest element of each window; padding never is.

    Args:
        size: Height and width of the window, or one number for both.
        stride: Distance between windows; by default `size`.
        padding: Width of the border, "same" or "valid".
        partial_windows: True for windows that reach over the end, as PyTorch's `ceil_mode`.

    >>> from caldera import nn, op
    >>> nn.MaxPool2D(2)([[[[1.0, 5.0], [2.0, 3.0]]]]).tolist()
    [[[[5.0]]]]
    >>> nn.MaxPool2D(2, partial_windows=True)(op.input("x", (5, 3, 7, 7))).shape
    (5, 3, 4, 4)
    """

    size: int | Sequence[int] = 2
    stride: int | Sequence[int] | None = None
    padding: Any = 0
    partial_windows: bool = False

    pool: ClassVar[Callable[..., Expr]] = staticmethod(op.max_pool2d)

    def forward(self, x: Expr) -> Expr:
        return self.pool(x, self.size, self.stride, self.padding, ceil_mode=self.partial_windows)


@register
@dataclass(eq=False)
class MaxPool1D(MaxPool2D):
    """The largest element of each window of sequences (N, C, L).

    >>> from caldera import nn
    >>> nn.MaxPool1D(2)([[[1.0, 5.0, 2.0, 4.0]]]).tolist()
    [[[5.0, 4.0]]]
    """

    pool = staticmethod(op.max_pool1d)


@register
@dataclass(eq=False)
class MaxPool3D(MaxPool2D):
    """The largest element of each window of volumes (N, C, D, H, W).

    >>> from caldera import nn, op
    >>> nn.MaxPool3D(2)(op.input("x", (5, 3, 8, 28, 28))).shape
    (5, 3, 4, 14, 14)
    """

    pool = staticmethod(op.max_pool3d)


@register
@dataclass(eq=False)
class AveragePool2D(FunctionLayer):
    """The mean of each window; padding counts as zeros unless `count_padding` is False.

    >>> from caldera import nn
    >>> nn.AveragePool2D(2)([[[[1.0, 5.0], [2.0, 4.0]]]]).tolist()
    [[[[3.0]]]]
    """

    size: int | Sequence[int] = 2
    stride: int | Sequence[int] | None = None
    padding: Any = 0
    count_padding: bool = True

    function: ClassVar[Callable[..., Expr]] = staticmethod(op.avg_pool2d)


@register
@dataclass(eq=False)
class AveragePool1D(AveragePool2D):
    """The mean of each window of sequences (N, C, L).

    >>> from caldera import nn
    >>> nn.AveragePool1D(2)([[[1.0, 5.0, 2.0, 4.0]]]).tolist()
    [[[3.0, 3.0]]]
    """

    function = staticmethod(op.avg_pool1d)


@register
@dataclass(eq=False)
class AveragePool3D(AveragePool2D):
    """The mean of each window of volumes (N, C, D, H, W).

    >>> from caldera import nn, op
    >>> nn.AveragePool3D(2)(op.input("x", (5, 3, 8, 28, 28))).shape
    (5, 3, 4, 14, 14)
    """

    function = staticmethod(op.avg_pool3d)


@register
@dataclass(eq=False)
class LPPool(Layer):
    """The norm of each window, (sum |x|^norm)^(1/norm), of sequences, images and volumes.

    As in PyTorch where x is positive or `norm` is even; for an odd norm PyTorch sums signed powers.

    Args:
        norm: Power >= 1; 1 is the sum, and a large one approaches the largest element.
        size: Size of the window along each axis, or one number for all.
        stride: Distance between windows; by default `size`.

    >>> from caldera import nn
    >>> nn.LPPool(2, (1, 2))([[[[3.0, -4.0], [0.0, 0.0]]]]).tolist()
    [[[[5.0], [0.0]]]]
    """

    norm: float = 2.0
    size: int | Sequence[int] = 2
    stride: int | Sequence[int] | None = None

    def __post_init__(self) -> None:
        require(1 <= self.norm < math.inf, "LPPool", "norm >= 1", self.norm)

    def forward(self, x: Expr) -> Expr:
        rank, sizes = checked_axes(self, x), as_list(self.size)
        count = math.prod(sizes * rank if isinstance(self.size, int) else sizes)
        powers = op.pow(op.abs(x), self.norm)
        total = AVERAGE_POOLS[rank](powers, self.size, self.stride) * float(count)
        # A window of zeros has no finite derivative.
        root = op.pow(op.where(total > 0, total, 1.0), 1 / self.norm)
        return op.where(total > 0, root, 0.0)


@register
@dataclass(eq=False)
class GlobalAveragePool(FunctionLayer):
    """The mean of each channel over all its positions: (N, C, ...) to (N, C).

    >>> from caldera import nn
    >>> nn.GlobalAveragePool()([[[[1.0, 5.0], [2.0, 4.0]]]]).tolist()
    [[3.0]]
    """

    function = staticmethod(op.global_average_pool)


@register
@dataclass(eq=False)
class GlobalMaxPool(Layer):
    """The largest element of each channel over all its positions: (N, C, ...) to (N, C).

    >>> from caldera import nn
    >>> nn.GlobalMaxPool()([[[[1.0, 5.0], [2.0, 4.0]]]]).tolist()
    [[5.0]]
    """

    def forward(self, x: Expr) -> Expr:
        self.require(x.ndim >= 3, "(N, C, ...) with at least one axis behind", f"shape {x.shape}")
        return op.max(x, axis=tuple(range(2, x.ndim)))


@register
@dataclass(eq=False)
class MeanPooling(Layer):
    """Mean over the steps of sequences, (N, T, C) to (N, C); a mask (N, T) selects the steps.

    `nn.Embedding(mask_zero=True)` and `nn.Input((None, ...))` return such masks.

    >>> from caldera import nn
    >>> nn.MeanPooling()([[[1.0], [5.0], [9.0]]], [[True, True, False]]).tolist()
    [[3.0]]
    """

    def forward(self, x: Expr, mask: Expr | None = None) -> Expr:
        self.require(x.ndim == 3, "sequences (N, T, C)", f"shape {x.shape}")
        if mask is None:
            return op.mean(x, axis=1)
        self.require(mask.shape == x.shape[:2], f"a mask of shape {x.shape[:2]}", f"{mask.shape}")
        real = op.unsqueeze(op.cast(mask, x.dtype), 2)
        # A text without words has a mean of 0.
        kept = op.where(op.unsqueeze(mask, 2), x, 0.0)
        return op.sum(kept, axis=1) / op.maximum(op.sum(real, axis=1), 1.0)


class AdaptivePool(Layer):
    """Base of pools that divide an input of any size into `size` windows along each axis.

    Window i of n along an axis of length L begins at i L / n, rounded down, and ends at
    (i + 1) L / n, rounded up, as in PyTorch.
    """

    axes: ClassVar[tuple[int, ...]] = (1, 2, 3)
    pools: ClassVar[Mapping[int, Callable[..., Expr]]]

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        where, sizes = type(self).__name__, as_list(self.size)
        check_counts(where, **{f"size {i}": each for i, each in enumerate(sizes)})
        most = max(self.axes)
        require(len(sizes) in (1, *self.axes), where, f"size= one to {most} sizes", self.size)

    def forward(self, x: Expr) -> Expr:
        rank, sizes = checked_axes(self, x, self.axes), as_list(self.size)
        sizes = sizes * rank if isinstance(self.size, int) else sizes
        self.require(len(sizes) == rank, f"{len(sizes)} axes behind the channels", f"{x.shape}")
        lengths = x.shape[2:]
        if all(length % size == 0 for length, size in zip(lengths, sizes, strict=True)):
            windows = [length // size for length, size in zip(lengths, sizes, strict=True)]
            if set(windows) == {1}:
                return x
            return self.pools[rank](x, windows if rank > 1 else windows[0])
        for axis, size in enumerate(sizes, start=2):
            if x.shape[axis] != size:
                x = self.windows(x, axis, size)
        return x

    @abstractmethod
    def windows(self, x: Expr, axis: int, size: int) -> Expr:
        """Return the input with windows along `axis` reduced."""


@register
@dataclass(eq=False)
class AdaptiveAveragePool(AdaptivePool):
    """Means of `size` windows along each axis of (N, C, ...), for any input size.

    Windows may overlap as in PyTorch, and elements are repeated where `size` is larger.

    >>> from caldera import nn, op
    >>> nn.AdaptiveAveragePool(6)(op.input("x", (5, 3, 13, 13))).shape
    (5, 3, 6, 6)
    >>> nn.AdaptiveAveragePool(2)([[[1.0, 2.0, 3.0]]]).tolist()
    [[[1.5, 2.5]]]
    """

    pools = AVERAGE_POOLS

    size: int | Sequence[int]

    def windows(self, x: Expr, axis: int, size: int) -> Expr:
        means = _means(x.shape[axis], size, x.dtype)
        if axis == x.ndim - 1:
            return op.matmul(x, means, transpose_b=True)
        rows = op.reshape(x, (*x.shape[: axis + 1], math.prod(x.shape[axis + 1 :])))
        return op.reshape(op.matmul(means, rows), (*x.shape[:axis], size, *x.shape[axis + 1 :]))


@register
@dataclass(eq=False)
class AdaptiveAveragePool2D(AdaptiveAveragePool):
    """`nn.AdaptiveAveragePool` for images (N, C, H, W) only.

    >>> from caldera import nn, op
    >>> nn.AdaptiveAveragePool2D(6)(op.input("x", (5, 3, 13, 13))).shape
    (5, 3, 6, 6)
    """

    axes: ClassVar[tuple[int, ...]] = (2,)


@register
@dataclass(eq=False)
class AdaptiveMaxPool(AdaptivePool):
    """The largest elements of `size` windows along each axis of (N, C, ...), of any sizes.

    >>> from caldera import nn, op
    >>> nn.AdaptiveMaxPool((6, 3))(op.input("x", (5, 3, 13, 13))).shape
    (5, 3, 6, 3)
    >>> nn.AdaptiveMaxPool(2)([[[1.0, 2.0, 3.0]]]).tolist()
    [[[2.0, 3.0]]]
    """

    pools = MAX_POOLS

    size: int | Sequence[int]

    def windows(self, x: Expr, axis: int, size: int) -> Expr:
        bounds = _windows(x.shape[axis], size)
        longest = max(end - begin for begin, end in bounds)
        # Shorter windows have their last element several times.
        places = [min(begin + i, end - 1) for begin, end in bounds for i in range(longest)]
        taken = op.gather(x, np.array(places), axis=axis)
        return op.max(
            op.reshape(taken, (*x.shape[:axis], size, longest, *x.shape[axis + 1 :])), axis + 1
        )


def _windows(length: int, size: int) -> list[tuple[int, int]]:
    """Return the first and last but one element of each adaptive window."""
    return [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]


def _means(length: int, size: int, dtype: Any) -> np.ndarray:
    """Return the matrix whose row i takes the mean over window i."""
    weights = np.zeros((size, length))
    for i, (begin, end) in enumerate(_windows(length, size)):
        weights[i, begin:end] = 1 / (end - begin)
    return weights.astype(dtype)
