"""What all kernels of Winograd's algorithm are given, which is the same, and how they are called.

There are two images, which lie channels last, a row of matrices (one for each point), and scratch
memories for the points of two sets of tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from caldera.kernels.native.codegen.blas import blas
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import Emitter, Number, Value
from caldera.kernels.native.codegen.program import NativeCall, native_call
from caldera.kernels.native.convolution.winograd.layout import Layout
from caldera.kernels.native.convolution.winograd.tiles import (
    IMAGE_SLOTS,
    Image,
    Points,
    Tiles,
    image_arguments,
    spread,
)

(
    _DOWN, _ACROSS, _FIRST, _END, BLOCK, _MATRICES, MATRIX_STEP, _POINTS, _STEP, _INNER, _OTHERS,
    _OTHER_STEP, WIDTH, _BORDER, _BORDER_STEP, GEMM, _AREA, CHUNKS,
) = range(2 * IMAGE_SLOTS, 2 * IMAGE_SLOTS + 18)  # fmt: skip


class Arguments:
    """The arguments of a kernel, and what its phases do with them."""

    def __init__(self, k: Emitter, size: int, kind: str, lanes: int) -> None:
        number = computed_type(kind)
        self.k = k
        self.lanes = lanes
        # Read, though it is known: LLVM would write loops over points out if it knew it.
        self.area = k.integer(_AREA)
        self.images = Image.read(k, 0, number), Image.read(k, IMAGE_SLOTS, number)
        self.tiles = Tiles(size, k.integer(_DOWN), k.integer(_ACROSS))
        self.range = k.integer(_FIRST), k.integer(_END)
        self.matrices = k.pointer(_MATRICES, number)
        self.border = k.pointer(_BORDER, number).at(k.part * k.integer(_BORDER_STEP))

    def scratch(self, number: Number) -> tuple[Points, Points]:
        """The points of both sets of tiles in one of the scratch memories."""
        first, second = (
            Points.read(self.k, slot, self.border.type, self.area * number)
            for slot in (_POINTS, _OTHERS)
        )
        return first, second

    def spread(self, name: str, image: Image, points: Points, numbers: tuple[Value, Value]) -> None:
        """Transform tiles of an image."""
        spread(self.k, name, self.tiles, image, points, numbers, self.border, self.lanes)


def winograd_call(
    build: Callable[..., None],
    layout: Layout,
    images: tuple[np.ndarray, np.ndarray],
    memory: list[np.ndarray],
    tiles: tuple[int, int],
    parts: int,
    **parameters: Any,
) -> NativeCall:
    """Call what `build` builds for some of the tiles; `memory` has the lengths the layout says."""
    kind = images[0].dtype.name
    matrices, points, others, border = memory
    known = blas()
    return native_call(
        compiled(build, size=layout.size, kind=kind, lanes=layout.lanes, **parameters),
        *image_arguments(images[0], *layout.padding), *image_arguments(images[1], 0, 0),
        *layout.grid, *tiles, layout.block, matrices, layout.filter_step, points, layout.step,
        layout.inner, others, layout.other_step, layout.width, border, layout.border,
        0 if known is None else known.gemm(computed_type(kind)), layout.points, layout.chunks,
        parts=parts,
    )  # fmt: skip
