"""The kernel of loops that only write element by element."""

from __future__ import annotations

from collections.abc import Sequence

from caldera.kernels.common.loop_body import LoopBody, Parts
from caldera.kernels.native.codegen.emitter import I64, Emitter, Value
from caldera.kernels.native.elementwise.body import computed_values
from caldera.kernels.native.elementwise.operands import Operand, Outer, Slots, in_widths


def build(k: Emitter, parts: Parts, modes: str, outer: int, widths: tuple[int, ...]) -> None:
    """Slots: addresses, inner strides, elements in all, length of a row, grain, outer axes.

    Workers share the elements in multiples of the grain.
    """
    loop_body = LoopBody(*parts)
    dtypes = [*loop_body.inputs, *[dtype for dtype, _ in loop_body.outputs]]
    slots = Slots(k)
    operands = slots.operands(dtypes, modes)
    total, inner, grain = slots.integers(3)
    around = Outer(slots, outer, len(operands))
    shares = (total + (grain - 1)) // grain
    begin = shares * k.part // k.parts * grain
    end = k.minimum(shares * (k.part + 1) // k.parts * grain, total)

    def row(operands: Sequence[Operand], begin: Value, end: Value) -> None:
        inputs = [each.settled() for each in operands[: len(loop_body.inputs)]]
        outputs = operands[len(loop_body.inputs) :]

        def compute(index: Value, lanes: int) -> None:
            written, _ = computed_values(
                loop_body, k, [each.load(index, lanes) for each in inputs], lanes
            )
            for operand, value in zip(outputs, written, strict=True):
                operand.store(index, value)

        in_widths(k, begin, end, widths, compute)

    if not outer:
        row(operands, begin, end)
        return
    with k.loop(begin // inner, (end + (inner - 1)) // inner) as number:
        start = number * inner
        first = k.maximum(begin - start, k.constant(0, I64))
        row(around.at(operands, number), first, k.minimum(end - start, inner))
