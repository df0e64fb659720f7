"""Element-wise ops as one native loop each, over operands of any layout and dtype."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.graph.opdef import OPS
from caldera.kernels.common.axes import axes_of
from caldera.kernels.common.loop_body import LoopBody, loop_body_of, loop_shape
from caldera.kernels.native.codegen.compiler import compiled
from caldera.kernels.native.codegen.program import NativeCall, NativeRunner, native_call
from caldera.kernels.native.elementwise import kernel
from caldera.kernels.native.elementwise.body import is_known
from caldera.kernels.native.elementwise.widths import widths, workers
from caldera.kernels.table import TABLE, Call, Kernel, Runner
from caldera.tensor.shape import Shape, size

GRAIN = 64
"""Elements in multiples of which a flat loop is shared: workers write no cache line together."""


def loop_calls(
    loop_body: LoopBody, shape: Shape, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
) -> list[NativeCall]:
    """The calls that compute a recipe without reductions."""
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
    outer = len(axes.lengths) - 1
    address = compiled(
        kernel.build, parts=loop_body.parts, modes=modes, outer=outer, widths=widths(loop_body)
    )
    around: list[int] = []
    for axis in range(outer):
        around += [axes.lengths[axis], *[each[axis] for each in strides]]
    parts = workers(loop_body, total)
    rows = total // inner
    grain = inner if rows >= 4 * parts else GRAIN
    inner_steps = [each[-1] for each in strides]
    return [native_call(address, *arrays, *inner_steps, total, inner, grain, *around, parts=parts)]


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
