"""Stages that move or hide parts of images: crop, mirror, cut out. All keep the dtype."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.data.random_draws import Draw, LazyDraw
from caldera.data.sources.base import Array
from caldera.data.transforms.image_axes import Size, along_axis, arange, image_size, pair
from caldera.data.transforms.stage import Transform
from caldera.errors import ConfigError, ShapeError


@dataclass(frozen=True)
class Crop(Transform):
    """A window of `size` (height and width) at a random place, of images framed in zeros.

    `padding` is the width of the frame on every side.

    >>> import numpy as np
    >>> from caldera import data
    >>> images = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)
    >>> data.Crop(2)(images, data.Draw(seed=1))[0, 0].tolist()
    [[4, 5], [8, 9]]
    """

    is_random = True

    size: Size
    padding: int = 0

    def __post_init__(self) -> None:
        if min(pair("data.Crop", self.size)) < 1 or self.padding < 0:
            raise ConfigError.build(
                "data.Crop",
                expected="a size of at least 1 and a padding of at least 0",
                got=f"{self.size} and {self.padding}",
            )

    def _places(self, size: tuple[int, int]) -> tuple[int, int]:
        """How many places there are for the window, in height and width."""
        wanted = pair("data.Crop", self.size)
        height, width = (
            have + 2 * self.padding - want + 1 for have, want in zip(size, wanted, strict=True)
        )
        if min(height, width) < 1:
            raise ShapeError.build(
                "data.Crop",
                expected=f"images of at least {wanted[0]}x{wanted[1]} with the padding",
                got=f"{size[0]}x{size[1]} and padding {self.padding}",
            )
        return height, width

    def __call__(self, x: Array, draw: Draw) -> Array:
        height, width = image_size("data.Crop", x)
        places = self._places((height, width))
        wanted = pair("data.Crop", self.size)
        padded = x
        if self.padding:
            frame = 2 * self.padding
            padded = np.zeros((*x.shape[:-2], height + frame, width + frame), x.dtype)
            inside = slice(self.padding, -self.padding)
            padded[..., inside, inside] = x
        windows = sliding_window_view(padded, wanted, axis=(-2, -1))
        top, left = draw.whole(len(x), places).T
        between = (slice(None),) * (x.ndim - 3)
        return windows[(np.arange(len(x)), *between, top, left)]

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        corners = draw.whole(len(x), self._places(image_size("data.Crop", x)))
        if self.padding:
            x = op.pad(x, [(0, 0)] * (x.ndim - 2) + [(self.padding, self.padding)] * 2)
        for number, length in enumerate(pair("data.Crop", self.size)):
            axis = x.ndim - 2 + number
            inside = corners[:, number : number + 1] + arange(length)
            x = op.take_along_axis(x, along_axis(inside, x.ndim, axis), axis)
        return x


@dataclass(frozen=True)
class Mirror(Transform):
    """Each image is mirrored left to right with this probability.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Mirror(1.0)(np.array([[[[1, 2, 3]]]]), data.Draw()).tolist()
    [[[[3, 2, 1]]]]
    """

    is_random = True

    probability: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ConfigError.build(
                "data.Mirror", expected="a probability from 0 to 1", got=str(self.probability)
            )

    def __call__(self, x: Array, draw: Draw) -> Array:
        image_size("data.Mirror", x)
        chosen = draw.uniform(len(x))[:, 0] < self.probability
        mirrored = x.copy()
        mirrored[chosen] = x[chosen][..., ::-1]
        return mirrored

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        image_size("data.Mirror", x)
        chosen = draw.uniform(len(x)) < self.probability
        return op.where(along_axis(chosen, x.ndim, x.ndim - 1), op.flip(x, x.ndim - 1), x)


@dataclass(frozen=True)
class Cutout(Transform):
    """A square of zeros in each image, its centre anywhere, so that it may stand out over the edge.

    After `Normalise`, zero is the mean.

    >>> import numpy as np
    >>> from caldera import data
    >>> data.Cutout(2)(np.ones((1, 1, 3, 3), int), data.Draw(seed=3))[0, 0].tolist()
    [[1, 0, 0], [1, 0, 0], [1, 1, 1]]
    """

    is_random = True

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError.build("data.Cutout", expected="a size above 0", got=str(self.size))

    def __call__(self, x: Array, draw: Draw) -> Array:
        size = image_size("data.Cutout", x)
        first = draw.whole(len(x), size) - self.size // 2
        rows, columns = (
            (np.arange(length) >= start[:, None]) & (np.arange(length) < start[:, None] + self.size)
            for length, start in zip(size, first.T, strict=True)
        )
        hidden = rows[:, :, None] & columns[:, None, :]
        between = (1,) * (x.ndim - 3)
        cut = x.copy()
        np.copyto(cut, 0, where=hidden.reshape(len(x), *between, *size))
        return cut

    def lazily(self, x: Expr, draw: LazyDraw) -> Expr:
        size = image_size("data.Cutout", x)
        first = draw.whole(len(x), size) - self.size // 2
        hidden = None
        for number, length in enumerate(size):
            start = first[:, number : number + 1]
            inside = (arange(length) >= start) & (arange(length) < start + self.size)
            band = along_axis(inside, x.ndim, x.ndim - 2 + number)
            hidden = band if hidden is None else hidden & band
        return op.where(hidden, 0, x)
