"""Convolutions compiled to machine code: direct, or as matrix products.

Filters with a single tap need no matrix of windows, see `products.py`. For larger filters, building
it first is offered only for the gradients. In the forward direction it took 1.3 to 15 times as long
as the best alternative at every measured size, see benchmarks/results/kernels-x86_64.md.

Estimates predict the approximate time of a method. They determine which method is tried first, or
used if there is no time to measure. Seconds refer to a core that does 36 billion operations a
second; only their ratios matter.
"""

from __future__ import annotations

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.geometry import Geometry, forward
from caldera.kernels.native.codegen import offer
from caldera.kernels.native.convolution import direct, im2col, weight_gradient
from caldera.kernels.native.convolution.correlation_blocking import Packing
from caldera.kernels.native.convolution.direct import packing
from caldera.kernels.native.convolution.im2col import Columns
from caldera.kernels.native.convolution.weight_blocking import WeightGradientTile

PEAK = 36e9
COPY = 5e9
"""Bytes a second that are copied pixel by pixel."""
ELEMENT = 1.5e-9
"""Seconds for an element of a filter that is packed or written back."""
MEMORY = 12e9
"""Bytes a second of images that pass through the cache."""


def _moving(geometry: Geometry) -> float:
    """Return reading and writing the images once."""
    return (size(geometry.image) + size(geometry.output)) * geometry.dtype.itemsize / MEMORY


def direct_seconds(node: Node) -> float:
    """Return direct convolution, forward or either gradient."""
    geometry = Geometry.of(node)
    if node.op.name != "conv2d_weight":
        return _moving(geometry) + _correlating(packing(node))
    geometry = geometry.unstrided
    images = (geometry.image, geometry.output)
    copied = sum(size(each) for each in images) * geometry.dtype.itemsize / COPY
    if geometry.is_depthwise:
        return copied + geometry.flops / (PEAK / 3)
    gradient = WeightGradientTile(forward(geometry), geometry.dtype)
    # Each part of the output channels copies the whole image, which is in a cache by then.
    copied += (gradient.splits - 1) * size(geometry.image) * geometry.dtype.itemsize / MEMORY
    rounded = gradient.width / geometry.results
    neighbours, vectors = gradient.tile
    efficiency = min(0.95, neighbours * vectors / 16)
    adding = gradient.strips.items * gradient.size * geometry.dtype.itemsize / MEMORY
    computing = geometry.flops * rounded / (PEAK * efficiency)
    return copied + computing + adding + size(geometry.filters) * ELEMENT


def _correlating(packing: Packing) -> float:
    strips = packing.strips
    tile_pixels, _ = packing.tile
    a_strip = strips.images * strips.rows * packing.window.target[1]
    rounded = -(-a_strip // tile_pixels) * tile_pixels / max(1, a_strip)
    flops = 2 * packing.products * rounded
    efficiency = 0.33 if packing.is_depthwise else 0.98
    pixels = sum(
        part.work.batch * part.work.target[0] * part.work.target[1] for part in packing.parts
    )
    overhead = pixels * packing.groups * packing.blocks * 1e-9
    copied = 0 if packing.reads_in_place else strips.items * strips.length * packing.dtype.itemsize
    return flops / (PEAK * efficiency) + overhead + copied / MEMORY + packing.filters * ELEMENT


def product_seconds(node: Node) -> float:
    """Return the estimated seconds by a product of pixels and filters."""
    geometry = Geometry.of(node)
    # Products of narrow matrices are slower.
    sides = (geometry.terms, geometry.results)
    efficiency = 0.93 * sides[0] / (sides[0] + 8) * sides[1] / (sides[1] + 3)
    packing = size(geometry.filters) * ELEMENT
    return _moving(geometry) + geometry.flops / (PEAK * efficiency) + packing


def columns_seconds(node: Node) -> float:
    """Return the estimated seconds by im2col: columns and products."""
    geometry = Geometry.of(node)
    own = Columns(geometry, node.op.name)
    columns = geometry.pixels * geometry.groups * geometry.terms * geometry.dtype.itemsize
    rows = geometry.pixels * geometry.groups * geometry.taps[0] * 4e-9
    # Each part of the output channels creates all rows.
    making = own.splits * (columns / MEMORY + rows)
    # With each block BLAS packs the filters, or reads and writes their gradient.
    blocks = own.blocks * (geometry.batch if own.by_image else 1)
    passes = 2 * blocks if node.op.name == "conv2d_weight" else blocks
    visiting = passes * size(geometry.filters) * geometry.dtype.itemsize / MEMORY
    return product_seconds(node) + making + visiting


PRIORITY = 12
"""Priority of all convolution methods: their estimates decide which is tried first."""


for _op, _direct in (
    ("conv2d", direct),
    ("conv2d_input", direct),
    ("conv2d_weight", weight_gradient),
):
    offer(
        _op,
        "direct",
        _direct.bind,
        lambda node: Geometry.of(node).is_usual,
        _direct.workspace,
        PRIORITY,
        estimate=direct_seconds,
    )
offer(
    ("conv2d_input", "conv2d_weight"),
    "im2col",
    im2col.bind,
    im2col.supports,
    im2col.workspace,
    PRIORITY,
    estimate=columns_seconds,
)
