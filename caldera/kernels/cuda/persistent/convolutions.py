"""Convolutions of few channels and their gradients: see persistent_convolution.cuh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.common.product import Epilogue as EpilogueCode
from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.fusion import Reduction
from caldera.kernels.cuda.persistent.images import ImageTask, PixelProducer, each_pixel
from caldera.kernels.cuda.persistent.products import apart
from caldera.kernels.cuda.persistent.program import (
    SharedAccess,
    SharedFilters,
    SharedImage,
    SharedTile,
)
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    WARPS,
    TileAccess,
    dynamic_floats,
    units_of,
)
from caldera.kernels.cuda.product.problem import activation_lines
from caldera.kernels.table import Call, Fresh

CONVOLUTIONS = ("conv2d", "conv2d_epilogue", "conv2d_input", "conv2d_weight")


@dataclass(frozen=True)
class ImageWindows:
    """Windows over an image of some channels, and how they are multiplied.

    `rows` x `results` x `inner` is the product: of places by results over taps, or of taps by
    results over places.
    """

    channels: int
    taps: tuple[int, int]
    places: tuple[int, int]
    results: int
    over_places: bool
    exact: bool

    @property
    def apart(self) -> int:
        """Stride between pixels: warps that read some channels of eight use all banks."""
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
        """Number of rows of the product."""
        return self.length if self.over_places else size(self.places)

    @property
    def inner(self) -> int:
        """The length of its sums."""
        return size(self.places) if self.over_places else self.length

    @property
    def line(self) -> int:
        """Stride between lines of the right operand and of the sums."""
        return apart(8 * units_of(self.results, 8))

    @property
    def splits(self) -> int:
        """Warps that share a tile."""
        tiles = units_of(self.rows, 16) * units_of(self.results, 8)
        wanted = min(WARPS // min(tiles, WARPS), units_of(self.inner, 8))
        return 1 << (wanted.bit_length() - 1)

    @property
    def multiplications(self) -> int:
        """Number of multiplications for an image."""
        return self.rows * self.inner * self.results

    def _sizes(self) -> dict[str, int]:
        return {
            "places": 16 * units_of(size(self.places), 16),
            "taps": 16 * units_of(self.length, 16),
            "sums": self.splits * 16 * units_of(self.rows, 16) * self.line,
        }

    @property
    def scratch(self) -> int:
        """Floats of shared memory in addition to the operands."""
        return sum(self._sizes().values())

    def sum_text(self, row: str, result: str) -> str:
        """Return an element of the product."""
        return f"window_sum<{self.rows}, {self.line}, {self.splits}>(sums, {row}, {result})"

    def product(self, image: str, right: str) -> list[str]:
        """Return statements that leave the product of operands in shared memory in `sums`."""
        lines, at, sizes = [], 0, self._sizes()
        for name, floats in sizes.items():
            kind = "float" if name == "sums" else "i32"
            lines.append(f"{kind}* {name} = ({kind}*)spare + {at};")
            at += floats
        rows, inner = ("taps", "places") if self.over_places else ("places", "taps")
        windows = (self.channels, self.apart, self.padded[1], *self.taps, *self.places)
        shape = (self.rows, self.results, self.inner, self.line, self.splits, WARPS)
        kind = f"Windows<{', '.join(map(str, windows))}>"
        return [
            *lines,
            f'static_assert({kind}::PLACES_ROOM <= {sizes["places"]}, "places");',
            f'static_assert({kind}::TAPS_ROOM <= {sizes["taps"]}, "taps");',
            f"block_list_windows<{kind}, {THREADS}>(places, taps);",
            "__syncthreads();",
            f"block_windows<{', '.join(map(str, shape))}, {str(self.exact).lower()}>({image}, "
            f"{rows}, {inner}, {right}, sums);",
            "__syncthreads();",
        ]


def _epilogue(call: Call, places: TileAccess, channel: str) -> tuple[list[str], str]:
    """Return statements for the op's epilogue of `x`, and the name of their result."""
    if call.node.op.name != "conv2d_epilogue":
        return [], "x"
    ending = EpilogueCode.of(call.node)
    lines = []
    if ending.bias:
        lines.append(f"x = x + {places.load(call.inputs[2], [channel, '0', '0'])};")
    if ending.activation is None:
        return lines, "x"
    more, value = activation_lines(ending.activation, ending.attributes, "float")
    return [*lines, *more], value


def _tiled_correlation(
    call: Call, windows: ImageWindows, image: SharedTile, filters: SharedTile
) -> PixelProducer:
    """Return windows times filters: a convolution with its epilogue, or an input gradient."""
    across = windows.places[1]

    def element(held: TileAccess, here: Sequence[str]) -> list[str]:
        _, channel, y, x = here
        sum_text = windows.sum_text(f"{y} * {across} + {x}", channel)
        return [f"float x = {sum_text};", *_epilogue(call, held, channel)[0]]

    return PixelProducer(
        call.inputs,
        call.outputs[0],
        element,
        call.inputs[1:],
        value=_epilogue(call, TileAccess(), "0")[1],
        begin=lambda places: windows.product(places.place(image), places.place(filters)),
        near=[image, filters],
        scratch=windows.scratch,
        load=windows.multiplications,
    )


def _tiled_filter_gradient(
    windows: ImageWindows, image: SharedTile, gradients: SharedTile, partial: Array
) -> ImageTask:
    """Return the gradient of filters by one image: windows times gradients of results."""
    columns, channels = windows.taps[1], windows.channels

    def element(held: SharedAccess, here: list[str]) -> list[str]:
        _, result, channel, y, x = here
        row = f"({y} * {columns} + {x}) * {channels} + {channel}"
        return [held.store(partial, here, windows.sum_text(row, result))]

    def write(places: SharedAccess) -> list[str]:
        product = windows.product(places.place(image), places.place(gradients))
        return [*product, *each_pixel(places, partial, element)]

    return ImageTask(
        "filter gradient",
        [image.array, gradients.array],
        [partial],
        int(partial.shape[0]),
        [],
        write,
        [image, gradients],
        windows.scratch,
        windows.multiplications,
    )


def correlation(call: Call, fresh: Fresh) -> list[Any] | None:
    """Return a convolution or its gradient as pieces; None if it is not supported."""
    name, attrs = call.node.op.name, call.node.attrs
    plain = attrs["stride"] == attrs["dilation"] == (1, 1) and attrs["groups"] == 1
    if not plain or any(array.dtype != np.float32 for array in (*call.inputs, *call.outputs)):
        return None
    first, second, *_ = call.inputs
    (result,) = call.outputs
    of_filters, turned = name == "conv2d_weight", name == "conv2d_input"
    filters, outcome = (result, second) if of_filters else (second, result)
    down, across = filters.shape[2:]
    top, left = (each[0] for each in attrs["padding"])
    border = (down - 1 - top, across - 1 - left) if turned else (top, left)
    windows = ImageWindows(
        first.shape[1],
        (down, across),
        outcome.shape[2:],
        outcome.shape[1],
        of_filters,
        attrs.get("compute") != "tf32",
    )
    image = SharedImage(first, border, windows.padded, windows.apart)
    right: SharedTile = SharedFilters(filters, windows.line, turned)
    if of_filters:
        right = SharedImage(second, (0, 0), windows.places, windows.line)
    floats = windows.scratch + image.padded_floats + right.padded_floats
    if min(border) < 0 or floats > dynamic_floats():
        return None
    if not of_filters:
        return [_tiled_correlation(call, windows, image, right)]
    partial = fresh((first.shape[0], *result.shape), "float32")
    total = LoopBody(("float32",), (), (), (("sum", "float32", ("in", 0)),))
    return [
        _tiled_filter_gradient(windows, image, right, partial),
        Reduction((partial,), result, total, partial.shape, (0,)),
    ]
