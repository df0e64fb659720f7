"""Images as strips are filled from them, with zeros for what lies outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.kernels.common.geometry import Pair, steps
from caldera.kernels.native.codegen.emitter import Emitter, Number, Pointer, Value
from caldera.kernels.native.codegen.kernel import Integer


@dataclass(frozen=True)
class PaddedImages:
    """The size and steps of images, and where in them the strip of the first output begins."""

    height: Integer
    width: Integer
    image_step: Integer
    row_step: Integer
    pixel_step: Integer
    start_row: Integer
    start_column: Integer

    def pixel(self, images: Pointer, image: Number, row: Value, column: Number) -> Pointer:
        """A pixel, counted from where strips begin."""
        down = (row + self.start_row) * self.row_step
        right = (self.start_column + column) * self.pixel_step
        return images.at(self.image_step * image + down + right)

    def columns(self, k: Emitter, count: Value) -> tuple[Value, Value]:
        """Those columns of a strip that lie inside: the first, and the one behind the last."""
        first = between(k, -self.start_column, count)
        return first, k.maximum(between(k, self.width - self.start_column, count), first)


def padded_images(images: np.ndarray, start: Pair) -> dict[str, int]:
    """Images (N, C, H, W) as a kernel is given them."""
    image_step, _, row_step, pixel_step = steps(images)
    return {
        "height": images.shape[2],
        "width": images.shape[3],
        "image_step": image_step,
        "row_step": row_step,
        "pixel_step": pixel_step,
        "start_row": start[0],
        "start_column": start[1],
    }


def between(k: Emitter, value: Value, most: Number) -> Value:
    """The value, but at least 0 and at most `most`."""
    return k.minimum(k.maximum(value, 0), most)
