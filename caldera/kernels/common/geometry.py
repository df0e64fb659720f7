"""The numbers that describe a convolution, for it and both of its gradients alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor import DType, Shape, size
from caldera.kernels.common.binding import compute_dtype

Pair = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """Shapes of the image (N, C, H, W), the filters (K, C / groups, R, S) and the output, and how
    they meet: output pixel p sees image pixels p * stride + tap * dilation - padding."""

    image: Shape
    filters: Shape
    output: Shape
    stride: Pair
    origin: Pair
    """Padding above and to the left; the padding below and to the right follows from the shapes."""
    dilation: Pair
    groups: int
    dtype: DType
    """Dtype of the computation."""

    @classmethod
    def of(cls, node: Node) -> Geometry:
        """Return the geometry of conv2d, conv2d_input or conv2d_weight."""
        first, second = (given.shape for given in node.inputs)
        shapes = {
            "conv2d": (first, second, node.shape),
            "conv2d_input": (node.shape, second, first),
            "conv2d_weight": (first, node.shape, second),
        }[node.op.name]
        attrs = node.attrs
        origin = (attrs["padding"][0][0], attrs["padding"][1][0])
        return cls(
            *shapes,
            attrs["stride"],
            origin,
            attrs["dilation"],
            attrs["groups"],
            compute_dtype(node.dtype),
        )

    @property
    def batch(self) -> int:
        """Number of images."""
        return self.image[0]

    @property
    def channels(self) -> int:
        """Input channels of a group."""
        return self.filters[1]

    @property
    def results(self) -> int:
        """Output channels of a group."""
        return self.filters[0] // self.groups

    @property
    def taps(self) -> Pair:
        """Rows and columns of a filter."""
        return self.filters[2], self.filters[3]

    @property
    def source(self) -> Pair:
        """Height and width of the image."""
        return self.image[2], self.image[3]

    @property
    def target(self) -> Pair:
        """Height and width of the output."""
        return self.output[2], self.output[3]

    @property
    def terms(self) -> int:
        """Products that each output element is the sum of."""
        return size(self.filters[1:])

    @property
    def pixels(self) -> int:
        """Output pixels of the whole batch."""
        return self.output[0] * self.output[2] * self.output[3]

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * size(self.output) * self.terms

    @property
    def is_pointwise(self) -> bool:
        """True if every output pixel depends only on the image pixel at the same position."""
        same_size = self.image[2:] == self.output[2:]
        return same_size and self.taps == self.stride == (1, 1) and self.origin == (0, 0)

    @property
    def unstrided(self) -> Geometry:
        """The same convolution on only the pixels that single-tap filters read (`seen_pixels`).

        These pixels are adjacent. It is this geometry itself if there are more taps, padding or no
        stride.
        """
        seen = tuple(
            -(-length // step) for length, step in zip(self.source, self.stride, strict=True)
        )
        fits = all(own <= there for own, there in zip(self.target, seen, strict=True))
        if self.stride == (1, 1) or self.taps != (1, 1) or self.origin != (0, 0) or not fits:
            return self
        return replace(self, image=(*self.image[:2], *self.target), stride=(1, 1))

    @property
    def is_depthwise(self) -> bool:
        """True if each channel is convolved separately, with one filter."""
        return self.channels == 1 and self.results == 1 and self.groups > 1

    @property
    def is_usual(self) -> bool:
        """True if there are channels (there may be no images)."""
        return self.filters[0] > 0 and self.filters[1] > 0


def seen_pixels(geometry: Geometry, image: np.ndarray) -> np.ndarray:
    """Return the image of `geometry.unstrided` as a view."""
    if geometry.unstrided is geometry:
        return image
    (down, right), (rows, columns) = geometry.stride, geometry.target
    return image[:, :, ::down, ::right][:, :, :rows, :columns]


@dataclass(frozen=True)
class Correlation:
    """Correlation, which computes a convolution and the parts of its input gradient.

    out[n, y, x] = sum of in[n, y * stride + r * dilation + start, ...] * filters[r, s]
    """

    batch: int
    source: Pair
    """Height and width of the input."""
    target: Pair
    """Height and width of the output."""
    taps: Pair
    stride: Pair
    dilation: Pair
    start: Pair
    """Position in the input of the first tap of the first output; may be outside."""
    groups: int
    channels: int
    """Input channels of a group."""
    results: int
    """Output channels of a group."""

    @property
    def reach(self) -> Pair:
        """Rows and columns of the input that one output pixel sees."""
        return _reach(self.taps[0], self.dilation[0]), _reach(self.taps[1], self.dilation[1])

    @property
    def needs_no_padding(self) -> bool:
        """True if all elements that are read are inside the input."""
        return all(
            start >= 0 and start + (outputs - 1) * stride + reach <= length
            for start, outputs, stride, reach, length in zip(
                self.start, self.target, self.stride, self.reach, self.source, strict=True
            )
        )


def _reach(taps: int, dilation: int) -> int:
    return (taps - 1) * dilation + 1 if taps else 0


def forward(geometry: Geometry) -> Correlation:
    """Return the convolution itself."""
    return Correlation(
        geometry.batch,
        geometry.source,
        geometry.target,
        geometry.taps,
        geometry.stride,
        geometry.dilation,
        (-geometry.origin[0], -geometry.origin[1]),
        geometry.groups,
        geometry.channels,
        geometry.results,
    )


@dataclass(frozen=True)
class Phase:
    """Pixels of an image at one position of the stride's grid, along one axis.

    Their gradient is a correlation of stride 1 with some of the taps, in reverse order.
    """

    first: int
    """Index of the first pixel."""
    count: int
    step: int
    """Distance between neighbouring pixels: the stride."""
    taps: int
    last_tap: int
    """The tap that the correlation begins with."""
    tap_step: int
    dilation: int
    start: int


def _phases(image: int, taps: int, stride: int, dilation: int, origin: int) -> Iterator[Phase]:
    shared = gcd(stride, dilation)
    for first in range(min(stride, image)):
        count = (image - 1 - first) // stride + 1
        # The pixel's place in the padded image is output * stride + tap * dilation.
        place = first + origin
        own = [tap for tap in range(taps) if (place - tap * dilation) % stride == 0]
        last = own[-1] if own else 0
        start = (place - last * dilation) // stride
        yield Phase(
            first, count, stride, len(own), last, stride // shared, dilation // shared, start
        )


def input_phases(geometry: Geometry) -> Iterator[tuple[Phase, Phase, Correlation]]:
    """The correlations that the input gradient consists of: every image pixel is in just one."""
    rows, columns = (
        list(
            _phases(
                geometry.image[2 + axis],
                geometry.taps[axis],
                geometry.stride[axis],
                geometry.dilation[axis],
                geometry.origin[axis],
            )
        )
        for axis in (0, 1)
    )
    for row, column in product(rows, columns):
        taps = (row.taps, column.taps) if row.taps and column.taps else (0, 0)
        yield (
            row,
            column,
            Correlation(
                geometry.batch,
                geometry.target,
                (row.count, column.count),
                taps,
                (1, 1),
                (row.dilation, column.dilation),
                (row.start, column.start),
                geometry.groups,
                geometry.results,
                geometry.channels,
            ),
        )


def steps(array: np.ndarray) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)
