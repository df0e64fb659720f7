"""Averages over windows that tile the image.

No table is needed: every pixel is read or written once, and the loop over the window is unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    RegisterValue,
    native_kernel,
    vector,
)
from caldera.kernels.table import Call

LARGEST = 16
"""Maximum number of pixels of a window that is unrolled."""


@dataclass(frozen=True)
class ImageMemory:
    """An array (N, C, H, W) anywhere in memory, inside a kernel."""

    memory: ElementPointer
    of_image: Integer
    of_channel: Integer
    of_row: Integer
    of_column: Integer

    def line(self, image: RegisterValue, row: RegisterValue) -> RegisterValue:
        """Return the offset of a row."""
        return image * self.of_image + row * self.of_row

    def at(
        self, line: RegisterValue, column: RegisterValue, channel: RegisterValue
    ) -> RegisterValue:
        """Return the offset of a channel of a pixel in a row."""
        return line + column * self.of_column + channel * self.of_channel


def image_memory(array: np.ndarray) -> dict[str, np.ndarray | int]:
    """Return the kernel argument for an array of images."""
    of_image, of_channel, of_row, of_column = (step // array.itemsize for step in array.strides)
    return {
        "memory": array,
        "of_image": of_image,
        "of_channel": of_channel,
        "of_row": of_row,
        "of_column": of_column,
    }


def tiles_image(call: Call) -> bool:
    """Return True if the windows are small and cover each pixel once.

    The node is an average or its gradient.
    """
    attrs = call.node.attrs
    windows, pixels = sorted((call.inputs[0].shape[2:], call.outputs[0].shape[2:]))
    covered = tuple(n * size for n, size in zip(windows, attrs["size"], strict=True))
    plain = attrs["stride"] == attrs["size"] and not np.any(attrs["padding"])
    return plain and covered == tuple(pixels) and int(np.prod(attrs["size"])) <= LARGEST


@native_kernel
def average_windows(
    k: Emitter,
    windows: ImageMemory,
    pixels: ImageMemory,
    images: Integer,
    channels: Integer,
    rows: Integer,
    columns: Integer,
    size: tuple[int, int],
    spreads: bool,
    lanes: tuple[int, ...],
    is_masked: bool,
) -> None:
    """Compute the mean of each window or, if it `spreads`, each pixel's share of its window."""
    places = list(product(range(size[0]), range(size[1])))
    with k.loop(*k.part_range(images * rows)) as number:
        image, row = number // rows, number % rows
        given = windows.line(image, row)
        lines = [pixels.line(image, row * size[0] + i) for i in range(size[0])]
        with k.loop(0, columns) as column:
            for channel, count, mask in k.masked_vectors(channels, lanes, masked=is_masked):
                here = windows.at(given, column, channel)
                there = [pixels.at(lines[i], column * size[1] + j, channel) for i, j in places]
                if spreads:
                    share = windows.memory.load(here, count, mask) * (1.0 / len(places))
                    for place in there:
                        pixels.memory.store(place, share, mask)
                    continue
                total = k.constant(0.0, vector(pixels.memory.computed, count))
                for place in there:
                    total = total + pixels.memory.load(place, count, mask)
                windows.memory.store(here, total / float(len(places)), mask)
