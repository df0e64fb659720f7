"""Convolutions of few channels, and their gradients, as work on images: persistent_images.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.cuda.persistent.followers import Producer, Reduction
from caldera.kernels.cuda.persistent.images import Finish, each_pixel, shared_by_all
from caldera.kernels.cuda.persistent.parts import ROOM_FLOATS, THREADS, WARPS, units_of
from caldera.kernels.cuda.persistent.products import apart
from caldera.kernels.cuda.persistent.writer import Places
from caldera.kernels.recipe import Recipe
from caldera.kernels.table import Call
from caldera.kernels.whole import Fresh
from caldera.tensor.shape import size

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Windows:
    """Windows over an image that lies in shared memory with a border, and how they are multiplied.

    `rows` x `columns` x `inner` is the product: of places by results over taps, or of taps by
    results over places.
    """

    image: Array
    border: tuple[int, int]
    taps: tuple[int, int]
    places: tuple[int, int]
    results: int
    over_places: bool
    exact: bool

    @property
    def channels(self) -> int:
        """Of the image."""
        return int(self.image.shape[1])

    @property
    def apart(self) -> int:
        """How far apart pixels lie: warps that read some channels of eight find all banks."""
        few = self.channels < 8
        return self.channels if few else 8 * units_of(self.channels - 4, 8) + 4

    @property
    def padded(self) -> tuple[int, int]:
        """The pixels with the border, as far as windows reach."""
        down, across = (n + k - 1 for n, k in zip(self.places, self.taps, strict=True))
        return down, across

    @property
    def length(self) -> int:
        """Taps of a window, in all channels."""
        return self.channels * size(self.taps)

    @property
    def rows(self) -> int:
        """Of the product."""
        return self.length if self.over_places else size(self.places)

    @property
    def inner(self) -> int:
        """The length of its sums."""
        return size(self.places) if self.over_places else self.length

    @property
    def line(self) -> int:
        """How far apart lines of the right operand and of the sums lie."""
        return apart(8 * units_of(self.results, 8))

    @property
    def splits(self) -> int:
        """Warps that share a tile."""
        tiles = units_of(self.rows, 16) * units_of(self.results, 8)
        wanted = min(WARPS // min(tiles, WARPS), units_of(self.inner, 8))
        return 1 << (wanted.bit_length() - 1)

    def _sizes(self) -> dict[str, int]:
        down, across = self.padded
        return {
            "seen": down * across * self.apart,
            "right": self.inner * self.line,
            "places": 16 * units_of(size(self.places), 16),
            "taps": 16 * units_of(self.length, 16),
            "sums": self.splits * 16 * units_of(self.rows, 16) * self.line,
        }

    @property
    def room(self) -> int:
        """Floats of shared memory."""
        return sum(4 * units_of(each, 4) for each in self._sizes().values())

    @property
    def multiplications(self) -> int:
        """For an image."""
        return self.rows * self.inner * self.results

    @property
    def shape_text(self) -> str:
        """The first arguments of templates on the product."""
        return f"{self.rows}, {self.results}, {self.inner}, {self.line}, {self.splits}"

    def sum_text(self, row: str, result: str) -> str:
        """An element of the product."""
        return f"window_sum<{self.rows}, {self.line}, {self.splits}>(sums, {row}, {result})"

    def product(self, places: Places, bring_right: str) -> list[str]:
        """Statements that leave the product in `sums`; `bring_right` begins to bring `right`."""
        lines, at = [], 0
        for name, floats in self._sizes().items():
            kind = "i32" if name in ("places", "taps") else "float"
            lines.append(f"{kind}* {name} = ({kind}*)room + {at};")
            at += 4 * units_of(floats, 4)
        left, right = ("taps", "places") if self.over_places else ("places", "taps")
        windows = ", ".join(
            map(str, (self.channels, self.apart, self.padded[1], *self.taps, *self.places))
        )
        return [
            *lines,
            bring_image("seen", places, self.image, self.apart, self.border, self.padded),
            bring_right,
            "copies_begun();",
            f"block_list_windows<Windows<{windows}>, {THREADS}>(places, taps);",
            "copies_done<0>();",
            "__syncthreads();",
            f"block_windows<{self.shape_text}, {WARPS}, {str(self.exact).lower()}>(seen, {left}, "
            f"{right}, right, sums);",
            "__syncthreads();",
        ]


def bring_image(
    to: str, places: Places, image: Array, apart: int, border: Sequence[int], padded: Sequence[int]
) -> str:
    """The statement that begins to bring an image with its border."""
    _, channels, down, across = image.shape
    strides = [stride // image.itemsize for stride in image.strides[1:]]
    numbers = (channels, apart, down, across, *border, *padded, *strides, THREADS)
    start = places.element(image, ["image", "0", "0", "0"])
    return f"block_bring_image<{', '.join(map(str, numbers))}>({to}, &{start});"


@dataclass(eq=False)
class Correlation(Producer):
    """Windows times filters: a convolution, or (`turned`) the gradient of what it was given."""

    windows: Windows
    filters: Array
    turned: bool

    @property
    def images(self) -> int:
        """How many there are."""
        return int(self.result.shape[0])

    @property
    def common(self) -> Sequence[Array]:
        """What is the same for all images."""
        more = [array for loop in self.followers for array in loop.inputs]
        return [self.filters, *shared_by_all(more, self.images)]

    @property
    def room(self) -> int:
        """Floats of shared memory."""
        return self.windows.room

    @property
    def load(self) -> int:
        """Multiplications for an image."""
        return self.windows.multiplications

    def code(self, places: Places, finish: Finish) -> list[str]:
        """Statements for an image."""
        strides = [stride // 4 for stride in self.filters.strides]
        turned = str(self.turned).lower()
        numbers = (*self.filters.shape, *strides, self.windows.line, turned, THREADS)
        bring = (
            f"block_bring_taps<{', '.join(map(str, numbers))}>(right, {places.name(self.filters)});"
        )
        across = self.windows.places[1]

        def element(held: Places, here: list[str]) -> list[str]:
            _, channel, y, x = here
            value = self.windows.sum_text(f"{y} * {across} + {x}", channel)
            return [f"float value = {value};", *finish(self, held, "value", here)]

        return [*self.windows.product(places, bring), *each_pixel(places, self.result, element)]


@dataclass(eq=False)
class FilterSlopes:
    """The gradient of filters by one image: windows times gradients of results, over all places."""

    windows: Windows
    slopes: Array
    partial: Array

    @property
    def reads(self) -> Sequence[Array]:
        """What is read."""
        return [self.windows.image, self.slopes]

    @property
    def writes(self) -> Sequence[Array]:
        """What is written."""
        return [self.partial]

    @property
    def images(self) -> int:
        """How many there are."""
        return int(self.partial.shape[0])

    @property
    def common(self) -> Sequence[Array]:
        """Nothing."""
        return []

    @property
    def room(self) -> int:
        """Floats of shared memory."""
        return self.windows.room

    @property
    def load(self) -> int:
        """Multiplications for an image."""
        return self.windows.multiplications

    def code(self, places: Places, finish: Finish) -> list[str]:
        """Statements for an image."""
        windows = self.windows
        bring = bring_image("right", places, self.slopes, windows.line, (0, 0), windows.places)
        columns, channels = windows.taps[1], windows.channels

        def element(held: Places, here: list[str]) -> list[str]:
            _, result, channel, y, x = here
            row = f"({y} * {columns} + {x}) * {channels} + {channel}"
            return [held.store(self.partial, here, windows.sum_text(row, result))]

        return [*windows.product(places, bring), *each_pixel(places, self.partial, element)]


def correlation(call: Call, fresh: Fresh) -> list[Any] | None:
    """A convolution or a gradient of one as pieces; None for what is none, or cannot be done."""
    name, attrs = call.node.op.name, call.node.attrs
    if name not in ("conv2d", "conv2d_input", "conv2d_weight"):
        return None
    plain = attrs["stride"] == attrs["dilation"] == (1, 1) and attrs["groups"] == 1
    if not plain or any(array.dtype != np.float32 for array in (*call.inputs, *call.outputs)):
        return None
    first, second = call.inputs
    (result,) = call.outputs
    filters = result if name == "conv2d_weight" else second
    taps = filters.shape[2:]
    border = tuple(each[0] for each in attrs["padding"])
    seen = first
    if name == "conv2d_input":
        border = tuple(n - 1 - before for n, before in zip(taps, border, strict=True))
        if min(border) < 0:
            return None
    places = second.shape[2:] if name == "conv2d_weight" else result.shape[2:]
    results = second.shape[1] if name == "conv2d_weight" else result.shape[1]
    windows = Windows(
        seen, border, taps, places, results, name == "conv2d_weight",
        attrs.get("compute") != "tf32",
    )  # fmt: skip
    if windows.room > ROOM_FLOATS:
        return None
    if name != "conv2d_weight":
        return [Correlation(call.inputs, result, windows, filters, name == "conv2d_input")]
    partial = fresh((first.shape[0], *result.shape), "float32")
    total = Recipe(("float32",), (), (), (("sum", "float32", ("in", 0)),))
    return [
        FilterSlopes(windows, second, partial),
        Reduction((partial,), result, total, partial.shape, (0,)),
    ]
