"""Convolutions of images partitioned along height or width: ranks exchange halos.

Each rank computes some rows and columns of the result, and receives the input that they depend on
from its neighbours; padding is applied only at the borders of the image. The gradients are the same
with their own windows: the input gradient reads outputs, the weight gradient is summed over all
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from caldera.compiler.sharding.algorithms.axis_exchange import ConvolutionWindow, Range
from caldera.compiler.sharding.algorithms.process_grid import Cuts, even_cuts
from caldera.compiler.sharding.algorithms.variant import contiguous, cuts_of
from caldera.compiler.sharding.axis_split import AxisSplit
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.ops import halo
from caldera.compiler.sharding.rules import products
from caldera.compiler.sharding.rules.algorithms import without_gathering
from caldera.compiler.sharding.rules.registry import RULES, Lazy, Rule, ShardingRule, ShardPlacement
from caldera.core.graph.node import Node
from caldera.core.graph.ops import full, narrow, pad
from caldera.core.tensor.shape import Shape, size

if TYPE_CHECKING:
    from caldera.compiler.sharding.propagation import Propagation

SPACE = (2, 3)
"""Height and width of images (N, C, H, W)."""


@dataclass(frozen=True)
class Spatial:
    """A convolution whose images and results are shared out alike, along space and samples."""

    images: CartesianLayout
    results: CartesianLayout
    windows: tuple[ConvolutionWindow, ConvolutionWindow]


def _rule(before: Rule, graph: Propagation, node: Node) -> list[ShardingRule] | Lazy | Node | None:
    alone = before(graph, node)
    spatial = _spatial(graph, node) if graph.may_exchange else None
    if spatial is None or isinstance(alone, Lazy | Node):
        return alone
    layouts = [graph.layout(given) for given in node.inputs]
    kept = without_gathering(node, alone or [], layouts)
    return [*kept, _WAYS[node.op.name](graph, node, spatial)]


def _spatial(graph: Propagation, node: Node) -> Spatial | None:
    """Return the spatial partition of one of the images; None if no image has one."""
    images, kernel, results = _shapes(node)
    attrs = node.attrs
    windows = tuple(
        ConvolutionWindow(
            images[axis],
            kernel[axis],
            attrs["stride"][axis - 2],
            attrs["padding"][axis - 2][0],
            attrs["dilation"][axis - 2],
        )
        for axis in SPACE
    )
    for given in node.inputs:
        layout = graph.suited(given)
        if given.shape == images or given.shape == results:
            is_image = given is node.inputs[0] and node.op.name != "conv2d_input"
            if layout is not None and set(layout.split_axes) & set(SPACE):
                return _shared_out(layout.unsplit([1]), images, results, windows, is_image=is_image)
    return None


def _shapes(node: Node) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of the images, the kernel and the results."""
    first, second = (given.shape for given in node.inputs)
    if node.op.name == "conv2d":
        return first, second, node.shape
    if node.op.name == "conv2d_input":
        return node.shape, second, first
    return first, node.shape, second


def _shared_out(
    layout: CartesianLayout,
    images: Shape,
    results: Shape,
    windows: Sequence[ConvolutionWindow],
    *,
    is_image: bool,
) -> Spatial:
    splits: list[list[AxisSplit | None]] = [[layout.splits[0], None], [layout.splits[0], None]]
    for axis, window in zip(SPACE, windows, strict=True):
        split = layout.splits[axis]
        if split is None:
            splits[0].append(None)
            splits[1].append(None)
            continue
        n, count = images[axis], results[axis]
        known = cuts_of(layout, axis, split.parts) or even_cuts(layout.shape[axis], split.parts)
        if is_image:
            other = [min(-(-cut // window.stride), count) for cut in known[:-1]]
            pair = known, (*other, count)
        else:
            pair = (*(min(cut * window.stride, n) for cut in known[:-1]), n), known
        for each, cuts in zip(splits, pair, strict=True):
            each.append(contiguous(cuts))
    ranks = layout.ranks
    first, second = windows
    return Spatial(
        CartesianLayout(images, tuple(splits[0]), ranks),
        CartesianLayout(results, tuple(splits[1]), ranks),
        (first, second),
    )


# --- halos


def _with_halo(
    graph: Propagation, part: Node, layout: CartesianLayout, axis: int, wanted: Sequence[Range]
) -> Node:
    """Return this rank's part with its halo along an axis; `wanted` has the range of each part."""
    if layout.splits[axis] is None:
        begin, end = wanted[0]
        return narrow(part, axis, begin, end - begin)
    mesh = np.array(layout.ranks).reshape(layout.mesh)
    along = np.moveaxis(mesh, layout.split_axes.index(axis), -1)
    groups = along.reshape(-1, len(wanted)).tolist()
    peers = next((tuple(group) for group in groups if graph.rank in group), ())
    (made,) = graph.together(
        halo, part, axis=axis, cuts=_cuts(layout, axis), wanted=tuple(wanted), peers=peers
    )
    return made


def _cuts(layout: CartesianLayout, axis: int) -> Cuts:
    """Return the cuts of an axis, whose parts must be contiguous."""
    split = layout.splits[axis]
    found = cuts_of(layout, axis, 1 if split is None else split.parts)
    assert found is not None
    return found


def _parts(layout: CartesianLayout, axis: int) -> list[Range]:
    """Return the range of each part along an axis."""
    return list(pairwise(_cuts(layout, axis)))


def _seen(
    graph: Propagation, part: Node, spatial: Spatial
) -> tuple[Node, tuple[tuple[int, int], ...]]:
    """Return the images that this rank's results see, and the padding around them."""
    padding = []
    for axis, window in zip(SPACE, spatial.windows, strict=True):
        ranges = [window.inputs(each) for each in _parts(spatial.results, axis)]
        part = _with_halo(graph, part, spatial.images, axis, [each for each, _ in ranges])
        padding.append(ranges[spatial.results.part_along(axis, graph.rank)][1])
    return part, tuple(padding)


def _way(
    graph: Propagation,
    node: Node,
    spatial: Spatial,
    inputs: Sequence[ShardLayout],
    output: ShardPlacement,
    make: Callable[[Sequence[Node]], Node],
) -> ShardingRule:
    """Return a variant, with the cost of halos on both sides and of a share of the work."""
    images, shares = spatial.images, prod(spatial.images.mesh[:-1])
    seconds, sent = node.op.count_flops(node) / shares / graph.links.flops, 0
    for axis, window in zip(SPACE, spatial.windows, strict=True):
        split = images.splits[axis]
        if split is not None:
            line = size(images.shape) // max(images.shape[axis], 1) * split.parts // shares
            nbytes = 2 * (window.reach - 1) * line * node.dtype.itemsize
            seconds += 2 * graph.links.latency + nbytes / graph.links.bandwidth
            sent += nbytes * shares * (split.parts - 1) // split.parts
    return ShardingRule("halo exchange", tuple(inputs), (output,), make, seconds, sent)


# --- the three convolutions


def _seeing(graph: Propagation, node: Node, spatial: Spatial) -> ShardingRule:
    """The convolution itself, and the gradient for its kernel, of which each rank finds a term."""
    finds_kernel = node.op.name == "conv2d_weight"
    images, results = spatial.images, spatial.results
    kernel = replicated(node.shape if finds_kernel else node.inputs[1].shape, images.ranks)
    own = kernel if finds_kernel else results

    def make(parts: Sequence[Node]) -> Node:
        seen, padding = _seen(graph, parts[0], spatial)
        shape = own.local_shape(graph.rank)
        if 0 in (*shape, *seen.shape, *parts[1].shape):
            return full(shape, 0, node.dtype)
        return node.op(seen, parts[1], **{**node.attrs, "padding": padding})

    if finds_kernel:
        output = ShardPlacement(kernel, prod(images.mesh[:-1]))
        return _way(graph, node, spatial, (images, results), output, make)
    return _way(graph, node, spatial, (images, kernel), ShardPlacement(results), make)


def _input(graph: Propagation, node: Node, spatial: Spatial) -> ShardingRule:
    kernel = replicated(node.inputs[1].shape, spatial.images.ranks)

    def make(parts: Sequence[Node]) -> Node:
        part, ranges = parts[0], []
        for axis, window in zip(SPACE, spatial.windows, strict=True):
            count = spatial.results.shape[axis]
            seen = [window.outputs(each, count) for each in _parts(spatial.images, axis)]
            part = _with_halo(graph, part, spatial.results, axis, seen)
            ranges.append(seen[spatial.images.part_along(axis, graph.rank)])
        shape = spatial.images.local_shape(graph.rank)
        if 0 in shape or 0 in part.shape:
            return full(shape, 0, node.dtype)
        sizes = [
            (end - begin - 1) * window.stride + window.reach
            for (begin, end), window in zip(ranges, spatial.windows, strict=True)
        ]
        attrs = {**node.attrs, "padding": ((0, 0), (0, 0)), "shape": (*shape[:2], *sizes)}
        made = node.op(part, parts[1], **attrs)
        for axis, window, (begin, _) in zip(SPACE, spatial.windows, ranges, strict=True):
            own = _parts(spatial.images, axis)[spatial.images.part_along(axis, graph.rank)]
            made = _window(made, axis, begin * window.stride - window.before, own)
        return made

    inputs = (spatial.results, kernel)
    return _way(graph, node, spatial, inputs, ShardPlacement(spatial.images), make)


def _window(x: Node, axis: int, begin: int, own: Range) -> Node:
    """Return the indices `own` of an array that starts at index `begin`, padded with zeros."""
    end = begin + x.shape[axis]
    before, behind = max(begin - own[0], 0), max(own[1] - end, 0)
    amounts = tuple((before, behind) if each == axis else (0, 0) for each in range(len(x.shape)))
    return narrow(pad(x, amounts), axis, own[0] - begin + before, own[1] - own[0])


_WAYS = {"conv2d": _seeing, "conv2d_weight": _seeing, "conv2d_input": _input}
for _name in products.CONVOLUTIONS:
    RULES[_name] = partial(_rule, RULES[_name])
