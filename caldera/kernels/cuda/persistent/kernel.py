"""Whole steps as one kernel whose blocks stay and meet between phases.

A network whose layers are too small to fill a card spends its time on launches: inside a CUDA graph
an element-wise kernel takes about 2 us, of which next to nothing is work. Here the calls of a plan
become phases of one kernel, generated for exactly these arrays, and any number of steps is one
launch. Every block must be on the card at once, so there is one for each multiprocessor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from caldera.kernels.cuda.driver import driver
from caldera.kernels.cuda.elements import computed_type
from caldera.kernels.cuda.finish import activation_lines
from caldera.kernels.cuda.launch import Launch
from caldera.kernels.cuda.persistent.followers import (
    Loop,
    Producer,
    Product,
    Reduction,
    same,
    with_followers,
)
from caldera.kernels.cuda.persistent.gathers import Gather, look_through
from caldera.kernels.cuda.persistent.loops import element_code, loop_part, reduction_part
from caldera.kernels.cuda.persistent.parts import SHARED_FLOATS, THREADS, Part
from caldera.kernels.cuda.persistent.phases import in_phases
from caldera.kernels.cuda.persistent.pieces import Piece, copy_piece, pieces_of
from caldera.kernels.cuda.persistent.products import operands, product_part
from caldera.kernels.cuda.persistent.writer import Places
from caldera.kernels.native.finish import Finish
from caldera.kernels.table import COPY, Call
from caldera.kernels.whole import JOINERS, Steps

Array = np.ndarray[Any, np.dtype[Any]]
WAVES = 8
"""Units a block may have to do in a phase; with more, kernels of their own are as good."""
MOST_PARAMETERS = 400
"""Pointers: a kernel's parameters may take 4 KiB."""


@dataclass(frozen=True)
class PersistentStep:
    """A step, or many, in one launch."""

    phases: list[list[Part]]
    source: str
    arguments: list[Array]
    counters: Array

    def launch(self, steps: int) -> Launch:
        """What runs this many steps."""
        return Launch(
            self.source, "steps", driver().multiprocessors, THREADS,
            [*self.arguments, self.counters, ctypes.c_int(steps)], shared=4 * SHARED_FLOATS,
            together=True,
        )  # fmt: skip

    @property
    def is_small(self) -> bool:
        """Whether no phase keeps all blocks busy for long: what this kind of kernel is for."""
        most = max(sum(part.units for part in phase) for phase in self.phases)
        return most <= WAVES * driver().multiprocessors

    def __str__(self) -> str:
        lines = []
        for number, phase in enumerate(self.phases):
            parts = ", ".join(f"{part.what} ({part.units})" for part in phase)
            lines.append(f"phase {number}: {parts}")
        return "\n".join(lines)


def persistent_step(
    calls: Sequence[tuple[str, Call]], counters: Array, is_scratch: Callable[[Array], bool]
) -> PersistentStep | None:
    """One kernel for all calls, each with the op of its kernel; None if one of them cannot be done.

    `counters` are two 32-bit numbers on the card that are 0. `is_scratch` says whether an array
    lies in memory that nobody looks at after the step.
    """
    blocks = driver().multiprocessors
    pieces: list[Piece] = []
    for op, call in calls:
        found = [copy_piece(call)] if op == COPY else pieces_of(call)
        if found is None:
            return None
        pieces += found
    look_through(pieces)
    parts = [_part(piece, blocks) for piece in with_followers(pieces, is_scratch)]
    phases = in_phases(parts)
    places = Places()
    source = _source(phases, places)
    if len(places.arrays) > MOST_PARAMETERS:
        return None
    return PersistentStep(phases, source, places.arrays, counters)


def _part(piece: Piece, blocks: int) -> Part:
    if isinstance(piece, Part):
        return piece
    if isinstance(piece, Gather):
        return piece.part()
    if isinstance(piece, Loop):
        return loop_part(piece)
    if isinstance(piece, Reduction):
        return reduction_part(
            piece, lambda places, value, here: _followed(piece, places, value, here)
        )
    matrices = operands(piece.call)
    assert matrices is not None
    return product_part(
        piece.call, matrices, lambda places, value: _finished(piece, places, value), blocks,
        piece.reads, piece.writes,
    )  # fmt: skip


def _finished(product: Product, places: Places, value: str) -> list[str]:
    """What becomes of a sum: the op's own ending, then the loops that follow."""
    call = product.call
    here = ["row", "column"]
    lines = [f"float x = {value};"]
    result = "x"
    if call.node.op.name == "matmul_accumulate":
        before, _, _, alpha, beta = call.inputs
        # What is multiplied by 0 is not looked at: a nan there has no influence.
        lines += [
            f"float alpha = {places.load(alpha, [])}, beta = {places.load(beta, [])};",
            f"float kept = beta == 0.0f ? 0.0f : beta * {places.load(before, here)};",
            "x = kept + (alpha == 0.0f ? 0.0f : alpha * x);",
        ]
    elif call.node.op.name == "matmul_epilogue":
        finish = Finish.of(call.node)
        if finish.bias:
            bias = call.inputs[2]
            lines.append(f"x = x + {places.load(bias, ['0'] * (bias.ndim - 1) + ['column'])};")
        if finish.activation is not None:
            more, result = activation_lines(finish.activation, finish.attributes, "float")
            lines += more
    return [*lines, *_followed(product, places, result, here)]


def _followed(producer: Producer, places: Places, value: str, here: Sequence[str]) -> list[str]:
    """The result itself, if somebody wants it, and the loops that follow it."""
    lines = []
    result = producer.result
    if producer.stores:
        lines.append(places.store(result, here, value))
    for number, loop in enumerate(producer.followers):
        name = f"y{number}"
        lines.append(f"{computed_type(result.dtype.name)} {name} = {value};")
        known = {i: name for i, array in enumerate(loop.inputs) if same(array, result)}
        body = element_code(places, loop, here, known)
        lines += ["{", *(f"    {line}" for line in body), "}"]
    return lines


def _source(phases: list[list[Part]], places: Places) -> str:
    body: list[str] = []
    for phase in phases:
        body += ["grid_sync(counters);"] * bool(body)
        body += _phase(phase, places)
    parameters = ", ".join([*places.parameters, "u32* counters", "i32 count"])
    inside = "\n".join(f"        {line}" for line in body)
    return f"""#include "persistent.cuh"
extern "C" __global__ void __launch_bounds__({THREADS}, 1) steps({parameters}) {{
    DYNAMIC_SHARED(float, shared);
    for (i32 step = 0; step < count; step++) {{
        if (step) grid_sync(counters);
{inside}
    }}
    grid_leave(counters);
}}
"""


def _phase(phase: list[Part], places: Places) -> list[str]:
    """All units of a phase in one row; blocks take every so manieth."""
    total = sum(part.units for part in phase)
    lines = [f"for (i32 piece = blockIdx.x; piece < {total}; piece += gridDim.x) {{"]
    first = 0
    # The longest come first, so that no block begins one when the others are done.
    for part in sorted(phase, key=lambda part: not part.what.startswith("matmul")):
        lines.append(f"    if (piece >= {first} && piece < {first + part.units}) {{")
        lines.append(f"        i32 unit = piece - {first};")
        lines += [f"        {line}" for line in part.code(places)]
        lines.append("    }")
        first += part.units
    return [*lines, "}"]


def joined(
    calls: Sequence[tuple[str, Call]], counters: Array, is_scratch: Callable[[Array], bool]
) -> Steps | None:
    """The launches of a small network's steps; None for what is not small, or cannot be joined."""
    step = persistent_step(calls, counters, is_scratch)
    return None if step is None or not step.is_small else step.launch


JOINERS["cuda"] = joined
