"""Images read at places between their elements: grids, regions, deformed kernels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from caldera import op
from caldera.compiler.lazy import Expr
from caldera.core.tensor.dtype import is_float
from caldera.onnx.operators.pooling import filtered, lay_windows, positions
from caldera.onnx.operators.registry import Value, check_size, integers, known, operator

_CUBIC = -0.75
Fetch = Callable[[Sequence[Expr]], Expr]


def _fetch(x: Value, padding: str, is_aligned: bool) -> Fetch:
    """Reads x (N, C, ...) at whole places, each (N, P), as (N, C, P)."""
    sizes = x.shape[2:]
    flat = op.reshape(x, (*x.shape[:2], math.prod(sizes)))

    def read(whole: Sequence[Expr]) -> Expr:
        index: Any = np.int64(0)
        for place, n in zip(whole, sizes, strict=True):
            if padding == "reflection":
                place = op.round(_reflected(place, n, is_aligned))
            index = op.add(index * n, op.cast(op.clip(place, 0, n - 1), "int64"))
        found = op.take_along_axis(flat, op.unsqueeze(index, 1), 2)
        if padding == "zeros":
            found = op.where(op.unsqueeze(_inside(whole, sizes, 0), 1), found, 0)
        return found

    return read


def _inside(places: Sequence[Expr], sizes: Sequence[int], beyond: int) -> Expr:
    """Return True for positions in an image, or up to `beyond` elements outside."""
    limits = [(-beyond, n - 1 + beyond) for n in sizes]
    fits = [
        op.logical_and(op.greater_equal(place, low), op.less_equal(place, high))
        for place, (low, high) in zip(places, limits, strict=True)
    ]
    return reduce(op.logical_and, fits)


def _reflected(place: Expr, n: int, is_aligned: bool) -> Expr:
    """A place turned back at the borders: the middles of the outer elements, or their edges."""
    low, high = (0.0, n - 1.0) if is_aligned else (-0.5, n - 0.5)
    span = high - low
    if span == 0:
        return op.mul(place, 0.0)
    turned = op.mod(op.sub(place, low), 2 * span)
    return op.add(op.minimum(turned, op.sub(2 * span, turned)), low)


def _cubic_weights(fraction: Expr) -> list[Expr]:
    """Return the weights of the four elements around a position."""
    a = _CUBIC

    def near(t: Expr) -> Expr:
        return op.add(op.mul(op.sub(op.mul(t, a + 2), a + 3), op.square(t)), 1.0)

    def far(t: Expr) -> Expr:
        return op.sub(op.mul(op.add(op.mul(op.sub(op.mul(t, a), 5 * a), t), 8 * a), t), 4 * a)

    return [
        far(op.add(fraction, 1.0)),
        near(fraction),
        near(op.sub(1.0, fraction)),
        far(op.sub(2.0, fraction)),
    ]


def sampled(x: Value, places: Sequence[Expr], mode: str, padding: str, is_aligned: bool) -> Expr:
    """x (N, C, ...) at places (each (N, P), one an axis), as (N, C, P)."""
    read = _fetch(x, padding, is_aligned)
    if mode == "nearest":
        return read([op.round(place) for place in places])
    (bases, weights), first = _linear(places), 0
    if mode == "cubic":
        weights, first = [_cubic_weights(fraction) for _, fraction in weights], -1
    return reduce(op.add, _corners(read, bases, weights, first))


def _corners(
    read: Fetch, bases: Sequence[Expr], weights: Sequence[Sequence[Expr]], first: int
) -> Iterator[Expr]:
    """Yield the weighted elements around a position, starting at offset `first` from its base."""
    for corner in itertools.product(range(len(weights[0])), repeat=len(bases)):
        found = read([op.add(base, step + first) for base, step in zip(bases, corner, strict=True)])
        for axis, step in enumerate(corner):
            found = op.mul(found, op.unsqueeze(weights[axis][step], 1))
        yield found


def _linear(places: Sequence[Expr]) -> tuple[list[Expr], list[list[Expr]]]:
    """Return the elements before places, and the weights of these and of those behind, by axis."""
    bases = [op.floor(place) for place in places]
    fractions = [op.sub(place, base) for place, base in zip(places, bases, strict=True)]
    return bases, [[op.sub(1.0, fraction), fraction] for fraction in fractions]


@operator("GridSample")
def grid_sample(
    x: Value,
    grid: Value,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Expr:
    """x at the places of a grid, which counts each axis from -1 to 1, the last axis first."""
    names = {"linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}
    sizes = x.shape[2:]
    flat = op.reshape(grid, (grid.shape[0], -1, grid.shape[-1]))
    places = []
    for axis, n in enumerate(sizes):
        part = op.squeeze(flat[:, :, len(sizes) - 1 - axis : len(sizes) - axis], 2)
        grown = op.add(part, 1.0)
        place = op.mul(grown, (n - 1) / 2) if align_corners else op.sub(op.mul(grown, n / 2), 0.5)
        if padding_mode == "border":
            place = op.clip(place, 0.0, n - 1.0)
        elif padding_mode == "reflection":
            place = op.clip(_reflected(place, n, bool(align_corners)), 0.0, n - 1.0)
        places.append(op.cast(place, x.dtype) if is_float(x.dtype) else place)
    y = sampled(x, places, names.get(mode, "nearest"), padding_mode, bool(align_corners))
    return op.cast(op.reshape(y, (*x.shape[:2], *grid.shape[1:-1])), x.dtype)


@operator("AffineGrid")
def affine_grid(theta: Value, size: Value, *, align_corners: int = 0) -> Expr:
    """Return the positions to which an affine map takes the elements of an image."""
    count, _, *sizes = integers(size, "a shape")
    rank = len(sizes)
    check_size((*sizes, rank + 1))
    lines = []
    for n in sizes:
        steps = 2 * np.arange(n, dtype=np.float64)
        lines.append(steps / max(n - 1, 1) - 1 if align_corners else (steps + 1) / n - 1)
    # The last axis of the image is the first coordinate.
    grids = np.meshgrid(*lines, indexing="ij")[::-1]
    points = np.stack([*grids, np.ones(sizes)], axis=-1).reshape(-1, rank + 1)
    moved = op.matmul(points.astype(theta.dtype), theta, transpose_b=True)
    return op.reshape(moved, (count, *sizes, rank))


@operator("DeformConv")
def deform_conv(
    x: Value,
    w: Value,
    offset: Value,
    bias: Value = None,
    mask: Value = None,
    *,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Expr:
    """Convolve with a kernel that reads at positions with individual offsets."""
    count, channels, *sizes = x.shape
    kernel = kernel_shape or w.shape[2:]
    windows = lay_windows(sizes, kernel, strides=strides, dilations=dilations, pads=pads)
    rank, elements = len(sizes), math.prod(kernel)
    spots = math.prod(windows.outputs)
    moves = op.reshape(offset, (count, offset_group, elements, rank, spots))
    grids = [grid.reshape(-1) for grid in np.indices(windows.outputs)]
    if mask is not None:
        mask = op.reshape(mask, (count, offset_group, elements, spots))
    columns = []
    own = channels // offset_group
    images = op.reshape(x, (count, offset_group, own, *sizes))
    for g in range(offset_group):
        image = images[:, g]
        parts = []
        for e, position in enumerate(positions(tuple(kernel))):
            places = []
            for axis in range(rank):
                start = position[axis] * windows.dilations[axis] - windows.before[axis]
                regular = (grids[axis] * windows.strides[axis] + start).astype(x.dtype)
                places.append(op.add(moves[:, g, e, axis], regular))
            part = sampled(image, places, "linear", "zeros", True)
            if mask is not None:
                part = op.mul(part, op.unsqueeze(mask[:, g, e], 1))
            parts.append(part)
        columns.append(op.stack(parts, axis=2))
    y = filtered(op.concat(columns, axis=1), w, group, windows)
    return y if bias is None else op.bias_add(y, bias, axis=1)


@dataclass(frozen=True)
class _Regions:
    """Pooling of regions: rows and columns of parts, and the sampling points in each part."""

    rows: int
    columns: int
    down: int
    across: int
    mode: str
    keeps_small: bool

    def pooled(self, images: Value, boxes: Value) -> Expr:
        """Return an image and a box a region, as (regions, C, rows, columns)."""
        left, top, right, bottom = (op.cast(boxes, images.dtype)[:, i : i + 1] for i in range(4))
        y = self._line(top, bottom, self.rows * self.down)
        x = self._line(left, right, self.columns * self.across)
        count = images.shape[0]
        grid = (count, y.shape[1], x.shape[1])
        places = [
            op.reshape(op.broadcast(op.unsqueeze(y, 2), grid), (count, -1)),
            op.reshape(op.broadcast(op.unsqueeze(x, 1), grid), (count, -1)),
        ]
        parts = op.reshape(
            self._values(images, places),
            (count, images.shape[1], self.rows, self.down, self.columns, self.across),
        )
        return op.mean(parts, (3, 5)) if self.mode == "avg" else op.max(parts, (3, 5))

    def _line(self, start: Expr, end: Expr, number: int) -> Expr:
        """Return `number` positions at the centres of equal parts."""
        length = op.sub(end, start)
        if not self.keeps_small:
            length = op.maximum(length, 1.0)
        middles = ((np.arange(number) + 0.5) / number).astype(start.dtype)
        return op.add(start, op.mul(length, middles))

    def _values(self, images: Value, places: list[Expr]) -> Expr:
        """Places up to one element outside count as the border; beyond that there is 0."""
        sizes = images.shape[2:]
        kept = [op.clip(place, 0.0, n - 1.0) for place, n in zip(places, sizes, strict=True)]
        # ONNX's "max" is the largest weighted one of the four elements around a place.
        combine = op.add if self.mode == "avg" else op.maximum
        found = reduce(combine, _corners(_fetch(images, "border", True), *_linear(kept), 0))
        return op.where(op.unsqueeze(_inside(places, sizes, 1), 1), found, 0.0)


@operator("RoiAlign")
def roi_align(
    x: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
    opset: int,
) -> Expr:
    """For each region, the mean or the largest of the places sampled in each of its parts.

    Without a sampling ratio the number of places follows from the region, which must be known.
    """
    is_half = coordinate_transformation_mode == "half_pixel" and opset >= 16
    boxes = op.sub(op.mul(rois, spatial_scale), 0.5 if is_half else 0.0)
    images = op.gather(x, batch_indices)
    if sampling_ratio > 0:
        each = sampling_ratio
        regions = _Regions(output_height, output_width, each, each, mode, is_half)
        return regions.pooled(images, boxes)
    results = []
    for i, (left, top, right, bottom) in enumerate(known(boxes, "regions").tolist()):
        down = max(math.ceil((bottom - top) / output_height), 1)
        across = max(math.ceil((right - left) / output_width), 1)
        regions = _Regions(output_height, output_width, down, across, mode, is_half)
        results.append(regions.pooled(images[i : i + 1], boxes[i : i + 1]))
    return op.concat(results)
