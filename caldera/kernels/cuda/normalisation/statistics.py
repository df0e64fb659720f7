"""Layouts of images in batch and group normalisation, their row sums, and the normalisation.

Statistics and gradients derive from the sums. The number of chunks of rows depends on shapes and on
the number of multiprocessors. Sources: include/normalisation/norm_statistics.cuh and
include/normalisation/norm_apply.cuh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from caldera.core.graph.node import Node, Spec
from caldera.core.tensor import float64, size
from caldera.kernels.common.binding import Scratch, compute_dtype
from caldera.kernels.cuda.codegen import (
    KernelLaunch,
    KernelSignature,
    Parameter,
    StridedLayout,
    const_pointer,
    flags,
    function_launch,
    header_launch,
    index,
    index_type,
    indices,
    is_large,
    neighbours,
    next_power_of_two,
    null_pointer,
    pointer,
    real,
    strided_layout,
    strides_of,
    type_of,
)
from caldera.kernels.cuda.runtime.driver import Size, driver
from caldera.kernels.table import Array, Call

THREADS = 256
TOTALS_BLOCK: Size = (16, 32, 1)
"""Channels, and threads that share one, where sums of chunks are added up."""
TOTALS_THREADS = TOTALS_BLOCK[0] * TOTALS_BLOCK[1]
_LANES = 32
"""Maximum number of threads along the channels of a row."""
RESIDENT = 4
"""Blocks that a multiprocessor has at the same time."""
_MORE = 4
"""Factor for the number of blocks in kernels without sums, where more blocks cost no extra memory.
"""
_ROUNDS = 4
"""Rows a thread takes, at least, before a second chunk pays."""
_MOST_TOGETHER = 8


def _blocks() -> int:
    """Return blocks that keep all multiprocessors busy."""
    return RESIDENT * driver().multiprocessors


@dataclass(frozen=True)
class NormSizes:
    """Images of `length` rows (all that is normalised together but channels) by `channels`."""

    images: int
    channels: int
    length: int

    def most_chunks(self) -> int:
        """Return the most chunks that any layout cuts an image into."""
        across = -(-self.channels // (_LANES * _MOST_TOGETHER)) * self.images
        least = THREADS // _LANES * _ROUNDS
        return max(1, min(_blocks() // max(across, 1), -(-self.length // least)))

    def partial(self) -> Spec:
        """Return the specification of the partial sums: two for each chunk and channel."""
        return Spec((self.images * self.most_chunks() * 2 * self.channels,), float64)

    def factors(self, node: Node, count: int) -> Spec:
        """Return the specification of `count` numbers for each channel of each image."""
        return Spec((self.images * count * self.channels,), compute_dtype(node.outputs[0].dtype))


@dataclass(frozen=True)
class ChannelLayout:
    """Layout of arrays: `planes` if neighbours are rows of a channel, else channels of a row."""

    sizes: NormSizes
    rows: StridedLayout
    image: tuple[int, ...]
    channel: tuple[int, ...]
    planes: bool
    together: int
    large: bool
    blocks: int

    def of_elements(self) -> ChannelLayout:
        """Return the layout for kernels without sums."""
        return replace(self, blocks=_MORE * self.blocks)

    @property
    def block(self) -> Size:
        """Threads along channels and rows, or along rows."""
        if self.planes:
            needed = -(-self.sizes.length // self.together)
            return min(max(next_power_of_two(needed), 32), THREADS), 1, 1
        across = min(next_power_of_two(-(-self.sizes.channels // self.together)), _LANES)
        return across, THREADS // across, 1

    @property
    def _across(self) -> int:
        """Blocks along the channels."""
        if self.planes:
            return self.sizes.channels
        return -(-self.sizes.channels // (self.block[0] * self.together))

    @property
    def chunk(self) -> int:
        """Rows of a chunk."""
        length = self.sizes.length
        least = (self.block[0] * self.together if self.planes else self.block[1]) * _ROUNDS
        beside = max(self._across * self.sizes.images, 1)
        wanted = max(1, min(self.blocks // beside, length // least))
        found = max(1, -(-length // wanted))
        return -(-found // self.together) * self.together if self.planes else found

    @property
    def chunks(self) -> int:
        """Chunks of an image, at least 1."""
        return max(1, -(-self.sizes.length // self.chunk))

    @property
    def grid(self) -> int:
        """Blocks for all chunks of all images."""
        return self._across * self.chunks * self.sizes.images

    # --- in a kernel's text and parameters

    @property
    def options(self) -> str:
        """The first template arguments of its functions."""
        return f"{flags(self.planes)}, {self.together}"

    @property
    def shared(self) -> str:
        """The declaration of the memory that sums of its blocks need."""
        return f"__shared__ double kept[{2 * THREADS * self.together}];"

    @property
    def integer(self) -> str:
        """The type of places and counts."""
        return index_type(self.large)

    def images(self, *arrays: int) -> Parameter:
        """Return the parameter that describes these arrays to a kernel."""
        rows = [step for each in arrays for step in self.rows.strides[each]]
        others = [group[each] for group in (self.image, self.channel) for each in arrays]
        return indices(
            f"Images<{self.rows.rank}, {len(arrays)}, {self.integer}>",
            [
                *self.rows.sizes,
                *rows,
                *others,
                self.sizes.channels,
                self.sizes.length,
                self.chunk,
                self.chunks,
            ],
            self.large,
        )

    def number(self, value: int) -> Parameter:
        """A count or a stride."""
        return index(value, self.large)

    def vectors(self, **pointers: Parameter) -> dict[str, Parameter]:
        """Return vectors with their strides: `scale` and `scale_step`."""
        found: dict[str, Parameter] = {}
        for name, each in pointers.items():
            assert isinstance(each.argument, np.ndarray)
            found |= {name: each, f"{name}_step": self.number(strides_of(each.argument)[0])}
        return found


def strided(*names: str) -> str:
    """Return strided vectors as arguments of a C++ function.

    >>> strided("scale", "shift")
    'strided(scale, scale_step), strided(shift, shift_step)'
    """
    return ", ".join(f"strided({name}, {name}_step)" for name in names)


def layout_of(arrays: Sequence[Array], axis: int, *, by_image: bool) -> ChannelLayout:
    """Return the layout of images with their channels along `axis`; the first array decides.

    If `by_image`, axis 0 counts images that are normalised separately; otherwise all are normalised
    together.
    """
    shape = arrays[0].shape
    strides = [strides_of(array) for array in arrays]
    rows = [a for a in range(len(shape)) if a != axis and not (by_image and a == 0)]
    walked = strided_layout(shape, rows, strides)
    image = tuple(each[0] if by_image else 0 for each in strides)
    channel = tuple(each[axis] for each in strides)
    channels, length = shape[axis], size(tuple(shape[a] for a in rows))
    dense_channels = all(step == 1 for step in channel)
    dense_rows = length > 1 and all(step == 1 for step in walked.inner)
    nearer = abs(walked.inner[0]) < abs(channel[0])
    planes = length > 1 and (channels == 1 or (not dense_channels and (dense_rows or nearer)))
    together = 1
    if planes and dense_rows:
        together = neighbours(
            walked.sizes[-1],
            [
                (array, [*own[:-1], far, apart])
                for array, own, far, apart in zip(
                    arrays, walked.strides, image, channel, strict=True
                )
            ],
        )
    elif not planes and dense_channels:
        together = neighbours(
            channels,
            [
                (array, [*own, far])
                for array, own, far in zip(arrays, walked.strides, image, strict=True)
            ],
        )
    sizes = NormSizes(shape[0] if by_image else 1, channels, length)
    return ChannelLayout(
        sizes, walked, image, channel, planes, together, is_large(*arrays), _blocks()
    )


HEADER = "norm_apply.cuh"


def image_sums(layout: ChannelLayout, x: Array, partial: Array) -> KernelLaunch:
    """Return the sums of x and of its squares, by chunks."""
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
    """Return the sums of the gradient g, and of its products with x less the mean, by chunks.

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
    """Return the launch that adds up parts of the gradients of scale and shift.

    `apart` is the stride between parts, `third` an optional third sum, and `row` the layout of
    these results.
    """
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
    """Return a launch over all elements."""
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
    """Return a launch with several threads for each channel of a batch.

    They add up the sums of its chunks; `each` computes the results from the sums.
    """
    blocks = -(-layout.sizes.channels // TOTALS_BLOCK[0])
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
        f"{each}\n    block_of_batch(partial, chunks, channels, each);",
        threads=TOTALS_THREADS,
    )


# --- workspace


def in_workspace(call: Call, specs: tuple[Spec, Spec]) -> tuple[Array, Array]:
    """Return the sums of chunks and the factors in the workspace of a call."""
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
    """Return the launch that normalises x to y by factors.

    `arrays` are x, y and an optional addend; `apart` is the stride between images.
    """
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
    """Return the arrays to read and write, with their strides; `more` may be empty."""
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
    """Return the gradient of x by factors: `arrays` are x, g and dx."""
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
