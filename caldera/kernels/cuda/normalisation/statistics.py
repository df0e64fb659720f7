"""Kernels that normalisation over batches, groups and layers share: see include/norm.cuh."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.kernels.cuda.codegen.source import flags, kernel_source, type_of
from caldera.kernels.cuda.codegen.strided import Walk, index, index_type, indices
from caldera.kernels.cuda.normalisation.layout import THREADS, TOTALS_BLOCK, TOTALS_THREADS, Layout
from caldera.kernels.cuda.runtime.launch import Argument, Launch
from caldera.kernels.table import Array
from caldera.tensor.shape import size

HEADER = "norm_apply.cuh"


def image_sums(layout: Layout, x: Array, partial: Array) -> Launch:
    """The sums of x and of its squares, by chunks."""
    source = kernel_source(
        HEADER, "image_sums", THREADS,
        [f"const {type_of(x)}* x", f"{layout.images_type(1)} in", "double* partial"],
        f"{layout.shared}\n    block_image_sums<{layout.options}>(x, in, partial, kept);",
    )  # fmt: skip
    return over_elements(layout, source, "image_sums", [x, layout.images(0), partial])


def normalise(
    layout: Layout, arrays: Sequence[Array], factors: Array, apart: int, *, relu: bool = False
) -> Launch:
    """x to y by factors: `arrays` are x, y and what is added, `apart` lies between images."""
    layout = layout.of_elements()
    x, y, *more = arrays
    stored, added = type_of(x), bool(more)
    source = kernel_source(
        HEADER, "normalise_images", THREADS,
        [f"const {stored}* x", f"{stored}* y", f"const {stored}* more",
         f"{layout.images_type(len(arrays))} in", f"const {type_of(factors)}* factors",
         f"{layout.integer} apart"],
        f"normalise<{flags(relu, added)}, {layout.options}>(x, y, more, in, factors, apart);",
    )  # fmt: skip
    given = [x, y, more[0] if added else x, layout.images(*range(len(arrays))), factors,
             layout.number(apart)]  # fmt: skip
    return over_elements(layout, source, "normalise_images", given)


def slopes(
    layout: Layout, arrays: Sequence[Array], factors: Array, apart: int, *, relu: bool = False
) -> Launch:
    """The gradient of x by factors: `arrays` are x, g and dx."""
    layout = layout.of_elements()
    x, g, dx = arrays
    source = kernel_source(
        HEADER, "image_slopes", THREADS,
        [f"const {type_of(x)}* x", f"const {type_of(g)}* g", f"{type_of(dx)}* dx",
         f"{layout.images_type(3)} in", f"const {type_of(factors)}* factors",
         f"{layout.integer} apart"],
        f"slopes<{flags(relu)}, {layout.options}>(x, g, dx, in, factors, apart);",
    )  # fmt: skip
    given = [*arrays, layout.images(0, 1, 2), factors, layout.number(apart)]
    return over_elements(layout, source, "image_slopes", given)


def parameter_slopes(
    partial: Array, parts: int, apart: int, row: Walk, for_scale: Array, for_shift: Array, *,
    large: bool,
) -> Launch:  # fmt: skip
    """The gradients of scale and shift from sums of parts that lie `apart`."""
    integer, channels = index_type(large), size(row.sizes)
    source = kernel_source(
        HEADER, "parameter_slopes", TOTALS_THREADS,
        [f"const {type_of(partial)}* partial", f"{integer} parts", f"{integer} apart",
         f"{integer} channels", f"{type_of(for_scale)}* for_scale",
         f"{type_of(for_shift)}* for_shift", f"Walk<{row.rank}, 2, {integer}> row"],
        "block_parameter_slopes(partial, parts, apart, channels, for_scale, for_shift, row);",
    )  # fmt: skip
    return Launch(source, "parameter_slopes", -(-channels // TOTALS_BLOCK[0]), TOTALS_BLOCK, [
        partial, index(parts, large), index(apart, large), index(channels, large), for_scale,
        for_shift, indices(row.numbers, large),
    ])  # fmt: skip


def over_elements(layout: Layout, source: str, name: str, arguments: Sequence[Argument]) -> Launch:
    """A launch over all elements."""
    return Launch(source, name, layout.grid, layout.block, arguments)


def over_channels(layout: Layout, source: str, name: str, arguments: Sequence[Argument]) -> Launch:
    """A launch with some threads for each channel."""
    blocks = -(-layout.sizes.channels // TOTALS_BLOCK[0])
    return Launch(source, name, blocks, TOTALS_BLOCK, arguments)
