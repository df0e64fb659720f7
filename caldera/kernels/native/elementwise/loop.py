"""Element-wise ops as one native loop each, over operands of any layout and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.graph.opdef import OPS
from caldera.kernels.common.axes import axes_of
from caldera.kernels.common.loop_body import LoopBody, loop_body_of, loop_shape
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import I64, Emitter, Value, itemsize
from caldera.kernels.native.codegen.kernel import Integer, NativeCall, native_kernel
from caldera.kernels.native.codegen.program import NativeRunner
from caldera.kernels.native.codegen.target import host_target
from caldera.kernels.native.elementwise.operands import (
    Operand,
    OuterAxis,
    StridedArray,
    at_row,
    outer_axes,
    strided_arrays,
)
from caldera.kernels.native.elementwise.operations import computed_values, is_known
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.shape import Shape, size
from caldera.threads import thread_count

LIGHT_SHARE, HEAVY_SHARE = 1 << 14, 1 << 12
"""Elements that are worth a worker of their own."""
MANY_STEPS = 24
"""Beyond so many steps a loop handles one vector at a time."""
GRAIN = 64
"""Elements in multiples of which a flat loop is shared: workers write no cache line together."""


def vector_lanes(loop_body: LoopBody) -> int:
    """Elements in a register of the widest type that is computed with."""
    kinds = [computed_type(dtype) for dtype in loop_body.inputs]
    kinds += [computed_type(dtype) for _, dtype, *_ in loop_body.steps]
    widest = max((itemsize(kind) for kind in kinds), default=4)
    return host_target().lanes(max(widest, 4))


def widths(loop_body: LoopBody, modes: str = "") -> tuple[int, ...]:
    """How many elements are handled at once: first several vectors, so that short chains of
    instructions overlap and whole cache lines are written; then one vector; then single ones."""
    lanes = vector_lanes(loop_body)
    if "s" in modes or loop_body.heavy or len(loop_body.steps) > MANY_STEPS:
        # Long chains overlap by themselves, and so do elements that are read one by one because
        # they lie apart; both take long to compile.
        return lanes, 1
    return 4 * lanes, lanes, 1


def workers(loop_body: LoopBody, elements: int) -> int:
    """How many workers a loop over so many elements is worth."""
    share = HEAVY_SHARE if loop_body.heavy else LIGHT_SHARE
    if len(loop_body.steps) > MANY_STEPS // 2:
        share = HEAVY_SHARE
    return max(1, min(thread_count(), elements // share))


# --- the kernel


@native_kernel
def _loop(
    k: Emitter, operands: list[StridedArray], outer: list[OuterAxis], total: Integer,
    inner: Integer, grain: Integer, loop_body: LoopBody, modes: str, widths: tuple[int, ...],
) -> None:  # fmt: skip
    """All elements, in rows of a length; workers share them in multiples of the grain."""
    arrays = [each.operand(mode) for each, mode in zip(operands, modes, strict=True)]
    shares = (total + (grain - 1)) // grain
    begin = shares * k.part // k.parts * grain
    end = k.minimum(shares * (k.part + 1) // k.parts * grain, total)

    def row(here: Sequence[Operand], begin: Value, end: Value) -> None:
        inputs = [each.settled() for each in here[: len(loop_body.inputs)]]
        outputs = here[len(loop_body.inputs) :]

        def compute(index: Value, lanes: int) -> None:
            written, _ = computed_values(
                loop_body, k, [each.load(index, lanes) for each in inputs], lanes
            )
            for operand, value in zip(outputs, written, strict=True):
                operand.store(index, value)

        k.vector_loops(begin, end, widths, compute)

    if not outer:
        row(arrays, begin, end)
        return
    with k.loop(begin // inner, (end + (inner - 1)) // inner) as number:
        start = number * inner
        first = k.maximum(begin - start, k.constant(0, I64))
        row(at_row(outer, arrays, number), first, k.minimum(end - start, inner))


def loop_calls(
    loop_body: LoopBody, shape: Shape, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[NativeCall]:
    """The calls that compute a loop body without reductions."""
    total = size(shape)
    if not total or not outputs:
        return []
    arrays = [*outputs, *inputs]
    axes = axes_of(shape, arrays)
    # Outputs come first when the order of axes is chosen, inputs in the kernel.
    count = len(outputs)
    arrays = [*inputs, *outputs]
    strides = [*axes.strides[count:], *axes.strides[:count]]
    inner = axes.lengths[-1]
    modes = "".join(
        "0" if each[-1] == 0 and index < len(inputs) and inner > 1
        else "1" if each[-1] == array.itemsize or inner == 1 else "s"
        for index, (each, array) in enumerate(zip(strides, arrays, strict=True))
    )  # fmt: skip
    parts = workers(loop_body, total)
    return [
        _loop.call(
            operands=strided_arrays(arrays, strides),
            outer=outer_axes(range(len(axes.lengths) - 1), axes.lengths, strides), total=total,
            inner=inner, grain=inner if total // inner >= 4 * parts else GRAIN,
            loop_body=loop_body, modes=modes, widths=widths(loop_body, modes), parts=parts,
        )
    ]  # fmt: skip


def _bind(call: Call) -> Runner:
    shape = loop_shape(call.node)
    return NativeRunner(loop_calls(loop_body_of(call.node), shape, call.inputs, call.outputs))


for _op in OPS.values():
    if _op.kind == "elementwise" and _op.decompose is None:
        TABLE.add(
            Kernel(
                _op.name,
                "cpu",
                "native",
                _bind,
                supports=is_known,
                priority=10,
                in_place=lambda node: True,
            )
        )
