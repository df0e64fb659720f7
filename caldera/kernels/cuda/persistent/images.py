"""Work on images, one at a time: pooling, loops, sums, and the images of a batch.

An image is done by one block, so that what follows on the same image need not wait for others; see
`image_fusion.py`. Images are arrays (N, C, H, W), however they lie. Windows of pooling lie side by
side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import LoopBody
from caldera.kernels.common.reduction import accumulator_dtype, identity
from caldera.kernels.cuda.codegen.kernel import Array, computed_type
from caldera.kernels.cuda.codegen.loops import literal
from caldera.kernels.cuda.persistent.fusion import FusedLoop, Producer, Reduction
from caldera.kernels.cuda.persistent.gather import Gather
from caldera.kernels.cuda.persistent.loops import COMBINED, element_code, evaluated
from caldera.kernels.cuda.persistent.shared_memory import SharedAccess, SharedTile
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    WARPS,
    Access,
    RegisterPrefetch,
    units_of,
    unravelled,
)
from caldera.kernels.runners import Fresh
from caldera.kernels.table import Call

Epilogue = Callable[[Producer, Access, str, Sequence[str]], list[str]]
"""Statements for a value that a producer has made: given its name and its coordinates."""
AXES = 4
AT_ONCE = 8
"""Elements that a thread reads before it uses the first of them."""


class ImageWork(Protocol):
    """Work that is done image by image."""

    @property
    def reads(self) -> Sequence[Array]: ...

    @property
    def writes(self) -> Sequence[Array]: ...

    @property
    def images(self) -> int: ...

    @property
    def common(self) -> Sequence[Array]:
        """What is read not only at the place of the own image."""

    @property
    def near(self) -> Sequence[SharedTile]:
        """What it wants to find in shared memory."""

    @property
    def scratch(self) -> int:
        """Floats of shared memory that it takes beside that, from `spare` on."""

    @property
    def load(self) -> int:
        """Multiplications for an image."""

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Statements for a block that does `image`."""


def shared_by_all(arrays: Sequence[Array], images: int) -> list[Array]:
    """The operands of a loop over images that are the same for all of them."""
    return [
        array
        for array in arrays
        if array.ndim < AXES or array.shape[0] != images or array.strides[0] == 0
    ]


def each_pixel(
    places: SharedAccess, laid: Array, body: Callable[[SharedAccess, list[str]], list[str]]
) -> list[str]:
    """A loop of a block's threads over the elements of one image, in the order of an array.

    What `body` reads from far is read ahead for several elements.
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


class _FromMemory:
    """Work that finds nothing in shared memory, and multiplies next to nothing."""

    near: ClassVar[Sequence[SharedTile]] = ()
    scratch: ClassVar[int] = 0
    load: ClassVar[int] = 0


@dataclass(eq=False)
class Pixelwise(_FromMemory, Producer):
    """Elements of images, each made of a few others: `element` gives statements for `value`."""

    element: Callable[[Access, Sequence[str]], list[str]]
    also: tuple[Array, ...] = ()
    """What the statements write beside the result."""

    @property
    def images(self) -> int:
        """How many there are."""
        return int(self.result.shape[0])

    @property
    def writes(self) -> list[Array]:
        """What is written."""
        return [*super().writes, *self.also]

    @property
    def common(self) -> Sequence[Array]:
        """What is the same for all images."""
        more = [array for loop in self.epilogues for array in loop.inputs]
        return shared_by_all([*self.given, *more], self.images)

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Statements for an image."""
        return each_pixel(
            places,
            self.result,
            lambda held, here: [*self.element(held, here), *finish(self, held, "value", here)],
        )


@dataclass(eq=False)
class ImageLoop(_FromMemory):
    """A loop over images."""

    loop: FusedLoop

    @property
    def reads(self) -> Sequence[Array]:
        """What is read."""
        return self.loop.inputs

    @property
    def writes(self) -> Sequence[Array]:
        """What is written."""
        return self.loop.outputs

    @property
    def images(self) -> int:
        """How many there are."""
        return self.loop.shape[0]

    @property
    def common(self) -> Sequence[Array]:
        """What is the same for all images."""
        return shared_by_all(self.loop.inputs, self.images)

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Statements for an image."""
        return each_pixel(
            places, self.loop.outputs[0], lambda held, here: element_code(held, self.loop, here)
        )


@dataclass(eq=False)
class ImageGather(_FromMemory):
    """The images of a batch, by their numbers."""

    gather: Gather

    @property
    def reads(self) -> Sequence[Array]:
        """What is read."""
        return self.gather.reads

    @property
    def writes(self) -> Sequence[Array]:
        """What is written."""
        return self.gather.writes

    @property
    def images(self) -> int:
        """How many there are."""
        return int(self.gather.output.shape[0])

    @property
    def common(self) -> Sequence[Array]:
        """The table, and what the numbers are found in."""
        return self.reads

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """Statements for an image."""
        gather = self.gather

        def body(held: SharedAccess, here: list[str]) -> list[str]:
            value = held.load(gather.table, ["number", *here[1:]])
            return [held.store(gather.output, here, value)]

        return [
            *gather.number(places, ["image"], "number"),
            *each_pixel(places, gather.output, body),
        ]


@dataclass(eq=False)
class ImageSums(_FromMemory):
    """A reduction over all but some axes of an image; `partial` has a row for each image."""

    loop_body: LoopBody
    shape: Shape
    axes: tuple[int, ...]
    given: tuple[Array, ...]
    partial: Array

    @property
    def reads(self) -> Sequence[Array]:
        """What is read."""
        return self.given

    @property
    def writes(self) -> Sequence[Array]:
        """What is written."""
        return [self.partial]

    @property
    def images(self) -> int:
        """How many there are."""
        return self.shape[0]

    @property
    def common(self) -> Sequence[Array]:
        """What is the same for all images."""
        return shared_by_all(self.given, self.images)

    def code(self, places: SharedAccess, finish: Epilogue) -> list[str]:
        """A warp makes a sum."""
        kept = [axis for axis in range(1, len(self.shape)) if axis not in self.axes]
        results = size(tuple(self.shape[axis] for axis in kept))
        length = size(tuple(self.shape[axis] for axis in self.axes))
        outer, outer_names = unravelled("result", [self.shape[axis] for axis in kept], "o")
        inner, inner_names = unravelled("k", [self.shape[axis] for axis in self.axes], "r")
        named = dict(zip((*kept, *self.axes), (*outer_names, *inner_names), strict=True))
        here = ["image", *(named[axis] for axis in range(1, len(self.shape)))]
        lines, found = evaluated(places, self.loop_body, self.given, here, {})
        op, dtype, _ = self.loop_body.reductions[0]
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
            f"        {places.store(self.partial, ['image', *outer_names], 'total')}",
            "    }",
            "}",
        ]


def image_sums(reduction: Reduction, fresh: Fresh) -> list[Any] | None:
    """A reduction over images as one of each image and one of what these give; None for others."""
    shape, axes = reduction.shape, reduction.axes
    if len(shape) != AXES or 0 not in axes or len(axes) == 1:
        return None
    op, dtype, _ = reduction.loop_body.reductions[0]
    kept = tuple(shape[axis] for axis in range(AXES) if axis not in axes)
    kind = accumulator_dtype(op, dtype)
    partial = fresh((shape[0], *kept), kind)
    inside = tuple(axis for axis in axes if axis)
    first = ImageSums(reduction.loop_body, shape, inside, reduction.given, partial)
    rest = LoopBody((kind,), (), (), ((op, kind, ("in", 0)),))
    return [first, Reduction((partial,), reduction.result, rest, partial.shape, (0,))]


def image_work(piece: Any) -> Any:
    """A piece as work on images, if it is a loop over them or brings them; None for others."""
    if isinstance(piece, FusedLoop) and len(piece.shape) == AXES:
        whole = all(array.shape == piece.shape for array in piece.outputs)
        return ImageLoop(piece) if whole and all(piece.shape) else None
    if isinstance(piece, Gather):
        plain = piece.output.ndim == AXES and piece.numbers.ndim == 1
        return ImageGather(piece) if plain and piece.output.dtype == np.float32 else None
    return None


def _is_plain(node: Node) -> bool:
    """Whether windows neither overlap nor leave the image."""
    attrs = node.attrs
    inside = attrs["padding"] == ((0, 0), (0, 0)) and attrs["size"] == attrs["stride"]
    return inside and attrs.get("dilation", (1, 1)) == (1, 1)


def _window(node: Node, here: Sequence[str]) -> list[list[str]]:
    """The coordinates of the elements of the window at a place, in their order."""
    image, channel, y, x = here
    rows, columns = node.attrs["size"]
    return [
        [image, channel, f"({y} * {rows} + {i})", f"({x} * {columns} + {j})"]
        for i in range(rows)
        for j in range(columns)
    ]


def _place(node: Node, here: Sequence[str], pooled: Array) -> tuple[list[str], str, str]:
    """Where the window lies that an element is in, whether there is one, and the element's number
    in it."""
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


def average_pool(call: Call) -> Pixelwise:
    """The mean of each window."""
    (given,), (result,) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
        window = [places.load(given, each) for each in _window(call.node, here)]
        return [f"float value = ({' + '.join(window)}) / {len(window)}.0f;"]

    return Pixelwise(call.inputs, result, element)


def average_pool_input(call: Call) -> Pixelwise:
    """Each element's share of its window's gradient."""
    (given,), (result,) = call.inputs, call.outputs
    rows, columns = call.node.attrs["size"]

    def element(places: Access, here: Sequence[str]) -> list[str]:
        place, inside, _ = _place(call.node, here, given)
        share = f"{places.load(given, place)} / {rows * columns}.0f"
        return [f"float value = {inside} ? {share} : 0.0f;"]

    return Pixelwise(call.inputs, result, element)


def max_pool(call: Call) -> Pixelwise:
    """The largest element of each window, of equal ones the first; a nan is larger than all. A bias
    and a relu may follow."""
    (given, *biases), (result, index) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
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

    return Pixelwise(call.inputs, result, element, (index,))


def pool_scatter(call: Call) -> Pixelwise:
    """The gradient of a window for the element that won, 0 for the others."""
    (given, index), (result,) = call.inputs, call.outputs

    def element(places: Access, here: Sequence[str]) -> list[str]:
        place, inside, number = _place(call.node, here, given)
        wins = f"{inside} && (i32){places.load(index, place)} == {number}"
        return [f"float value = {wins} ? {places.load(given, place)} : 0.0f;"]

    return Pixelwise(call.inputs, result, element)


_BUILDERS: dict[str, Callable[[Call], Pixelwise]] = {
    "avg_pool2d": average_pool,
    "avg_pool2d_input": average_pool_input,
    "max_pool2d": max_pool,
    "max_pool2d_epilogue": max_pool,
    "pool_scatter": pool_scatter,
}


def pool(call: Call) -> Pixelwise | None:
    """The call as work on images; None for what is no pooling, or one of another kind."""
    builder = _BUILDERS.get(call.node.op.name)
    if builder is None or not _is_plain(call.node) or call.outputs[0].dtype != np.float32:
        return None
    return builder(call)
