"""Memory layout of the operands of normalisation, outside of kernels and inside."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.core.tensor.shape import size
from caldera.kernels.native.codegen import (
    ElementPointer,
    Integer,
    RegisterValue,
    Strides,
    collapse_axes,
    stride_of,
)
from caldera.kernels.table import Array

# --- inside of kernels


@dataclass(frozen=True)
class Vector:
    """Vector with one number per channel, at any stride."""

    base: ElementPointer
    stride: Integer

    def load(self, channel: RegisterValue) -> RegisterValue:
        """Return the number of a channel."""
        return self.base.load(channel * self.stride)


@dataclass(frozen=True)
class ChannelRows:
    """Rows of channels that lie side by side."""

    base: ElementPointer
    stride: Integer

    def load(self, row: RegisterValue, channel: RegisterValue, count: int) -> RegisterValue:
        """Load `count` channels of a row."""
        return self.base.load(row * self.stride + channel, count)

    def store(self, row: RegisterValue, channel: RegisterValue, value: RegisterValue) -> None:
        """Write some channels of a row."""
        self.base.store(row * self.stride + channel, value)


@dataclass(frozen=True)
class Images:
    """Images of rows (channels last), or of planes (channels first), at a fixed distance."""

    base: ElementPointer
    image: Integer
    inner: Integer

    def rows(self, image: RegisterValue) -> ChannelRows:
        """Return the rows of an image."""
        return ChannelRows(self.base.at(image * self.image), self.inner)

    def plane(self, image: RegisterValue, channel: RegisterValue) -> ElementPointer:
        """Return a plane of an image."""
        return self.base.at(image * self.image + channel * self.inner)


# --- outside


def vector(array: Array) -> dict[str, Array | int]:
    """Return the kernel argument for a `Vector`."""
    return {"base": array, "stride": stride_of(array)}


@dataclass(frozen=True)
class RowLayout:
    """Layout with channels last (a row per pixel) or first (a plane per channel of an image).

    Each array has a distance between images, and a distance between rows or planes. If the rows of
    all images are contiguous, they are treated as a single image.
    """

    last: bool
    images: int
    channels: int
    pixels: int
    strides: list[Strides]

    @property
    def size(self) -> int:
        """Elements in all."""
        return self.images * self.channels * self.pixels

    def rows(self, index: int, array: Array) -> dict[str, Array | int]:
        """Return the array of this index as `ChannelRows`."""
        return {"base": array, "stride": self.strides[index][1]}

    def images_of(self, index: int, array: Array) -> dict[str, Array | int]:
        """Return the array of this index as `Images`."""
        image, inner = self.strides[index]
        return {"base": array, "image": image, "inner": inner}


def batch_layout(arrays: list[Array], axis: int) -> RowLayout | None:
    """Return the layout that all of these arrays share; None if it is not one of the two."""
    shape, strides = arrays[0].shape, arrays[0].strides
    others = tuple(a for a in range(len(shape)) if a != axis)
    rows = collapse_axes(arrays, [others, (axis,)])
    if rows is not None and all(channel == 1 or shape[axis] == 1 for _, channel in rows):
        count = size(tuple(shape[a] for a in others))
        return RowLayout(True, 1, shape[axis], count, [(0, row) for row, _ in rows])
    outer = tuple(a for a in others if abs(strides[a]) > abs(strides[axis]))
    inner = tuple(a for a in others if a not in outer)
    planes = collapse_axes(arrays, [outer, (axis,), inner])
    pixels = size(tuple(shape[a] for a in inner))
    if planes is None or any(pixel != 1 and pixels > 1 for _, _, pixel in planes):
        return None
    images = size(tuple(shape[a] for a in outer))
    return RowLayout(False, images, shape[axis], pixels, [each[:2] for each in planes])


def image_layout(arrays: list[Array]) -> RowLayout | None:
    """Return the layout for normalisation of each image separately."""
    images, channels, *rest = arrays[0].shape
    found = collapse_axes(arrays, [(0,), (1,), tuple(range(2, 2 + len(rest)))])
    if found is None:
        return None
    pixels = size(tuple(rest))
    if pixels > 1 and all(pixel == 1 for _, _, pixel in found):
        return RowLayout(False, images, channels, pixels, [each[:2] for each in found])
    if all(channel == 1 or channels == 1 for _, channel, _ in found):
        return RowLayout(True, images, channels, pixels, [(image, row) for image, _, row in found])
    return None
