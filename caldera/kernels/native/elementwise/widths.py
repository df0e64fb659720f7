"""How many elements a loop handles at once, and over how many workers it is spread."""

from __future__ import annotations

from caldera.config import settings
from caldera.kernels.common.loop_body import LoopBody
from caldera.kernels.native.codegen.dtypes import computed_type
from caldera.kernels.native.codegen.emitter import itemsize
from caldera.kernels.native.codegen.target import machine

LIGHT_SHARE, HEAVY_SHARE = 1 << 14, 1 << 12
"""Elements that are worth a worker of their own."""
MANY_STEPS = 24
"""Beyond so many steps a loop handles one vector at a time."""


def vector_lanes(loop_body: LoopBody) -> int:
    """Elements in a register of the widest type that is computed with."""
    kinds = [computed_type(dtype) for dtype in loop_body.inputs]
    kinds += [computed_type(dtype) for _, dtype, *_ in loop_body.steps]
    widest = max((itemsize(kind) for kind in kinds), default=4)
    return machine().lanes(max(widest, 4))


def widths(loop_body: LoopBody) -> tuple[int, ...]:
    """How many elements are handled at once: first several vectors, so that short chains of
    instructions overlap and whole cache lines are written; then one vector; then single ones."""
    lanes = vector_lanes(loop_body)
    if loop_body.heavy or len(loop_body.steps) > MANY_STEPS:
        # Long chains overlap by themselves, and take long to compile.
        return lanes, 1
    return 4 * lanes, lanes, 1


def workers(loop_body: LoopBody, elements: int) -> int:
    """How many workers a loop over so many elements is worth."""
    share = HEAVY_SHARE if loop_body.heavy else LIGHT_SHARE
    if len(loop_body.steps) > MANY_STEPS // 2:
        share = HEAVY_SHARE
    return max(1, min(settings.threads, elements // share))
