"""Products with weights of 8 or 4 bits, decoded in registers; and the decoded weights.

A few rows of inputs are multiplied by a few rows of weights at a time. Each vector of weights is
decoded once for all these rows of inputs, and read from memory once: a product with one row takes
the time to read its weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import add

import numpy as np
from llvmlite import ir

from caldera.core.graph.node import Node
from caldera.core.graph.ops.few_bits import BLOCKS, LANES, ZERO
from caldera.kernels.common.binding import Scratch
from caldera.kernels.native.codegen import (
    F32,
    I32,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Number,
    Pointer,
    RegisterValue,
    copy_elements,
    host_target,
    native_kernel,
    offer,
    vector,
)
from caldera.kernels.native.product.problem import contiguous, copied, copy_workspace, parts_for
from caldera.kernels.table import Array, Call, Runner

OUTPUTS = 4
"""Rows of weights that are multiplied at a time."""
_LINE = 64
"""Bytes of a block of weights: a cache line."""
_AHEAD = 4096
"""Distance in bytes at which weights are requested: processors follow one stream in a page."""


def _decoded(
    k: Emitter, codes: Pointer, scale: Pointer, block: Number, groups: int, lanes: int
) -> Iterator[tuple[int, RegisterValue]]:
    """Yield vectors of a block of weights, and their positions; `groups` 0 is for int8."""
    line = codes.at(block * _LINE)
    if not groups:
        one = k.splat(scale.load(0), lanes)
        for place in range(0, _LINE, lanes):
            yield place, k.convert(k.convert(line.load(place, lanes), I32), F32) * one
        return
    words, rows = line.cast(I32), BLOCKS[4] // LANES
    held = [words.load(place, lanes) for place in range(0, LANES, lanes)]
    for row in range(rows):
        one = k.splat(scale.load(block * groups + row * groups // rows), lanes)
        for number, each in enumerate(held):
            yield row * LANES + number * lanes, _scaled(k, k.shift_right(each, 4 * row), one)


def _scaled(k: Emitter, digits: RegisterValue, scale: RegisterValue) -> RegisterValue:
    """Return the integers that the lowest four bits of the lanes hold, times a scale."""
    kind = scale.type
    if digits.lanes < LANES or not host_target().triple.startswith("x86_64"):
        return k.fma(k.convert(digits & 15, F32), scale, scale * float(-ZERO))
    # One instruction of AVX-512 picks from 16 products; LLVM moves them out of the loops.
    levels = ir.Constant(kind, [F32(each - ZERO) for each in range(LANES)])
    name, signature = "permvar.sf.512", ir.FunctionType(kind, [kind, digits.type])
    pick = k.declared(f"llvm.x86.avx512.{name}", signature)
    products = RegisterValue(k, levels) * scale
    return RegisterValue(k, k.ir.call(pick, [products.raw, digits.raw]))


@native_kernel
def _multiply(
    k: Emitter,
    x: Pointer,
    codes: Pointer,
    scale: Pointer,
    out: Pointer,
    rows: Integer,
    outputs: Integer,
    blocks: Integer,
    width: Integer,
    nbytes: Integer,
    scales: Integer,
    groups: int,
    height: int,
    lanes: int,
) -> None:
    """Multiply rows of `width` inputs by rows of `nbytes` with `scales`."""
    with k.loop(*k.part_range((outputs + (OUTPUTS - 1)) // OUTPUTS)) as task:
        # Where fewer are left, the last one is computed several times.
        numbers = [k.minimum(task * OUTPUTS + j, outputs - 1) for j in range(OUTPUTS)]
        with k.loop(0, rows, height) as top:
            lines = [k.minimum(top + i, rows - 1) for i in range(height)]
            sums = [[k.variable(0.0, vector(F32, lanes)) for _ in numbers] for _ in lines]
            with k.loop(0, blocks) as block:
                start = block * BLOCKS[4 if groups else 8]
                for j, number in enumerate(numbers):
                    given = codes.at(number * nbytes), scale.at(number * scales)
                    k.prefetch(given[0].at(block * _LINE + _AHEAD), soon=True)
                    for place, weights in _decoded(k, *given, block, groups, lanes):
                        for line, totals in zip(lines, sums, strict=True):
                            inputs = x.load(line * width + start + place, lanes)
                            totals[j].value = k.fma(inputs, weights, totals[j].value)
            for line, totals in zip(lines, sums, strict=True):
                for number, total in zip(numbers, totals, strict=True):
                    out.store(line * outputs + number, k.reduce_lanes(total.value, add))


@native_kernel
def _decode(
    k: Emitter,
    codes: Pointer,
    scale: Pointer,
    out: Pointer,
    rows: Integer,
    columns: Integer,
    blocks: Integer,
    nbytes: Integer,
    scales: Integer,
    groups: int,
    lanes: int,
) -> None:
    """Write weights as numbers."""
    size = BLOCKS[4 if groups else 8]
    with k.loop(*k.part_range(rows)) as row, k.loop(0, blocks) as block:
        given = codes.at(row * nbytes), scale.at(row * scales)
        vectors = list(_decoded(k, *given, block, groups, lanes))
        goal, first = out.at(row * columns), block * size
        with k.if_else(first + size <= columns) as (whole, part):
            with whole:
                for place, weights in vectors:
                    goal.store(first + place, weights)
            with part:
                aside = k.alloca(F32, size)
                for place, weights in vectors:
                    aside.store(place, weights)
                copy_elements(k, goal.at(first), aside, columns - first, size)


def _facts(codes: Array, scale: Array) -> dict[str, int]:
    nbytes, scales = codes.shape[1], scale.shape[1]
    is_packed = codes.dtype == np.uint8
    blocks = nbytes // _LINE
    lanes = min(LANES, host_target().width // 4)
    groups = scales // blocks if is_packed else 0
    return {"blocks": blocks, "nbytes": nbytes, "scales": scales, "groups": groups, "lanes": lanes}


def _bind(call: Call) -> Runner:
    (out,), calls = call.outputs, list[NativeCall]()
    if out.size == 0:
        return NativeRunner([])
    scratch = Scratch(call.workspace)
    *x, codes, scale = (contiguous(each, scratch, calls) for each in call.inputs)
    goal = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    facts = _facts(codes, scale)
    if x:
        rows, outputs = out.shape
        most = 4 if host_target().registers > LANES else 2
        height = min(range(1, most + 1), key=lambda each: (-(-rows // each), each))
        work = 2 * rows * codes.shape[0] * x[0].shape[1]
        calls.append(
            _multiply.call(
                x=x[0],
                codes=codes,
                scale=scale,
                out=goal,
                rows=rows,
                outputs=outputs,
                width=x[0].shape[1],
                height=height,
                parts=min(parts_for(work), -(-outputs // OUTPUTS)),
                **facts,
            )
        )
    else:
        rows, columns = out.shape
        calls.append(
            _decode.call(
                codes=codes,
                scale=scale,
                out=goal,
                rows=rows,
                columns=columns,
                parts=min(parts_for(2 * out.size), rows),
                **facts,
            )
        )
    return NativeRunner(calls if goal is out else [*calls, *copied(goal, out)])


def _supports(node: Node) -> bool:
    return all(0 not in each.shape for each in node.inputs)


offer(("few_bits_linear", "dequantise"), "few_bits", _bind, _supports, copy_workspace, priority=10)
