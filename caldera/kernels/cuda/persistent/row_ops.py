"""Nodes that look at whole rows: losses over classes, the largest element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from caldera.kernels.cuda.codegen.kernel import Array
from caldera.kernels.cuda.persistent.memory_access import Access
from caldera.kernels.cuda.persistent.tasks import WARPS, TileTask, plain, units_of
from caldera.kernels.table import Call


@dataclass(eq=False)
class RowWork:
    """What a call does with each row of a matrix.

    `body` is run by all lanes of a warp, with the row's number in `row` and theirs in `lane`.
    """

    call: Call
    rows: int
    body: Callable[[Access], list[str]]

    @property
    def reads(self) -> Sequence[Array]:
        """What is read."""
        return self.call.inputs

    @property
    def writes(self) -> Sequence[Array]:
        """What is written."""
        return self.call.outputs

    def task(self) -> TileTask:
        """A warp a row."""

        def code(places: Access) -> list[str]:
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
    """Whether the classes lie along the last axis of a matrix of float32."""
    array = call.inputs[logits]
    last = call.node.attrs["axis"] == array.ndim - 1
    return array.ndim == 2 and last and array.dtype == np.float32


def _softmax_of_row(places: Access, logits: Array) -> list[str]:
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
    """The loss of each row. A label that is no class gives nan."""
    if not _has_rows(call, 0):
        return None
    logits, labels = call.inputs
    rows, classes = logits.shape

    def body(places: Access) -> list[str]:
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

    def body(places: Access) -> list[str]:
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
    """Where each row is largest: the first such place, and a nan is larger than all."""
    (scores,) = call.inputs
    if not _has_rows(call, 0) or call.outputs[0].ndim != 1:
        return None
    rows, classes = scores.shape

    def body(places: Access) -> list[str]:
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
