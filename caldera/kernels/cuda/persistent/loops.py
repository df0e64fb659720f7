"""Loops, reductions, copies and work on rows (losses, the largest element) as parts of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.core.tensor.shape import Shape, size
from caldera.kernels.common.loops import LoopBody, accumulator_dtype, identity
from caldera.kernels.cuda.codegen import Array, computed_type, literal, statements
from caldera.kernels.cuda.persistent.fusion import FusedLoop, Reduction
from caldera.kernels.cuda.persistent.tasks import (
    THREADS,
    WARPS,
    TileAccess,
    TileTask,
    aligned_coordinates,
    plain,
    units_of,
    unravelled,
)
from caldera.kernels.table import Call

COMBINED = {"sum": "op_add", "prod": "op_mul", "max": "op_maximum", "min": "op_minimum"}
"""Functions that combine two partial results."""
LANES = 32
MOST_GROUPS = 4
MOST_AT_ONCE = 32
"""Number of elements that a thread reads before it uses the first."""


def loop_task(loop: FusedLoop) -> TileTask:
    """Return a loop without reductions: a thread an element."""
    count = size(loop.shape)

    def code(places: TileAccess) -> list[str]:
        split, coordinates = unravelled("e", loop.shape, "i")
        return [
            f"i32 e = unit * {THREADS} + threadIdx.x;",
            f"if (e < {count}) {{",
            *(f"    {line}" for line in (*split, *element_code(places, loop, coordinates))),
            "}",
        ]

    return TileTask("loop", units_of(count, THREADS), loop.inputs, loop.outputs, plain(code))


def element_code(
    places: TileAccess,
    loop: FusedLoop,
    coordinates: Sequence[str],
    known: dict[int, str] | None = None,
) -> list[str]:
    """Return the statements for one element; `known` names inputs that are in registers already."""
    lines, found = evaluated(places, loop.loop_body, loop.inputs, coordinates, known or {})
    for array, value in zip(loop.outputs, found.outputs, strict=True):
        lines.append(places.store(array, aligned_coordinates(array, coordinates), value))
    return lines


def evaluated(
    places: TileAccess,
    loop_body: LoopBody,
    inputs: Sequence[Array],
    coordinates: Sequence[str],
    known: dict[int, str],
) -> tuple[list[str], Any]:
    """Return the statements of a loop body for one element, and the names of their results."""
    operands = [known.get(index, f"x{index}") for index in range(len(inputs))]
    lines = [
        f"auto x{index} = {places.load(array, aligned_coordinates(array, coordinates))};"
        for index, array in enumerate(inputs)
        if index not in known
    ]
    found = statements(loop_body, operands)
    return lines + found.lines, found


Epilogue = Callable[[TileAccess, str, Sequence[str]], list[str]]
"""Statements for one result, given its value and its coordinates."""


@dataclass(frozen=True)
class _Job:
    """Reduction with derived properties."""

    reduction: Reduction
    finish: Epilogue

    @property
    def kept(self) -> list[int]:
        """The axes that the result has."""
        return [axis for axis in range(len(self.shape)) if axis not in self.reduction.axes]

    @property
    def shape(self) -> Shape:
        """Shape of the loop."""
        return self.reduction.shape

    @property
    def results(self) -> int:
        """Number of results."""
        return size(tuple(self.shape[axis] for axis in self.kept))

    @property
    def length(self) -> int:
        """Number of elements reduced to one result."""
        return size(tuple(self.shape[axis] for axis in self.reduction.axes))

    @property
    def what(self) -> tuple[str, str]:
        """Op of the reduction, and dtype of its operand."""
        return self.reduction.loop_body.reductions[0][:2]

    @property
    def combined(self) -> str:
        """The function that makes one of two partial results."""
        return COMBINED[self.what[0]]

    @property
    def type_text(self) -> str:
        """The type of partial results."""
        return computed_type(accumulator_dtype(*self.what))

    @property
    def start(self) -> str:
        """Result of a reduction over no elements."""
        return literal(identity(*self.what), accumulator_dtype(*self.what))

    def side_by_side(self) -> bool:
        """Return True if neighbouring results are computed from neighbouring elements."""
        kept = self.kept
        full = [array for array in self.reduction.given if array.shape == tuple(self.shape)]
        return self.results > 1 and any(array.strides[kept[-1]] == array.itemsize for array in full)

    @property
    def groups(self) -> int:
        """Number of groups of 32 adjacent results in a block; its warps share each group."""
        return min(MOST_GROUPS, 1 << (units_of(self.results, LANES) - 1).bit_length())

    def loop(self, places: TileAccess, first: str, apart: int) -> list[str]:
        """Return statements that add elements `first`, first + `apart`, ... of `result` to `total`.

        Several elements are read before the first is used, so that the reads overlap.
        """
        outer, outer_names = unravelled("result", [self.shape[a] for a in self.kept], "o")
        inner, inner_names = unravelled("k", [self.shape[a] for a in self.reduction.axes], "r")
        by_axis = zip((*self.kept, *self.reduction.axes), (*outer_names, *inner_names), strict=True)
        names = dict(by_axis)
        coordinates = [names[axis] for axis in range(len(self.shape))]
        loop_body, given = self.reduction.loop_body, self.reduction.given
        lines, found = evaluated(places, loop_body, given, coordinates, {})
        at_once = min(MOST_AT_ONCE, units_of(self.length, apart))
        return [
            *outer,
            f"for (i32 start = {first}; start < {self.length}; start += {apart * at_once}) {{",
            f"    {self.type_text} found[{at_once}];",
            "    #pragma unroll",
            f"    for (i32 i = 0; i < {at_once}; i++) {{",
            f"        i32 k = start + i * {apart};",
            f"        found[i] = {self.start};",
            f"        if (k < {self.length}) {{",
            *(f"            {line}" for line in (*inner, *lines)),
            f"            found[i] = ({self.type_text}){found.reductions[0]};",
            "        }",
            "    }",
            "    #pragma unroll",
            f"    for (i32 i = 0; i < {at_once}; i++) total = {self.combined}(total, found[i]);",
            "}",
        ]

    def end(self, places: TileAccess) -> list[str]:
        """Return statements for `total`, the value of `result`."""
        split, names = unravelled("result", [self.shape[axis] for axis in self.kept], "w")
        return [*split, *self.finish(places, "total", names)]


def reduction_task(reduction: Reduction, finish: Epilogue) -> TileTask:
    """Return the task of a reduction; `finish` writes the statements for each result.

    If neighbouring results are computed from neighbouring elements, a lane computes a result and
    some warps of a block share the reduced elements; otherwise a warp computes a result.
    """
    job = _Job(reduction, finish)
    write, each = (_columns, LANES * job.groups) if job.side_by_side() else (_rows, WARPS)
    return TileTask(
        job.what[0],
        units_of(job.results, each),
        reduction.reads,
        reduction.writes,
        plain(lambda places: write(job, places)),
    )


def _rows(job: _Job, places: TileAccess) -> list[str]:
    total = f"total = {job.combined}(total, ({job.type_text})__shfl_xor_sync(~0u, total, mask));"
    return [
        f"i32 result = unit * {WARPS} + (threadIdx.x >> 5);",
        f"if (result < {job.results}) {{",
        f"    {job.type_text} total = {job.start};",
        *(f"    {line}" for line in job.loop(places, "threadIdx.x & 31", 32)),
        f"    for (i32 mask = 16; mask; mask >>= 1) {total}",
        "    if ((threadIdx.x & 31) == 0) {",
        *(f"        {line}" for line in job.end(places)),
        "    }",
        "}",
    ]


def _columns(job: _Job, places: TileAccess) -> list[str]:
    kind, groups = job.type_text, job.groups
    sharing = WARPS // groups
    lanes = LANES * groups
    return [
        f"i32 result = unit * {lanes} + threadIdx.x % {lanes};",
        f"{kind} total = {job.start};",
        f"if (result < {job.results}) {{",
        *(f"    {line}" for line in job.loop(places, f"threadIdx.x / {lanes}", sharing)),
        "}",
        f"{kind}* totals = ({kind}*)scratch;",
        "totals[threadIdx.x] = total;",
        "__syncthreads();",
        f"if (threadIdx.x < {lanes} && result < {job.results}) {{",
        f"    for (i32 w = 1; w < {sharing}; w++)",
        f"        total = {job.combined}(total, totals[w * {lanes} + threadIdx.x]);",
        *(f"    {line}" for line in job.end(places)),
        "}",
    ]


@dataclass(eq=False)
class RowWork:
    """Work of a call on each row of a matrix.

    `body` is run by all lanes of a warp, with the row's index in `row` and the lane's in `lane`.
    """

    call: Call
    rows: int
    body: Callable[[TileAccess], list[str]]

    @property
    def reads(self) -> Sequence[Array]:
        """Arrays that are read."""
        return self.call.inputs

    @property
    def writes(self) -> Sequence[Array]:
        """Arrays that are written."""
        return self.call.outputs

    def task(self) -> TileTask:
        """Return a warp a row."""

        def code(places: TileAccess) -> list[str]:
            return [
                f"i32 row = unit * {WARPS} + (threadIdx.x >> 5), lane = threadIdx.x & 31;",
                f"if (row < {self.rows}) {{",
                *(f"    {line}" for line in self.body(places)),
                "}",
            ]

        what, units = self.call.node.op.name, units_of(self.rows, WARPS)
        return TileTask(what, units, self.reads, self.writes, plain(code))


Builder = Callable[[Call], RowWork | None]


def _has_rows(call: Call, logits: int) -> bool:
    """Return True if the classes are along the last axis of a float32 matrix."""
    array = call.inputs[logits]
    last = call.node.attrs["axis"] == array.ndim - 1
    return array.ndim == 2 and last and array.dtype == np.float32


def _softmax_of_row(places: TileAccess, logits: Array) -> list[str]:
    """`largest` and `total`: the row's largest element, and the sum of exp(x - largest)."""
    classes = logits.shape[1]
    element = places.load(logits, ["row", "c"])
    return [
        "float largest = bits_to_float(0xff800000u);",
        f"for (i32 c = lane; c < {classes}; c += 32) largest = op_maximum(largest, {element});",
        "largest = warp_largest(largest);",
        "float total = 0.0f;",
        f"for (i32 c = lane; c < {classes}; c += 32) total += op_exp(below({element}, largest));",
        "total = warp_total(total);",
    ]


def cross_entropy(call: Call) -> RowWork | None:
    """Return the loss of each row. The loss is nan for a label outside the classes."""
    if not _has_rows(call, 0):
        return None
    logits, labels = call.inputs
    rows, classes = logits.shape

    def body(places: TileAccess) -> list[str]:
        own = places.load(logits, ["row", "(i32)label"])
        loss = f"op_log(total) - below({own}, largest)"
        store = places.store(call.outputs[0], ["row"], "loss")
        return [
            *_softmax_of_row(places, logits),
            f"i64 label = (i64){places.load(labels, ['row'])};",
            f"bool known = label >= 0 && label < {classes};",
            f"float loss = known ? {loss} : bits_to_float(0x7fc00000u);",
            f"if (lane == 0) {{ {store} }}",
        ]

    return RowWork(call, rows, body)


def cross_entropy_grad(call: Call) -> RowWork | None:
    """g * (softmax - one_hot) for each row."""
    if not _has_rows(call, 1):
        return None
    gradient, logits, labels = call.inputs
    rows, classes = logits.shape

    def body(places: TileAccess) -> list[str]:
        softmax = f"op_exp(below({places.load(logits, ['row', 'c'])}, largest)) / total"
        value = f"g * ({softmax} - (c == label ? 1.0f : 0.0f))"
        return [
            *_softmax_of_row(places, logits),
            f"i64 label = (i64){places.load(labels, ['row'])};",
            f"float g = {places.load(gradient, ['row'])};",
            f"for (i32 c = lane; c < {classes}; c += 32) {{",
            f"    {places.store(call.outputs[0], ['row', 'c'], value)}",
            "}",
        ]

    return RowWork(call, rows, body)


def argmax(call: Call) -> RowWork | None:
    """Return the position of each row's maximum: the first one, with nan above all numbers."""
    (scores,) = call.inputs
    if not _has_rows(call, 0) or call.outputs[0].ndim != 1:
        return None
    rows, classes = scores.shape

    def body(places: TileAccess) -> list[str]:
        return [
            "float best = 0.0f;",
            f"i32 place = {classes};",
            f"for (i32 c = lane; c < {classes}; c += 32) {{",
            f"    float x = {places.load(scores, ['row', 'c'])};",
            f"    if (place == {classes} || warp_before(x, c, best, place)) {{",
            "        best = x;",
            "        place = c;",
            "    }",
            "}",
            "for (i32 mask = 16; mask; mask >>= 1) {",
            "    float x = __shfl_xor_sync(~0u, best, mask);",
            "    i32 c = __shfl_xor_sync(~0u, place, mask);",
            f"    if (c < {classes} && (place == {classes} || warp_before(x, c, best, place))) {{",
            "        best = x;",
            "        place = c;",
            "    }",
            "}",
            f"if (lane == 0) {{ {places.store(call.outputs[0], ['row'], '(i64)place')} }}",
        ]

    return RowWork(call, rows, body)


BUILDERS: dict[str, Builder] = {
    "argmax": argmax,
    "cross_entropy": cross_entropy,
    "cross_entropy_grad": cross_entropy_grad,
}
