"""Arguments and calls common to all kernels of Winograd's algorithm.

There are two channels-last images, a row of matrices (one for each point), and scratch memories for
the points of two sets of tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from caldera.kernels.common.geometry import steps
from caldera.kernels.native.codegen import (
    CACHE_LINE,
    I64,
    Emitter,
    Integer,
    NativeCall,
    NativeKernel,
    Number,
    Pointer,
    RegisterValue,
    computed_type,
    itemsize,
)
from caldera.kernels.native.codegen.matrix_multiply import blas
from caldera.kernels.native.convolution.winograd.layout import WinogradTiling
from caldera.kernels.native.convolution.winograd.tiles import (
    Cursor,
    Image,
    Points,
    Tiles,
    image_arguments,
    transform_tiles,
)

WORDS_OF_A_LINE = CACHE_LINE // 8


@dataclass(frozen=True)
class WinogradSizes:
    """Numbers that a kernel for few channels is made for: the channels of both images, whose
    pixels lie side by side, and the distances of both sets of points."""

    channels: tuple[int, int]
    points: tuple[int, int]
    others: tuple[int, int]


def steps_of(layout: WinogradTiling, images: tuple[np.ndarray, np.ndarray]) -> WinogradSizes | None:
    """Return the sizes for a specialised kernel if it pays, else None."""
    channels = images[0].shape[1], images[1].shape[1]
    if not layout.known_channels or tuple(steps(each)[3] for each in images) != channels:
        return None
    return WinogradSizes(channels, (layout.step, layout.inner), (layout.other_step, layout.width))


@dataclass(frozen=True)
class Arguments:
    """The arguments of a kernel, and the phases that operate on them."""

    images: list[Image]
    down: Integer
    across: Integer
    first: Integer
    end: Integer
    block: Integer
    matrices: Points
    points: Points
    others: Points
    borders: Pointer
    border_step: Integer
    taken: Pointer
    """Flags of the scratch memories in use, each on a separate cache line."""
    scratches: Integer
    gemm: Integer
    area: Integer
    """Read, though it is known: LLVM would write loops over points out if it knew it."""
    kept: Integer
    """Number of points of a block that are in memory together."""
    chunks: Integer
    size: int
    lanes: int

    @property
    def k(self) -> Emitter:
        """The emitter."""
        return self.borders.k

    def known(self, numbers: WinogradSizes | None) -> Self:
        """Return the same arguments with sizes as compile-time constants.

        Distances between points then are immediate operands. Registers are too few for these
        distances.
        """
        if numbers is None:
            return self
        pairs = zip(self.images, numbers.channels, strict=True)
        return replace(
            self,
            images=[image.with_channels(count) for image, count in pairs],
            points=self.points.with_steps(*numbers.points),
            others=self.others.with_steps(*numbers.others),
        )

    @property
    def tiles(self) -> Tiles:
        """Numbering of the tiles."""
        return Tiles(self.size, self.down, self.across)

    def with_border(self, number: Number) -> Self:
        """Return the same arguments with separate memory for a pixel outside the image."""
        return replace(self, borders=self.borders.at(self.border_step * number))

    @contextmanager
    def own_scratch(self) -> Iterator[RegisterValue]:
        """Reserve a scratch memory that no other worker uses, and yield its number.

        Consecutive parts use the same memory, if it is free. A single worker runs them if no worker
        is ahead.
        """
        k = self.k
        number = k.variable(k.part * self.scratches // k.parts)

        def is_taken() -> RegisterValue:
            place = self.taken.at(number.value * WORDS_OF_A_LINE)
            return RegisterValue(k, k.ir.atomic_rmw("xchg", place.raw, I64(1), "acquire")).differs(
                0
            )

        with k.while_loop(is_taken):
            number.value = (number.value + 1) % self.scratches
        yield number.value
        place = self.taken.at(number.value * WORDS_OF_A_LINE)
        k.ir.atomic_rmw("xchg", place.raw, I64(0), "release")

    def scratch(self, number: Number) -> tuple[Points, Points]:
        """Return the points of both sets of tiles in one of the scratch memories."""
        passed = self.kept * number
        return self.points.passed(passed), self.others.passed(passed)

    def fetch_ahead(
        self,
        tile: RegisterValue,
        point: RegisterValue,
        to_write: tuple[bool, bool],
        also: Sequence[Pointer] = (),
    ) -> None:
        """Prefetch the pixels of the tiles that follow the block at `tile`.

        If a block is shorter than a row of tiles, the tiles below it are prefetched. `also` are
        further images with the layout of the second one.

        Each point prefetches a share, so that memory transfers overlap with the products. In images
        that are not contiguous, some prefetches are useless.
        """
        first, second = self.images
        # Tiles of the first image reach a row further.
        wanted = [
            (first, first.memory.at(first.row_step), to_write[0]),
            (second, second.memory, to_write[1]),
            *((second, memory, False) for memory in also),
        ]
        k = self.k
        ahead = k.maximum(self.block, self.across)
        for image, memory, writes in wanted:
            pixels = image.channels * (self.size * self.size)
            share = self.block * pixels // self.area
            place = memory.at((tile + ahead) * pixels + point * share)
            with k.loop(0, share, CACHE_LINE // itemsize(place.type)) as index:
                k.prefetch(place.at(index), to_write=writes)

    def transform_tiles(
        self,
        name: str,
        image: Image,
        points: Points,
        cursor: Cursor,
        number: RegisterValue,
        only: int | None = None,
    ) -> None:
        """Transform the next tiles of an image to all points, or to a single row of points."""
        transform_tiles(
            self.k, name, self.tiles, image, points, cursor, number, self.borders, self.lanes, only
        )


def winograd_call(
    kernel: NativeKernel,
    layout: WinogradTiling,
    images: tuple[np.ndarray, np.ndarray],
    memory: list[np.ndarray],
    tiles: tuple[int, int],
    parts: int,
    **parameters: Any,
) -> NativeCall:
    """Call a kernel for some of the tiles; `memory` has the lengths of the layout."""
    matrices, points, others, border = memory
    if layout.in_place:
        others = points
    known = blas()
    down, across = layout.grid
    given = {
        "images": [image_arguments(images[0], *layout.padding), image_arguments(images[1], 0, 0)],
        "down": down,
        "across": across,
        "first": tiles[0],
        "end": tiles[1],
        "block": layout.block,
        "matrices": {"memory": matrices, "step": layout.filter_step, "width": layout.width},
        "points": {"memory": points, "step": layout.step, "width": layout.inner},
        "others": {"memory": others, "step": layout.other_step, "width": layout.width},
        "borders": border,
        "border_step": layout.border,
        "taken": np.zeros(layout.scratches * WORDS_OF_A_LINE, np.int64),
        "scratches": layout.scratches,
        "gemm": 0 if known is None else known.gemm(computed_type(images[0].dtype.name)),
        "area": layout.points,
        "kept": layout.kept,
        "chunks": layout.chunks,
        "size": layout.size,
        "lanes": layout.lanes,
    }
    return kernel.call(given=given, parts=parts, **parameters)
