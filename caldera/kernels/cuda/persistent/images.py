"""Work on images, one at a time: pooling, loops, sums, and the images of a batch.

An image is processed by one block, so that later work on the same image does not wait for other
blocks; see `image_fusion.py`. Images are arrays (N, C, H, W) of any layout. Windows of pooling do
not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import size
from caldera.kernels.common.loops import LoopBody, accumulator_dtype, identity
from caldera.kernels.cuda.codegen import Array, computed_type, literal
from caldera.kernels.cuda.persistent.fusion import FusedLoop, Producer, Reduction
from caldera.kernels.cuda.persistent.gather import Gather
from caldera.kernels.cuda.persistent.loops import COMBINED, element_code, evaluated
from caldera.kernels.cuda.persistent.program import SharedAccess, SharedTile
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    WARPS,
    RegisterPrefetch,
    TileAccess,
    units_of,
    unravelled,
)
from caldera.kernels.table import Call, Fresh

Epilogue = Callable[[Producer, TileAccess, str, Sequence[str]], list[str]]
"""Statements for a value that a producer has made: given its name and its coordinates."""
AXES = 4
AT_ONCE = 8
"""Number of elements that a thread reads before it uses the first."""


def shared_by_all(arrays: Sequence[Array], images: int) -> list[Array]:
    """Return the operands of a loop over images that are the same for all images."""
    return [
        array
        for array in arrays
        if array.ndim < AXES or array.shape[0] != images or array.strides[0] == 0
    ]


def each_pixel(
    places: SharedAccess, laid: Array, body: Callable[[SharedAccess, list[str]], list[str]]
) -> list[str]:
    """Return a loop of a block's threads over the elements of an image, in an array's memory order.

    Remote reads of `body` are prefetched for several elements.
    """
    axes = sorted(range(1, laid.ndim), key=lambda axis: -abs(laid.strides[axis]))
    split, names = unravelled("e", [laid.shape[axis] for axis in axes], "i")
    named = dict(zip(axes, names, strict=True))
    count = size(laid.shape[1:])
    rounds = units_of(count, THREADS)
    at_once = units_of(rounds, units_of(rounds, AT_ONCE))
    held = RegisterPrefetch(places.beyond, "i")
    ending = body(places.over(held), ["image", *(named[axis] for axis in range(1, laid.ndim))])
    each = [
        "#pragma unroll",
        f"for (i32 i = 0; i < {at_once}; i++) {{",
        f"    i32 e = first + i * {THREADS};",
        *(f"    {line}" for line in split),
        f"    if (e < {count}) {{",
    ]
    return [
        "#pragma unroll 1",
        f"for (i32 first = thread_now(); first < {count}; first += {at_once * THREADS}) {{",
        *(f"    {line}" for line in held.statements(each, str(at_once))),
        *(f"    {line}" for line in each),
        *(f"            {line}" for line in ending),
        "        }",
        "    }",
        "}",
    ]


@dataclass(eq=False)
class PixelProducer(Producer):
    """Images computed element by element; `element` returns the statements for a value."""

    element: Callable[[SharedAccess, Sequence[str]], list[str]]
    shared: Sequence[Array]
    """The operands that are the same for all images."""
    also: tuple[Array, ...] = ()
    """Arrays that the statements write besides the result."""
    value: str = "value"
    begin: Callable[[SharedAccess], list[str]] = lambda places: []
    """Statements before the first element."""
    near: Sequence[SharedTile] = ()
    """The operands in shared memory."""
    scratch: int = 0
    """Additional floats of shared memory, from `spare` on."""
    load: int = 0
    """Multiplications for an image."""

    @property
    def images(self) -> int:
        """The number of images."""
        return int(self.result.shape[0])

    @property
    def writes(self) -> list[Array]:
        """Arrays that are written."""
        return [*super().writes, *self.also]

    @property
    def common(self) -> Sequence[Array]:
        """Operands read not only at the position of the block's image."""
        more = [array for loop in self.epilogues for array in loop.inputs]
        return [*self.shared, *shared_by_all(more, self.images)]

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Return statements for an image."""

        def element(held: SharedAccess, here: list[str]) -> list[str]:
            return [*self.element(held, here), *finish(self, held, self.value, here)]

        return [*self.begin(places), *each_pixel(places, self.result, element)]


@dataclass(eq=False)
class ImageTask:
    """Work on images whose statements, returned by `write`, store all results."""

    name: str
    reads: Sequence[Array]
    writes: Sequence[Array]
    images: int
    common: Sequence[Array]
    write: Callable[[SharedAccess], list[str]]
    near: Sequence[SharedTile] = ()
    scratch: int = 0
    load: int = 0
    alone: FusedLoop | Gather | None = None
    """Piece to run if no other work is joined to this one."""

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Return statements for an image."""
        return self.write(places)


ImageWork = PixelProducer | ImageTask


def image_loop(loop: FusedLoop) -> ImageTask:
    """Return a loop over images as work on them."""

    def write(places: SharedAccess) -> list[str]:
        return each_pixel(
            places, loop.outputs[0], lambda held, here: element_code(held, loop, here)
        )

    images = loop.shape[0]
    common = shared_by_all(loop.inputs, images)
    return ImageTask("loop", loop.inputs, loop.outputs, images, common, write, alone=loop)


def image_gather(gather: Gather) -> ImageTask:
    """Return the images of a batch, found by their numbers."""

    def element(held: SharedAccess, here: list[str]) -> list[str]:
        return [held.store(gather.output, here, held.load(gather.table, ["number", *here[1:]]))]

    def write(places: SharedAccess) -> list[str]:
        number = gather.number(places, ["image"], "number")
        return [*number, *each_pixel(places, gather.output, element)]

    reads, images = gather.reads, int(gather.output.shape[0])
    return ImageTask("gather", reads, gather.writes, images, reads, write, alone=gather)


def _sums_of_image(
    reduction: Reduction, axes: tuple[int, ...], partial: Array
) -> Callable[[SharedAccess], list[str]]:
    """Return the writer of a reduction over some axes of an image; a warp makes a sum."""
    loop_body, shape = reduction.loop_body, reduction.shape

    def write(places: SharedAccess) -> list[str]:
        kept = [axis for axis in range(1, len(shape)) if axis not in axes]
        results = size(tuple(shape[axis] for axis in kept))
        length = size(tuple(shape[axis] for axis in axes))
        outer, outer_names = unravelled("result", [shape[axis] for axis in kept], "o")
        inner, inner_names = unravelled("k", [shape[axis] for axis in axes], "r")
        named = dict(zip((*kept, *axes), (*outer_names, *inner_names), strict=True))
        here = ["image", *(named[axis] for axis in range(1, len(shape)))]
        lines, found = evaluated(places, loop_body, reduction.given, here, {})
        op, dtype, _ = loop_body.reductions[0]
        kind, combined = computed_type(accumulator_dtype(op, dtype)), COMBINED[op]
        start = literal(identity(op, dtype), accumulator_dtype(op, dtype))
        return [
            f"for (i32 result = threadIdx.x >> 5; result < {results}; result += {WARPS}) {{",
            *(f"    {line}" for line in outer),
            f"    {kind} total = {start};",
            f"    #pragma unroll {min(AT_ONCE, units_of(length, 32))}",
            f"    for (i32 k = threadIdx.x & 31; k < {length}; k += 32) {{",
            *(f"        {line}" for line in (*inner, *lines)),
            f"        total = {combined}(total, ({kind}){found.reductions[0]});",
            "    }",
            "    for (i32 mask = 16; mask; mask >>= 1)",
            f"        total = {combined}(total, ({kind})__shfl_xor_sync(~0u, total, mask));",
            "    if ((threadIdx.x & 31) == 0) {",
            f"        {places.store(partial, ['image', *outer_names], 'total')}",
            "    }",
            "}",
        ]

    return write


def image_sums(reduction: Reduction, fresh: Fresh) -> list[Any] | None:
    """Return a reduction over images as one per image and one of their results; None for others."""
    shape, axes = reduction.shape, reduction.axes
    if len(shape) != AXES or 0 not in axes or len(axes) == 1:
        return None
    op, dtype, _ = reduction.loop_body.reductions[0]
    kept = tuple(shape[axis] for axis in range(AXES) if axis not in axes)
    kind = accumulator_dtype(op, dtype)
    partial = fresh((shape[0], *kept), kind)
    inside = tuple(axis for axis in axes if axis)
    given, images = reduction.given, shape[0]
    write = _sums_of_image(reduction, inside, partial)
    first = ImageTask("sums", given, [partial], images, shared_by_all(given, images), write)
    rest = LoopBody((kind,), (), (), ((op, kind, ("in", 0)),))
    return [first, Reduction((partial,), reduction.result, rest, partial.shape, (0,))]


def image_work(piece: Any) -> ImageWork | None:
    """Return a piece as work on images if it is a loop over images or loads them, else None."""
    if isinstance(piece, ImageWork):
        return piece
    if isinstance(piece, FusedLoop) and len(piece.shape) == AXES:
        whole = all(array.shape == piece.shape for array in piece.outputs)
        return image_loop(piece) if whole and all(piece.shape) else None
    if isinstance(piece, Gather):
        plain = piece.output.ndim == AXES and piece.numbers.ndim == 1
        return image_gather(piece) if plain and piece.output.dtype == np.float32 else None
    return None


def _is_plain(node: Node) -> bool:
    """Return True if windows neither overlap nor leave the image."""
    attrs = node.attrs
    inside = attrs["padding"] == ((0, 0), (0, 0)) and attrs["size"] == attrs["stride"]
    return inside and attrs.get("dilation", (1, 1)) == (1, 1)


def _window(node: Node, here: Sequence[str]) -> list[list[str]]:
    """Return the coordinates of the elements of the window at a place, in their order."""
    image, channel, y, x = here
    rows, columns = node.attrs["size"]
    return [
        [image, channel, f"({y} * {rows} + {i})", f"({x} * {columns} + {j})"]
        for i in range(rows)
        for j in range(columns)
    ]


def _place(node: Node, here: Sequence[str], pooled: Array) -> tuple[list[str], str, str]:
    """Return the position of an element's window, if it has one, and the element's index in it.

    The second result is a condition: it holds if the element is inside a window.
    """
    image, channel, y, x = here
    rows, columns = node.attrs["size"]
    down, across = pooled.shape[2:]
    known = [
        image,
        channel,
        f"min({y} / {rows}, {down - 1})",
        f"min({x} / {columns}, {across - 1})",
    ]
    inside = f"{y} < {rows * down} && {x} < {columns * across}"
    return known, inside, f"{y} % {rows} * {columns} + {x} % {columns}"


Element = Callable[[TileAccess, Sequence[str]], list[str]]
"""Statements for the `value` of an element, whose coordinates are given."""


def average_pool(call: Call) -> Element:
    """Return the mean of each window."""
    (given,) = call.inputs

    def element(places: TileAccess, here: Sequence[str]) -> list[str]:
        window = [places.load(given, each) for each in _window(call.node, here)]
        return [f"float value = ({' + '.join(window)}) / {len(window)}.0f;"]

    return element


def average_pool_input(call: Call) -> Element:
    """Return the gradient of an average pool: each element's share of its window's gradient."""
    (given,) = call.inputs
    rows, columns = call.node.attrs["size"]

    def element(places: TileAccess, here: Sequence[str]) -> list[str]:
        place, inside, _ = _place(call.node, here, given)
        share = f"{places.load(given, place)} / {rows * columns}.0f"
        return [f"float value = {inside} ? {share} : 0.0f;"]

    return element


def max_pool(call: Call) -> Element:
    """Return the largest element of each window, of equal ones the first; a nan is larger than all.
    A bias and a relu may follow."""
    (given, *biases), (_, index) = call.inputs, call.outputs

    def element(places: TileAccess, here: Sequence[str]) -> list[str]:
        first, *rest = (places.load(given, each) for each in _window(call.node, here))
        lines = [f"float value = {first}, other;", "i32 place = 0;"]
        for number, each in enumerate(rest, 1):
            lines += [
                f"other = {each};",
                "if (value == value && !(other <= value)) {",
                "    value = other;",
                f"    place = {number};",
                "}",
            ]
        for bias in biases:
            lines.append(f"value = op_add(value, {places.load(bias, [here[1], '0', '0'])});")
        if call.node.attrs.get("activated"):
            lines.append("value = op_relu(value);")
        return [*lines, places.store(index, here, "place")]

    return element


def pool_scatter(call: Call) -> Element:
    """Return the gradient of a window for its maximum, and 0 for the remaining elements."""
    given, index = call.inputs

    def element(places: TileAccess, here: Sequence[str]) -> list[str]:
        place, inside, number = _place(call.node, here, given)
        wins = f"{inside} && (i32){places.load(index, place)} == {number}"
        return [f"float value = {wins} ? {places.load(given, place)} : 0.0f;"]

    return element


_BUILDERS: dict[str, Callable[[Call], Element]] = {
    "avg_pool2d": average_pool,
    "avg_pool2d_input": average_pool_input,
    "max_pool2d": max_pool,
    "max_pool2d_epilogue": max_pool,
    "pool_scatter": pool_scatter,
}


def pool(call: Call) -> PixelProducer | None:
    """Return the call as work on images; None for other ops and for unsupported pooling."""
    builder = _BUILDERS.get(call.node.op.name)
    if builder is None or not _is_plain(call.node) or call.outputs[0].dtype != np.float32:
        return None
    result, *also = call.outputs
    shared = shared_by_all(call.inputs, int(result.shape[0]))
    return PixelProducer(call.inputs, result, builder(call), shared, tuple(also))
