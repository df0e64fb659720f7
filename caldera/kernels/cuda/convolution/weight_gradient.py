"""The gradient of the filters: a product of gradients and images over all pixels, whose sums are
split (split-K). Where a group has only few channels, every element has threads of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from caldera.core.graph.node import Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.geometry import Correlation, Geometry, forward, steps
from caldera.kernels.cuda.codegen.kernel import KernelLaunch
from caldera.kernels.cuda.convolution.implicit_gemm import (
    FEW,
    THREADS,
    access,
    filter_steps,
    image_steps,
    most_splits,
    split_k_partials,
    split_k_reduction,
    split_k_workspace,
    window_of,
)
from caldera.kernels.cuda.convolution.source import EACH_WEIGHT, WEIGHT, text, tiles_text
from caldera.kernels.cuda.product.problem import SPLITS, ProductTiling, ThreadTile, tiling
from caldera.kernels.cuda.runtime.driver import driver
from caldera.kernels.table import Array, Call

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
        """What a call of conv2d_weight computes."""
        images, gradient = call.inputs
        return cls(forward(Geometry.of(call.node)), images, gradient, call.outputs[0])

    @property
    def terms(self) -> int:
        """Elements of one filter."""
        return self.work.channels * size(self.work.taps)

    @property
    def is_thin(self) -> bool:
        """Whether tiles would be mostly empty."""
        return min(self.work.results, self.terms) < FEW

    def cut(self, most_splits: int = SPLITS[-1]) -> ProductTiling:
        """How it is cut into tiles."""
        work = self.work
        pixels, itemsize = work.batch * size(work.target), compute_dtype(self.out.dtype).itemsize
        return tiling(work.results, self.terms, pixels, work.groups, itemsize, most_splits)

    def splits(self, most: int | None = None) -> int:
        """Pieces of sums if every element has threads of its own."""
        pixels = self.work.batch * size(self.work.target)
        card = driver().card
        fill = card.multiprocessors * card.threads
        wanted = min(pixels // FEWEST_PIXELS, fill // max(1, self.out.size))
        return max(1, wanted if most is None else min(wanted, most))

    def workspace(self) -> int:
        """The workspace for partial sums."""
        if self.is_thin:
            # Also where nothing is cut: sums are stored before they are rounded and placed.
            return workspace_bytes(
                Spec((self.splits(), self.out.size), compute_dtype(self.out.dtype))
            )
        return split_k_workspace(self.cut().splits, self.out)

    def launches(self, scratch: Array) -> list[KernelLaunch]:
        """What computes it."""
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
