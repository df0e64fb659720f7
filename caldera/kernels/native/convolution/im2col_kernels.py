"""Kernels of convolutions' gradients as products: they make rows of the matrix, or add them up, and
multiply."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from caldera.kernels.native.codegen import (
    Emitter,
    Integer,
    Pointer,
    RegisterValue,
    copy_elements,
    host_target,
    integers,
    itemsize,
    native_kernel,
    natural_lanes,
)
from caldera.kernels.native.codegen.matrix_multiply import gemm
from caldera.kernels.native.convolution.tiling import between

Im2colSizes = Annotated[
    Any,
    integers(
        "batch height width channels image_step row_step pixel_step target_rows target_columns "
        "results target_step groups stride_rows stride_columns start_row start_column "
        "dilation_rows dilation_columns tap_rows runs run_taps tap_length terms rows blocks pixels "
        "sums splits filters"
    ),
]
"""The convolution and its blocks in numbers and distances. A row of taps is `runs` runs of
`run_taps` taps, whose inputs lie side by side."""


@dataclass(frozen=True)
class _Rows:
    """Makes rows of the matrix from an image, and adds them to it."""

    k: Emitter
    n: Im2colSizes
    image: Pointer
    columns: Pointer

    def place(self, pixel: RegisterValue) -> tuple[RegisterValue, RegisterValue, RegisterValue]:
        """Return image, row and column of an output pixel."""
        n = self.n
        line = pixel // n.target_columns
        return line // n.target_rows, line % n.target_rows, pixel % n.target_columns

    def runs(
        self, first: RegisterValue, count: RegisterValue, group: RegisterValue, *, clears: bool
    ) -> Iterator[tuple[Pointer, Pointer, RegisterValue]]:
        """Loop over the pieces of the matrix that are inside the image, for a `for` statement.

        Yield (column, pixel, length). If it `clears`, pieces of padding become zeros.
        """
        k, n = self.k, self.n
        source = self.image.at(group * n.channels)
        with k.loop(0, count) as index:
            image, row, column = self.place(first + index)
            top = row * n.stride_rows + n.start_row
            left = column * n.stride_columns + n.start_column
            line = self.columns.at(index * n.terms)
            run_length = n.run_taps * n.tap_length
            with k.loop(0, n.tap_rows) as i, k.loop(0, n.runs) as j:
                target = line.at((i * n.runs + j) * run_length)
                y = top + i * n.dilation_rows
                x = left + j * n.dilation_columns
                outside = (y < 0) | (y >= n.height)
                begin = k.select(outside, n.run_taps, between(k, -x, n.run_taps))
                end = k.maximum(between(k, n.width - x, n.run_taps), begin)
                pixel = source.at(image * n.image_step + y * n.row_step)
                pixel = pixel.at((x + begin) * n.pixel_step)
                if clears:
                    self._clear(target, begin * n.tap_length)
                    self._clear(target.at(end * n.tap_length), (n.run_taps - end) * n.tap_length)
                yield target.at(begin * n.tap_length), pixel, (end - begin) * n.tap_length

    def _clear(self, place: Pointer, length: RegisterValue) -> None:
        zero = self.k.constant(0.0, place.type)
        for i, lanes in self.k.vectors(0, length, natural_lanes(place.type), 1):
            place.store(i, self.k.splat(zero, lanes))

    def fill(self, first: RegisterValue, count: RegisterValue, group: RegisterValue) -> None:
        """Make the rows of `count` pixels."""
        lanes = natural_lanes(self.image.type)
        for target, source, length in self.runs(first, count, group, clears=True):
            copy_elements(self.k, target, source, length, lanes)

    def add(self, first: RegisterValue, count: RegisterValue, group: RegisterValue) -> None:
        """Add the rows of `count` pixels to the image."""
        widths, masked = (natural_lanes(self.image.type), 1), host_target().has_masks
        for source, target, length in self.runs(first, count, group, clears=False):
            # The next pixel's row starts inside this one. Data written piece by piece would have to
            # reach the cache before it can be read in a single load.
            for i, some, mask in self.k.masked_vectors(length, widths, masked=masked):
                target.store(i, target.load(i, some, mask) + source.load(i, some, mask), mask)


@native_kernel
def input_gradient(
    k: Emitter,
    image: Pointer,
    filters: Pointer,
    output: Pointer,
    scratch: Pointer,
    address: Integer,
    n: Im2colSizes,
) -> None:
    columns = scratch.at(k.part * n.rows * n.terms)
    own = _Rows(k, n, image, columns)
    with k.loop(*k.part_range(n.batch)) as number:
        pixels = n.height * n.width * n.channels * n.groups
        k.clear_bytes(image.at(number * n.image_step), pixels * itemsize(image.type))
        with k.loop(0, n.blocks) as block, k.loop(0, n.groups) as group:
            inside = block * n.rows
            first = number * n.pixels + inside
            count = k.minimum(n.rows, n.pixels - inside)
            right = filters.at(group * n.results * n.terms)
            goal = output.at(first * n.target_step + group * n.results)
            gemm(
                k,
                address,
                (count, n.terms, n.results),
                (goal, n.target_step),
                (right, n.terms),
                (columns, n.terms),
            )
            own.add(first, count, group)


@native_kernel
def weight_gradient(
    k: Emitter,
    image: Pointer,
    filters: Pointer,
    output: Pointer,
    scratch: Pointer,
    address: Integer,
    n: Im2colSizes,
) -> None:
    columns = scratch.at(k.part * n.rows * n.terms)
    own = _Rows(k, n, image, columns)
    number, split = k.part // n.splits, k.part % n.splits
    top, bottom = n.results * split // n.splits, n.results * (split + 1) // n.splits
    partial = filters.at(number * n.filters)
    begin, end = n.blocks * number // n.sums, n.blocks * (number + 1) // n.sums
    with k.loop(begin, end) as block, k.loop(0, n.groups) as group:
        first = block * n.rows
        count = k.minimum(n.rows, n.pixels - first)
        own.fill(first, count, group)
        given = output.at(first * n.target_step + group * n.results + top)
        sums = partial.at((group * n.results + top) * n.terms)
        one = k.constant(1.0, sums.type)
        gemm(
            k,
            address,
            (bottom - top, n.terms, count),
            (given, n.target_step),
            (columns, n.terms),
            (sums, n.terms),
            ta=True,
            beta=k.select(block.equals(begin), one * 0.0, one),
        )
