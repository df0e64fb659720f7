"""Implicit-GEMM convolution: forward, gradients, split-K and kernel parameters.

Every output pixel is the sum over the pixels and channels of its window. With a stride, the input
gradient is one correlation of stride 1 for each position of the stride's grid. The gradient of the
filters is a product of gradients and images over all pixels. If a group has only few channels,
every element is computed by separate threads. Split-K splits the sums into parts, which a second
launch adds up. The parameters are the structures of implicit_gemm.cuh.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from caldera.core.graph.node import Spec
from caldera.core.memory.software import address_of
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.geometry import Correlation, Geometry, forward, input_phases, steps
from caldera.kernels.cuda.codegen import KernelLaunch, blocks_for, divisor
from caldera.kernels.cuda.convolution.source import (
    CORRELATE,
    EACH,
    EACH_WEIGHT,
    SPLIT_K_REDUCE,
    WEIGHT,
    text,
    tiles_text,
)
from caldera.kernels.cuda.movement import copy_calls
from caldera.kernels.cuda.product.problem import SPLITS, ProductTiling, ThreadTile, tiling
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import Array, Call


class Divider(ctypes.Structure):
    """`Divider` of tiled_product.cuh."""

    _fields_ = [(name, ctypes.c_uint) for name in ("divisor", "magic", "shift")]

    @classmethod
    def by(cls, number: int) -> Divider:
        """Return the divider for numbers below 2^31."""
        return cls(*divisor(number))


class WindowParameters(ctypes.Structure):
    """`Window` of implicit_gemm.cuh."""

    _fields_ = [
        *[(name, Divider) for name in ("area", "width", "channels", "taps")],
        *[
            (name, ctypes.c_int)
            for name in (
                "pixels",
                "terms",
                "source_height",
                "source_width",
                "stride_y",
                "stride_x",
                "dilation_y",
                "dilation_x",
                "start_y",
                "start_x",
            )
        ],
    ]


class ImageStrides(ctypes.Structure):
    """`Images` and `Filters` of implicit_gemm.cuh: the strides of images and of filters."""

    _fields_ = [
        (name, ctypes.c_longlong) for name in ("first", "channel", "row", "column", "group")
    ]


def window_of(work: Correlation) -> WindowParameters:
    """Return the parameters that map output pixels of a correlation to pixels of the image."""
    height, width = work.target
    return WindowParameters(
        area=Divider.by(max(1, height * width)),
        width=Divider.by(max(1, width)),
        channels=Divider.by(max(1, work.channels)),
        taps=Divider.by(max(1, work.taps[1])),
        pixels=work.batch * height * width,
        terms=work.channels * work.taps[0] * work.taps[1],
        **by_axis("source_", work.source, ("height", "width")),
        **by_axis("stride_", work.stride),
        **by_axis("dilation_", work.dilation),
        **by_axis("start_", work.start),
    )


def by_axis(
    prefix: str, pair: tuple[int, int], names: tuple[str, str] = ("y", "x")
) -> dict[str, int]:
    """Return a number along rows and one along columns, by their names.

    >>> by_axis("stride_", (2, 3))
    {'stride_y': 2, 'stride_x': 3}
    """
    return {f"{prefix}{name}": each for name, each in zip(names, pair, strict=True)}


def image_steps(array: Array, channels: int) -> ImageStrides:
    """Return the strides of images (N, C, H, W) with `channels` channels per group."""
    image, channel, row, column = steps(array)
    return ImageStrides(
        first=image, channel=channel, row=row, column=column, group=channels * channel
    )


def filter_steps(array: Array, each: int, *, turned: bool) -> ImageStrides:
    """Return the strides of filters (K, C / groups, R, S), `each` filters per group.

    If `turned`, the filters' channels are the results.
    """
    result, channel, row, column = steps(array)
    first, second = (channel, result) if turned else (result, channel)
    return ImageStrides(first=first, channel=second, row=row, column=column, group=each * result)


THREADS = 256
FEW = 8
"""Channels or results of a group below which tiles would be mostly empty."""
WIDEST = 16
"""Maximum number of bytes that a thread reads per access."""


def access(
    array: Array, axis: int, extent: int, tile: ThreadTile, *, along: bool
) -> tuple[bool, int]:
    """Return `along`, and the number of neighbours along `axis` that one access reads.

    Positions along the remaining axes start at multiples of this number.
    """
    many = min(WIDEST // array.itemsize, tile.carried)
    own = steps(array)
    fits = (
        own[axis] == 1
        and extent % many == 0
        and address_of(array) % (many * array.itemsize) == 0
        and all(step % many == 0 for i, step in enumerate(own) if i != axis and array.shape[i] > 1)
    )
    return along, many if fits else 1


def most_splits(scratch: Array, out: Array) -> int:
    """Return the maximum number of parts of the sums for this workspace."""
    return scratch.nbytes // max(1, out.size * compute_dtype(out.dtype).itemsize)


def split_k_partials(cut: ProductTiling, scratch: Array, out: Array) -> Array | None:
    """Return the memory for partial sums; None if sums are not split."""
    if cut.splits == 1:
        return None
    return Scratch(scratch).array((cut.splits, out.size), compute_dtype(out.dtype))


def split_k_workspace(splits: int, out: Array) -> int:
    """Return the bytes of workspace for the partial sums of split-K."""
    return 0 if splits == 1 else workspace_bytes(Spec((splits, out.size), compute_dtype(out.dtype)))


def split_k_reduction(
    out: Array,
    sums: Array,
    window: WindowParameters,
    places: ImageStrides,
    kind: str,
    shape: tuple[int, int],
) -> KernelLaunch:
    """Return the launch that adds up partial sums (rows, columns) and stores the results."""
    source = text(SPLIT_K_REDUCE, out.dtype.name, places=kind)
    blocks = blocks_for(out.size, THREADS)
    signature = SPLIT_K_REDUCE.bind(
        out=out,
        terms=sums,
        splits=sums.shape[0],
        count=out.size,
        window=window,
        places=places,
        rows=shape[0],
        columns=shape[1],
    )
    return KernelLaunch(source, SPLIT_K_REDUCE.name, blocks, THREADS, signature)


@dataclass(frozen=True, eq=False)
class SplitKSlice:
    """Correlation with the arrays it reads and writes.

    Filters are (K, C / groups, taps). If `turned`, their channels are the results.
    """

    work: Correlation
    image: Array
    filters: Array
    out: Array
    turned: bool

    @property
    def is_thin(self) -> bool:
        """True if tiles would be mostly empty."""
        return min(self.work.results, self.work.channels * size(self.work.taps)) < FEW

    @property
    def wants_packing(self) -> bool:
        """True if neither the channels of a filter nor the filters are contiguous."""
        line, channel = steps(self.filters)[:2][:: -1 if self.turned else 1]
        return not self.is_thin and self.work.channels > 1 and 1 not in (line, channel)

    def cut(self, most_splits: int = SPLITS[-1]) -> ProductTiling:
        """Return the tiling of the correlation."""
        work = self.work
        pixels, terms = work.batch * size(work.target), work.channels * size(work.taps)
        itemsize = compute_dtype(self.out.dtype).itemsize
        return tiling(pixels, work.results, terms, work.groups, itemsize, most_splits)

    def launches(self, scratch: Array) -> list[KernelLaunch]:
        """Return the launches that compute the correlation."""
        if self.out.size == 0:
            return []
        work = self.work
        window, places = window_of(work), image_steps(self.out, work.results)
        images = image_steps(self.image, work.channels)
        each = work.channels if self.turned else work.results
        steps_of_filters = filter_steps(self.filters, each, turned=self.turned)
        dtype = self.out.dtype.name
        if self.is_thin:
            last = "true" if abs(places.channel) <= abs(places.column) else "false"
            source = text(EACH, dtype, last=last)
            count = self.out.size
            signature = EACH.bind(
                out=self.out,
                image=self.image,
                filters=self.filters,
                window=window,
                images=images,
                steps=steps_of_filters,
                places=places,
                results=work.results,
                groups=work.groups,
                tap_rows=work.taps[0],
                count=count,
            )
            return [KernelLaunch(source, EACH.name, -(-count // THREADS), THREADS, signature)]
        cut = self.cut(most_splits(scratch, self.out))
        sums = split_k_partials(cut, scratch, self.out)
        source = tiles_text(CORRELATE, dtype, cut.tile, *self._accesses(cut.tile), sums is None)
        signature = CORRELATE.bind(
            out=self.out if sums is None else sums,
            image=self.image,
            filters=self.filters,
            window=window,
            images=images,
            steps=steps_of_filters,
            places=places,
            results=work.results,
            scheduler=cut.scheduler,
        )
        calls = [KernelLaunch(source, CORRELATE.name, cut.blocks, cut.tile.threads, signature)]
        if sums is not None:
            calls.append(
                split_k_reduction(
                    self.out, sums, window, places, "ImagePlaces", (window.pixels, work.results)
                )
            )
        return calls

    def _accesses(self, tile: ThreadTile) -> tuple[tuple[bool, int], tuple[bool, int]]:
        work = self.work
        image = access(self.image, 1, work.channels, tile, along=steps(self.image)[1] == 1)
        axes = (0, 1) if self.turned else (1, 0)
        near = axes[1] if steps(self.filters)[axes[1]] == 1 and self.work.channels > 1 else axes[0]
        extent = work.results if near == axes[1] else work.channels
        return image, access(self.filters, near, extent, tile, along=near == axes[0])


def parts(call: Call, filters: Array) -> list[SplitKSlice]:
    """Return the correlations of a convolution or its input gradient."""
    geometry = Geometry.of(call.node)
    given, (out,) = call.inputs[0], call.outputs
    if call.node.op.name == "conv2d":
        return [SplitKSlice(forward(geometry), given, filters, out, turned=False)]
    found = []
    for row, column, work in input_phases(geometry):
        rows, columns = (slice(phase.last_tap, None, -phase.tap_step) for phase in (row, column))
        chosen = filters[:, :, rows, columns][:, :, : work.taps[0], : work.taps[1]]
        place = out[:, :, row.first :: row.step, column.first :: column.step]
        found.append(SplitKSlice(work, given, chosen, place, turned=True))
    return found


def _packed(filters: Array, turned: bool, scratch: Scratch) -> Array:
    """Return memory for filters with contiguous channels (with contiguous results if turned)."""
    results, channels, *taps = filters.shape
    if turned:
        return scratch.array((channels, *taps, results), filters.dtype).transpose(3, 0, 1, 2)
    return scratch.array((results, *taps, channels), filters.dtype).transpose(0, 3, 1, 2)


def launches(call: Call) -> list[Any]:
    """Return the launches of a convolution or its input gradient."""
    filters, scratch = call.inputs[1], Scratch(call.workspace)
    calls: list[Any] = []
    is_input = call.node.op.name == "conv2d_input"
    packing = _is_packed(parts(call, filters))
    if packing and workspace_bytes(Spec(filters.shape, filters.dtype)) <= scratch.rest.nbytes:
        packed = _packed(filters, is_input, scratch)
        calls += copy_calls(packed, filters)
        filters = packed
    for part in parts(call, filters):
        calls += part.launches(scratch.rest)
    return calls


def workspace(call: Call) -> int:
    """Return the workspace for packed filters and partial sums of split-K."""
    filters = call.inputs[1]
    found = parts(call, filters)
    packed = workspace_bytes(Spec(filters.shape, filters.dtype)) if _is_packed(found) else 0
    sums = [split_k_workspace(part.cut().splits, part.out) for part in found if not part.is_thin]
    return packed + max(sums, default=0)


def _is_packed(found: list[SplitKSlice]) -> bool:
    return any(part.wants_packing for part in found)


FEWEST_PIXELS = 64
"""Pixels that a thread adds up at least."""


@dataclass(frozen=True, eq=False)
class FilterGradient:
    """The product of gradients and images over all pixels."""

    work: Correlation
    image: Array
    gradient: Array
    out: Array

    @classmethod
    def of(cls, call: Call) -> FilterGradient:
        """Return the filter gradient of a call of conv2d_weight."""
        images, gradient = call.inputs
        return cls(forward(Geometry.of(call.node)), images, gradient, call.outputs[0])

    @property
    def terms(self) -> int:
        """Number of elements of a filter."""
        return self.work.channels * size(self.work.taps)

    @property
    def is_thin(self) -> bool:
        """True if tiles would be mostly empty."""
        return min(self.work.results, self.terms) < FEW

    def cut(self, most_splits: int = SPLITS[-1]) -> ProductTiling:
        """Return the tiling of the product."""
        work = self.work
        pixels, itemsize = work.batch * size(work.target), compute_dtype(self.out.dtype).itemsize
        return tiling(work.results, self.terms, pixels, work.groups, itemsize, most_splits)

    def splits(self, most: int | None = None) -> int:
        """Return the number of parts of each sum if separate threads compute every element."""
        pixels = self.work.batch * size(self.work.target)
        card = driver().card
        fill = card.multiprocessors * card.threads
        wanted = min(pixels // FEWEST_PIXELS, fill // max(1, self.out.size))
        return max(1, wanted if most is None else min(wanted, most))

    def workspace(self) -> int:
        """Return the workspace for partial sums."""
        if self.is_thin:
            # Also required without a split: sums are stored before they are rounded and placed.
            return workspace_bytes(
                Spec((self.splits(), self.out.size), compute_dtype(self.out.dtype))
            )
        return split_k_workspace(self.cut().splits, self.out)

    def launches(self, scratch: Array) -> list[KernelLaunch]:
        """Return the launches that compute the gradient."""
        if self.out.size == 0:
            return []
        work = self.work
        window = window_of(work)
        images = image_steps(self.image, work.channels)
        outer = image_steps(self.gradient, work.results)
        places = filter_steps(self.out, work.results, turned=False)
        shape = (work.results, self.terms)
        most, dtype = most_splits(scratch, self.out), self.out.dtype.name
        given = {
            "image": self.image,
            "gradient": self.gradient,
            "window": window,
            "images": images,
            "outer": outer,
        }
        # Without room for sums, tiles have to do, however empty they are.
        if self.is_thin and most:
            splits = self.splits(most)
            sums = Scratch(scratch).array((splits, self.out.size), compute_dtype(self.out.dtype))
            count, pixels = splits * self.out.size, window.pixels
            signature = EACH_WEIGHT.bind(
                terms=sums,
                **given,
                results=work.results,
                groups=work.groups,
                span=-(-pixels // splits),
                count=count,
            )
            source = text(EACH_WEIGHT, dtype)
            first = KernelLaunch(source, EACH_WEIGHT.name, -(-count // THREADS), THREADS, signature)
            return [first, split_k_reduction(self.out, sums, window, places, "FilterPlaces", shape)]
        cut = self.cut(most)
        found = split_k_partials(cut, scratch, self.out)
        source = tiles_text(WEIGHT, dtype, cut.tile, *self._accesses(cut.tile), found is None)
        signature = WEIGHT.bind(
            out=self.out if found is None else found,
            **given,
            places=places,
            results=work.results,
            scheduler=cut.scheduler,
        )
        calls = [KernelLaunch(source, WEIGHT.name, cut.blocks, cut.tile.threads, signature)]
        if found is not None:
            calls.append(split_k_reduction(self.out, found, window, places, "FilterPlaces", shape))
        return calls

    def _accesses(self, tile: ThreadTile) -> tuple[tuple[bool, int], tuple[bool, int]]:
        work = self.work
        left = access(self.gradient, 1, work.results, tile, along=steps(self.gradient)[1] != 1)
        return left, access(self.image, 1, work.channels, tile, along=steps(self.image)[1] != 1)
