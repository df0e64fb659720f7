"""Pooling: summing up the neighbourhoods of sequences (N, C, L), images (N, C, H, W) and volumes
(N, C, D, H, W); and the other way, making images larger.

`size` and `stride` are a number or one for each axis; without a stride the windows lie side by
side. `padding` is written as for `nn.Conv2D`. Windows that stick out at the end of an axis are left
out, unless `partial_windows` says that they count with what they cover (PyTorch's ceil mode).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from caldera import op
from caldera.base.arguments import require
from caldera.compiler.lazy import Expr
from caldera.nn.basic import FunctionLayer, check_counts, register
from caldera.nn.layer import Layer
from caldera.op.windows import MODES


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
class UpSampling2D(Layer):
    """Images made `scale` times as large: a number, or one for each axis.

    `mode` is "nearest" (each pixel is repeated), "bilinear" or "bicubic", as in `op.interpolate`.

    >>> from caldera import nn
    >>> nn.UpSampling2D((1, 2))([[[[1.0, 3.0]]]]).tolist()
    [[[[1.0, 1.0, 3.0, 3.0]]]]
    """

    scale: float | Sequence[float] = 2
    mode: str = "nearest"

    def __post_init__(self) -> None:
        require(
            self.mode in MODES, "UpSampling2D", f"mode= one of {', '.join(MODES)}", repr(self.mode)
        )

    def forward(self, x: Expr) -> Expr:
        return op.interpolate(x, scale=self.scale, mode=self.mode)


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
class MeanPooling(Layer):
    """The mean over the steps of sequences: (N, T, C) to (N, C), of those that a mask (N, T) has.

    `nn.Embedding(mask_zero=True)` and `nn.Input((None, ...))` give such masks.

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


@register
@dataclass(eq=False)
class AdaptiveAveragePool2D(Layer):
    """Means of windows that are laid out so that the result has `size` rows and columns.

    Window i of s along an axis of n covers floor(i n / s) up to ceil((i + 1) n / s), as in PyTorch:
    windows may overlap, and images smaller than `size` are repeated.

    >>> from caldera import nn, op
    >>> nn.AdaptiveAveragePool2D(6)(op.input("x", (5, 3, 13, 13))).shape
    (5, 3, 6, 6)
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        pair = tuple(self.size) if isinstance(self.size, Sequence) else (self.size, self.size)
        check_counts("AdaptiveAveragePool2D", **{f"size {i}": each for i, each in enumerate(pair)})
        require(len(pair) == 2, "AdaptiveAveragePool2D", "size= one or two sizes", repr(self.size))
        self._size = pair

    def forward(self, x: Expr) -> Expr:
        self.require(x.ndim == 4, "images (N, C, H, W)", f"shape {x.shape}")
        lengths = x.shape[2:]
        if all(length % size == 0 for length, size in zip(lengths, self._size, strict=True)):
            windows = [length // size for length, size in zip(lengths, self._size, strict=True)]
            return x if windows == [1, 1] else op.avg_pool2d(x, windows)
        # The mean over a rectangle is a mean over rows of means over columns.
        rows, columns = (
            _means(length, size, x.dtype) for length, size in zip(lengths, self._size, strict=True)
        )
        return op.matmul(op.matmul(rows, x), columns, transpose_b=True)


def _means(length: int, size: int, dtype: Any) -> np.ndarray:
    """The matrix whose row i takes the mean over window i."""
    weights = np.zeros((size, length))
    for i in range(size):
        begin, end = i * length // size, -(-(i + 1) * length // size)
        weights[i, begin:end] = 1 / (end - begin)
    return weights.astype(dtype)
