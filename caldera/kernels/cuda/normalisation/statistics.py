"""Row sums of images for batch and group normalisation, and the normalisation itself.

The statistics and gradients derive from the sums. Sources:
include/normalisation/norm_statistics.cuh and include/normalisation/norm_apply.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor.shape import size
from caldera.kernels.common.binding import Scratch
from caldera.kernels.cuda.codegen.kernel import (
    KernelLaunch,
    KernelSignature,
    Parameter,
    const_pointer,
    flags,
    function_launch,
    header_launch,
    index,
    null_pointer,
    pointer,
    real,
    type_of,
)
from caldera.kernels.cuda.codegen.strides import StridedLayout
from caldera.kernels.cuda.normalisation.layout import (
    THREADS,
    TOTALS_BLOCK,
    TOTALS_THREADS,
    ChannelLayout,
    NormSizes,
)
from caldera.kernels.table import Array, Call

HEADER = "norm_apply.cuh"


def image_sums(layout: ChannelLayout, x: Array, partial: Array) -> KernelLaunch:
    """The sums of x and of its squares, by chunks."""
    signature = KernelSignature(
        {"x": const_pointer(x), "in": layout.images(0), "partial": pointer(partial)}
    )
    body = f"{layout.shared}\n    block_image_sums<{layout.options}>(x, in, partial, kept);"
    return over_elements(layout, "image_sums", signature, body)


def gradient_sums(
    layout: ChannelLayout,
    name: str,
    arrays: tuple[Array, Array],
    partial: Array,
    given: Mapping[str, Parameter],
    means: tuple[Array, str],
    vectors: str,
    *,
    relu: bool = False,
    resident: int | None = None,
) -> KernelLaunch:
    """The sums of the gradient g, and of its products with x less the mean, by chunks.

    `arrays` are x and g; `means` the array of the means, and where one lies; `vectors` are eps,
    scale, shift and variance in the kernel's words, which only a relu needs.
    """
    x, g = arrays
    mean, place = means
    signature = KernelSignature(
        {
            "x": const_pointer(x),
            "g": const_pointer(g),
            "in": layout.images(0, 1),
            **given,
            "partial": pointer(partial),
        }
    )
    body = (
        f"{layout.shared}\n    Means<{type_of(mean)}, {layout.integer}> means = {{{place}}};\n"
        f"    block_gradient_sums<{flags(relu)}, {layout.options}>(x, g, in, means, {vectors}, "
        "partial, kept);"
    )
    return over_elements(layout, name, signature, body, resident=resident)


def parameter_gradients(
    partial: Array,
    parts: int,
    apart: int,
    row: StridedLayout,
    for_scale: Array,
    for_shift: Array,
    *third: Array,
    large: bool,
) -> KernelLaunch:
    """The gradients of scale and shift from sums of parts that lie `apart`, and a third sum if that
    is wanted; `row` is the walk over all of these."""
    channels = size(row.sizes)
    return function_launch(
        HEADER,
        "parameter_gradients",
        -(-channels // TOTALS_BLOCK[0]),
        TOTALS_BLOCK,
        "block_parameter_gradients",
        {
            "partial": const_pointer(partial),
            "parts": index(parts, large),
            "apart": index(apart, large),
            "channels": index(channels, large),
            "for_scale": pointer(for_scale),
            "for_shift": pointer(for_shift),
            "third": pointer(third[0]) if third else null_pointer(type_of(for_shift)),
            "row": row.parameter(large),
        },
    )


# --- launches


def over_elements(
    layout: ChannelLayout,
    name: str,
    signature: KernelSignature,
    body: str,
    resident: int | None = None,
) -> KernelLaunch:
    """A launch over all elements."""
    return header_launch(
        HEADER,
        name,
        layout.grid,
        layout.block,
        signature,
        body,
        threads=THREADS,
        resident=resident,
    )


def over_channels(
    layout: ChannelLayout,
    name: str,
    partial: Array,
    factors: Array,
    eps: float,
    given: Mapping[str, Parameter],
    each: str,
) -> KernelLaunch:
    """A launch with some threads for each channel of a batch: they add up the sums of its chunks,
    of which `each` makes what is needed."""
    blocks = -(-layout.sizes.channels // TOTALS_BLOCK[0])
    body = f"{each}\n    block_of_batch(partial, chunks, channels, each);"
    return header_launch(
        HEADER,
        name,
        blocks,
        TOTALS_BLOCK,
        {
            "partial": const_pointer(partial),
            "chunks": layout.number(layout.chunks),
            "channels": layout.number(layout.sizes.channels),
            "count": real("double", layout.sizes.length),
            "eps": real("double", eps),
            "factors": pointer(factors),
            **given,
        },
        body,
        threads=TOTALS_THREADS,
    )


# --- workspace


def workspace_specs(sizes: NormSizes, node: Node, factors: int) -> tuple[Spec, Spec]:
    """Sums of chunks, and so many factors for each channel of each image."""
    return sizes.partial(), sizes.factors(node, factors)


def in_workspace(call: Call, specs: tuple[Spec, Spec]) -> tuple[Array, Array]:
    """These in the workspace of a call."""
    scratch = Scratch(call.workspace)
    partial, factors = (scratch.array(spec.shape, spec.dtype) for spec in specs)
    return partial, factors


def normalise(
    layout: ChannelLayout,
    arrays: Sequence[Array],
    factors: Array,
    apart: int,
    *,
    relu: bool = False,
) -> KernelLaunch:
    """x to y by factors: `arrays` are x, y and what is added, `apart` lies between images."""
    layout = layout.of_elements()
    x, y, *more = arrays
    signature = KernelSignature(
        {
            **images(layout, x, y, more),
            "factors": const_pointer(factors),
            "apart": layout.number(apart),
        }
    )
    kinds = f"{flags(relu, bool(more))}, {layout.options}"
    body = f"normalise<{kinds}>(x, y, more, in, factors, apart);"
    return over_elements(layout, "normalise_images", signature, body)


def images(layout: ChannelLayout, x: Array, y: Array, more: Sequence[Array]) -> KernelSignature:
    """What is read and written, and where it lies; without anything to add, `more` is not read."""
    return KernelSignature(
        {
            "x": const_pointer(x),
            "y": pointer(y),
            "more": const_pointer(more[0] if more else x),
            "in": layout.images(*range(2 + len(more))),
        }
    )


def input_gradient(
    layout: ChannelLayout,
    arrays: Sequence[Array],
    factors: Array,
    apart: int,
    *,
    relu: bool = False,
) -> KernelLaunch:
    """The gradient of x by factors: `arrays` are x, g and dx."""
    layout = layout.of_elements()
    x, g, dx = arrays
    signature = KernelSignature(
        {
            "x": const_pointer(x),
            "g": const_pointer(g),
            "dx": pointer(dx),
            "in": layout.images(0, 1, 2),
            "factors": const_pointer(factors),
            "apart": layout.number(apart),
        }
    )
    body = f"gradients<{flags(relu)}, {layout.options}>(x, g, dx, in, factors, apart);"
    return over_elements(layout, "image_gradients", signature, body)
