"""A convolution and its input gradient: every output pixel is the sum over the pixels and channels
that it sees. With a stride, the input gradient is one correlation of stride 1 for each place of the
stride's grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caldera.core.graph.node import Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Correlation, Geometry, forward, input_phases, steps
from caldera.kernels.common.scratch import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.cuda.convolution.parameters import filter_steps, image_steps, window_of
from caldera.kernels.cuda.convolution.source import CORRELATE, EACH, text, tiles_text
from caldera.kernels.cuda.convolution.split_k import (
    FEW,
    THREADS,
    access,
    most_splits,
    split_k_partials,
    split_k_reduction,
    split_k_workspace,
)
from caldera.kernels.cuda.movement.copy import copy_calls
from caldera.kernels.cuda.product.tiling import SPLITS, Tile, Tiling, tiling
from caldera.kernels.cuda.runtime.launch import Launch
from caldera.kernels.table import Array, Call


@dataclass(frozen=True, eq=False)
class Part:
    """A correlation with the arrays it reads and writes.

    Filters are (K, C / groups, taps); `turned` says that their channels are the results.
    """

    work: Correlation
    image: Array
    filters: Array
    out: Array
    turned: bool

    @property
    def is_thin(self) -> bool:
        """Whether tiles would be mostly empty."""
        return min(self.work.results, self.work.channels * size(self.work.taps)) < FEW

    @property
    def wants_packing(self) -> bool:
        """Whether neighbouring channels of a filter lie apart, and so do those of filters."""
        line, channel = steps(self.filters)[:2][:: -1 if self.turned else 1]
        return not self.is_thin and self.work.channels > 1 and 1 not in (line, channel)

    def cut(self, most_splits: int = SPLITS[-1]) -> Tiling:
        """How it is cut into tiles."""
        work = self.work
        pixels, terms = work.batch * size(work.target), work.channels * size(work.taps)
        itemsize = compute_dtype(self.out.dtype).itemsize
        return tiling(pixels, work.results, terms, work.groups, itemsize, most_splits)

    def launches(self, scratch: Array) -> list[Launch]:
        """What computes it."""
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
            return [Launch(source, EACH.name, -(-count // THREADS), THREADS, signature)]
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
        calls = [Launch(source, CORRELATE.name, cut.blocks, cut.tile.threads, signature)]
        if sums is not None:
            calls.append(
                split_k_reduction(
                    self.out, sums, window, places, "ImagePlaces", (window.pixels, work.results)
                )
            )
        return calls

    def _accesses(self, tile: Tile) -> tuple[tuple[bool, int], tuple[bool, int]]:
        work = self.work
        by_channel = steps(self.image)[1] == 1
        image = access(self.image, 1, work.channels, tile, along=by_channel)
        axes = (0, 1) if self.turned else (1, 0)
        near = axes[1] if steps(self.filters)[axes[1]] == 1 and self.work.channels > 1 else axes[0]
        extent = work.results if near == axes[1] else work.channels
        return image, access(self.filters, near, extent, tile, along=near == axes[0])


def parts(call: Call, filters: Array) -> list[Part]:
    """What a convolution or its input gradient consists of."""
    geometry = Geometry.of(call.node)
    given, (out,) = call.inputs[0], call.outputs
    if call.node.op.name == "conv2d":
        return [Part(forward(geometry), given, filters, out, turned=False)]
    found = []
    for row, column, work in input_phases(geometry):
        rows, columns = (slice(phase.last_tap, None, -phase.tap_step) for phase in (row, column))
        chosen = filters[:, :, rows, columns][:, :, : work.taps[0], : work.taps[1]]
        place = out[:, :, row.first :: row.step, column.first :: column.step]
        found.append(Part(work, given, chosen, place, turned=True))
    return found


def _packed(filters: Array, turned: bool, scratch: Scratch) -> Array:
    """Room for filters whose channels (turned: whose results) lie side by side."""
    results, channels, *taps = filters.shape
    if turned:
        return scratch.array((channels, *taps, results), filters.dtype).transpose(3, 0, 1, 2)
    return scratch.array((results, *taps, channels), filters.dtype).transpose(0, 3, 1, 2)


def launches(call: Call) -> list[Any]:
    """The launches of a convolution or its input gradient."""
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
    """The workspace for packed filters and partial sums of split-K."""
    filters = call.inputs[1]
    found = parts(call, filters)
    packed = workspace_bytes(Spec(filters.shape, filters.dtype)) if _is_packed(found) else 0
    sums = [split_k_workspace(part.cut().splits, part.out) for part in found if not part.is_thin]
    return packed + max(sums, default=0)


def _is_packed(found: list[Part]) -> bool:
    return any(part.wants_packing for part in found)
