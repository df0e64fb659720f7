"""Layers without parameters that rearrange samples: axes, borders, sizes, functions of a user."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from caldera import op
from caldera.base.arguments import require, shown
from caldera.compiler.lazy import Expr
from caldera.nn.basic import FunctionLayer, check_counts, register
from caldera.nn.layer import Layer
from caldera.nn.pooling import checked_axes
from caldera.nn.tracing import context, resumed
from caldera.op.windows import MODES, as_sizes

BORDERS = ("constant", "reflect", "replicate", "circular")


@register
@dataclass(eq=False)
class Identity(Layer):
    """The input, unchanged.

    >>> from caldera import nn
    >>> nn.Identity()([1.0, 2.0]).tolist()
    [1.0, 2.0]
    """

    def forward(self, x: Expr) -> Expr:
        return x


@dataclass(eq=False)
class Lambda(Layer):
    """A function of expressions as a layer. Models with it train and predict, but are not saved.

    A file holds names and no code. The function as `forward` of a class of layers, made known by
    `nn.register`, can be saved.

    >>> from caldera import nn, op
    >>> nn.Lambda(lambda x: op.clip(x, 0.0, 6.0))([-1.0, 9.0]).tolist()
    [0.0, 6.0]
    """

    to_save: ClassVar[str] = (
        "a file holds no code: write the function as forward of a class of layers, decorated with "
        "@nn.register"
    )

    function: Callable[..., Any]

    def __post_init__(self) -> None:
        is_function = callable(self.function) and not isinstance(self.function, Layer | type)
        require(is_function, "Lambda", "a function of expressions", shown(self.function))

    def forward(self, *inputs: Expr) -> Any:
        return self.function(*inputs)


@register
@dataclass(eq=False)
class Permute(Layer):
    """Permute the axes of each sample; axis 1 is the first axis after the batch axis.

    >>> from caldera import nn, op
    >>> nn.Permute((2, 1))(op.input("x", (5, 10, 64))).shape
    (5, 64, 10)
    """

    order: Sequence[int]

    def __post_init__(self) -> None:
        self.order = tuple(self.order)
        wanted = list(range(1, len(self.order) + 1))
        require(sorted(self.order) == wanted, "Permute", f"the axes {wanted} once", self.order)

    def forward(self, x: Expr) -> Expr:
        axes = len(self.order)
        self.require(x.ndim == 1 + axes, f"samples of {axes} axes", f"shape {x.shape}")
        return op.transpose(x, (0, *self.order))


@register
@dataclass(eq=False)
class RepeatVector(Layer):
    """Each sample's vector `count` times, as a sequence: (N, C) to (N, count, C).

    >>> from caldera import nn
    >>> nn.RepeatVector(2)([[1.0, 3.0]]).tolist()
    [[[1.0, 3.0], [1.0, 3.0]]]
    """

    count: int

    def __post_init__(self) -> None:
        check_counts("RepeatVector", count=self.count)

    def forward(self, x: Expr) -> Expr:
        self.require(x.ndim == 2, "vectors (N, C)", f"shape {x.shape}")
        return op.repeat(op.unsqueeze(x, 1), self.count, axis=1)


@register
@dataclass(eq=False)
class TimeDistributed(Layer):
    """A layer applied to every step of sequences (N, T, ...) with the same parameters.

    >>> from caldera import nn, op
    >>> layer = nn.TimeDistributed(nn.Conv2D(8, 3))
    >>> layer(op.input("film", (5, 10, 3, 28, 28))).shape
    (5, 10, 8, 26, 26)
    """

    inner: Layer

    def __post_init__(self) -> None:
        require(isinstance(self.inner, Layer), "TimeDistributed", "a layer", shown(self.inner))

    def forward(self, x: Expr) -> Expr:
        self.require(x.ndim >= 2, "sequences (N, T, ...)", f"shape {x.shape}")
        count, steps, *rest = x.shape
        now = context()
        with resumed(replace(now, first=now.first * steps)):  # random numbers count samples
            y = self.inner(op.reshape(x, (count * steps, *rest)))
        return op.reshape(y, (count, steps, *y.shape[1:]))


class Bordered(Layer):
    """Base of padding and cropping: `widths` for the axes behind the channels (N, C, ...)."""

    widths: Any

    def __post_init__(self) -> None:
        pairs = self.pairs()
        require(
            pairs and all(len(pair) == 2 and all(map(_is_width, pair)) for pair in pairs),
            type(self).__name__,
            "widths= an integer >= 0, or a list with an integer or a pair for each axis",
            shown(self.widths),
        )

    def pairs(self) -> list[tuple[Any, ...]]:
        """Return the widths (before, after) for each axis, or for all axes."""
        rows = self.widths if isinstance(self.widths, Sequence) else [self.widths]
        return [tuple(each) if isinstance(each, Sequence) else (each, each) for each in rows]

    def along(self, x: Expr) -> list[tuple[Any, ...]]:
        """Return the widths (before, after) for each axis of `x` behind the channels."""
        pairs, axes = self.pairs(), x.ndim - 2
        found = pairs if isinstance(self.widths, Sequence) else pairs * axes
        self.require(
            axes >= 1 and len(found) == axes,
            f"(N, C, ...) with {len(pairs)} or more axes behind the channels",
            f"shape {x.shape}",
        )
        return found


def _is_width(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


@register
@dataclass(eq=False)
class Padding(Bordered):
    """Sequences, images or volumes (N, C, ...) with a border of `widths` elements.

    Args:
        widths: A number for both ends of every axis, or a list with a number or a pair (before,
            after) for each axis.
        mode: "constant" (`value`), "reflect" (mirrored at the border), "replicate" (the elements at
            the border) or "circular" (from the opposite end).
        value: Value of a constant border.

    >>> from caldera import nn, op
    >>> nn.Padding(1)(op.input("x", (5, 3, 28, 28))).shape
    (5, 3, 30, 30)
    >>> nn.Padding([(2, 1)], mode="reflect")([[[1.0, 2.0, 3.0]]]).tolist()
    [[[3.0, 2.0, 1.0, 2.0, 3.0, 2.0]]]
    """

    widths: Any
    mode: str = "constant"
    value: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.mode in BORDERS, "Padding", f"mode= one of {', '.join(BORDERS)}", self.mode)

    def forward(self, x: Expr) -> Expr:
        return op.pad(x, [(0, 0), (0, 0), *self.along(x)], self.value, self.mode)


@register
@dataclass(eq=False)
class Cropping(Bordered):
    """Layer that removes `widths` elements at the borders of samples (N, C, ...).

    `widths` is a number for both ends of every axis, or a list with a number or a pair (before,
    after) for each axis.

    >>> from caldera import nn, op
    >>> nn.Cropping([(0, 1), 2])(op.input("x", (5, 3, 28, 28))).shape
    (5, 3, 27, 24)
    """

    widths: Any

    def forward(self, x: Expr) -> Expr:
        pairs = self.along(x)
        kept = [length - sum(pair) for length, pair in zip(x.shape[2:], pairs, strict=True)]
        self.require(min(kept) >= 1, f"samples larger than the widths {pairs}", f"{x.shape}")
        ends = zip(pairs, kept, strict=True)
        return x[(..., *(slice(before, before + size) for (before, _), size in ends))]


@register
@dataclass(eq=False)
class UpSampling(Layer):
    """Sequences, images or volumes made `scale` times as large: a number, or one for each axis.

    `mode` is "nearest" (each element is repeated), "linear" (of images bilinear, of volumes
    trilinear) or, for images, "bicubic", as in `op.interpolate`.

    >>> from caldera import nn, op
    >>> nn.UpSampling(2)([[[1.0, 3.0]]]).tolist()
    [[[1.0, 1.0, 3.0, 3.0]]]
    >>> nn.UpSampling((1, 2, 2), mode="linear")(op.input("x", (5, 3, 8, 14, 14))).shape
    (5, 3, 8, 28, 28)
    """

    axes: ClassVar[tuple[int, ...]] = (1, 2, 3)

    scale: float | Sequence[float] = 2
    mode: str = "nearest"

    def __post_init__(self) -> None:
        modes = ", ".join(MODES)
        require(self.mode in MODES, type(self).__name__, f"mode= one of {modes}", repr(self.mode))

    def forward(self, x: Expr) -> Expr:
        checked_axes(self, x, self.axes)
        return op.interpolate(x, scale=self.scale, mode=self.mode)


@register
@dataclass(eq=False)
class UpSampling2D(UpSampling):
    """`nn.UpSampling` for images (N, C, H, W) only.

    >>> from caldera import nn
    >>> nn.UpSampling2D((1, 2))([[[[1.0, 3.0]]]]).tolist()
    [[[[1.0, 1.0, 3.0, 3.0]]]]
    """

    axes: ClassVar[tuple[int, ...]] = (2,)


@register
@dataclass(eq=False)
class PixelShuffle(FunctionLayer):
    """Channels as neighbours: (N, C factor^2, H, W) to (N, C, H factor, W factor).

    >>> from caldera import nn, op
    >>> nn.PixelShuffle(2)(op.input("x", (5, 12, 7, 7))).shape
    (5, 3, 14, 14)
    """

    factor: int

    function = staticmethod(op.pixel_shuffle)


@register
@dataclass(eq=False)
class PixelUnshuffle(FunctionLayer):
    """Neighbours as channels: the opposite of `nn.PixelShuffle`.

    >>> from caldera import nn, op
    >>> nn.PixelUnshuffle(2)(op.input("x", (5, 3, 14, 14))).shape
    (5, 12, 7, 7)
    """

    factor: int

    function = staticmethod(op.pixel_unshuffle)


@register
@dataclass(eq=False)
class ChannelShuffle(Layer):
    """Channels (axis 1) in another order: the first of each group, then the second, and so on.

    >>> from caldera import nn
    >>> nn.ChannelShuffle(2)([[1.0, 2.0, 3.0, 4.0]]).tolist()
    [[1.0, 3.0, 2.0, 4.0]]
    """

    groups: int

    def __post_init__(self) -> None:
        check_counts("ChannelShuffle", groups=self.groups)

    def forward(self, x: Expr) -> Expr:
        self.require(
            x.ndim >= 2 and not x.shape[1] % self.groups,
            f"(N, C, ...) with channels that {self.groups} groups divide",
            f"shape {x.shape}",
        )
        count, channels, *rest = x.shape
        parts = op.reshape(x, (count, self.groups, channels // self.groups, *rest))
        return op.reshape(op.swapaxes(parts, 1, 2), x.shape)


@register
@dataclass(eq=False)
class Unfold(FunctionLayer):
    """The windows of images as columns: (N, C, H, W) to (N, C h w, windows).

    >>> from caldera import nn, op
    >>> nn.Unfold(3)(op.input("x", (5, 2, 7, 7))).shape
    (5, 18, 25)
    """

    size: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1

    function = staticmethod(op.unfold)


@register
@dataclass(eq=False)
class Fold(Layer):
    """The sum of columns at their windows: (N, C h w, windows) to (N, C, H, W), as in PyTorch.

    It is the transpose of `nn.Unfold` with the same settings: values of overlapping windows add up.

    Args:
        shape: Height and width of the images.
        size: Height and width of the window, or one number for both.
        stride: Distance between windows.
        padding: Width of the border, which is cut off, "same" or "valid".
        dilation: Distance between the elements of a window.

    >>> from caldera import nn
    >>> nn.Fold((1, 3), (1, 2))([[[1.0, 2.0], [10.0, 20.0]]]).tolist()
    [[[[1.0, 12.0, 20.0]]]]
    """

    shape: Sequence[int]
    size: int | Sequence[int]
    stride: int | Sequence[int] = 1
    padding: Any = 0
    dilation: int | Sequence[int] = 1

    def forward(self, x: Expr) -> Expr:
        self.require(x.ndim == 3, "columns (N, C h w, windows)", f"{x.shape}")
        window = math.prod(as_sizes(self.size, 2, "size", self.path))
        height, width = as_sizes(self.shape, 2, "shape", self.path)
        channels = max(1, x.shape[1] // window)
        image = op.zeros((x.shape[0], channels, height, width), dtype=x.dtype)
        columns = op.unfold(image, self.size, self.stride, self.padding, self.dilation)
        self.require(columns.shape == x.shape, f"columns of shape {columns.shape}", f"{x.shape}")
        return op.grad(op.sum(columns * x), image)
