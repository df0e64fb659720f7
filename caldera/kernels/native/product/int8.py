"""Products of bytes for inference: `int8_linear` with integer instructions.

One call rounds the rows of the inputs to bytes, the next one multiplies. The sums of four products
of bytes are one instruction with VNNI (x86_64) or dot products (Arm), and a few instructions
elsewhere. VNNI multiplies unsigned by signed bytes: 128 is added to the inputs, and 128 times the
sum of the weights, which is computed along with the product, is subtracted.

Panels of weights are read in the order of memory. A few panels and rows are computed together, with
their sums in registers. Scales and bias are applied before the sums leave the registers.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir

from caldera.core.graph.node import Node, Spec
from caldera.core.graph.ops.int8 import GROUP, LARGEST, LEAST, PANEL
from caldera.core.tensor import float32, uint8
from caldera.kernels.common.binding import Scratch, workspace_bytes
from caldera.kernels.native.codegen import (
    F32,
    I8,
    I16,
    I32,
    Emitter,
    Integer,
    MutableRegister,
    NativeCall,
    NativeRunner,
    Number,
    Pointer,
    Real,
    RegisterValue,
    copy_elements,
    host_target,
    math,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.product.problem import contiguous, copied, dense, parts_for
from caldera.kernels.table import Call, Runner

VNNI, DOT, PLAIN = "vnni", "dot", "plain"
"""Instructions for sums of products of bytes: of x86_64, of Arm, and of any processor."""
_PAIRS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
"""Sums of two products of 16 bits in each lane, by the number of lanes."""
_WITHOUT_FRACTION = 1.5 * 2**23
"""In the middle of the numbers of float32 whose distance is 1."""
LONGEST = 1 << 16
"""Number of products of bytes whose sum is certain to fit into 32 bits."""
_WORK = 4
"""Products of bytes that take as long as one of float32."""


def instructions() -> str:
    """Return the best instructions of the machine that kernels are compiled for."""
    here = host_target()
    features = set(here.features.split(","))
    if here.triple.startswith("x86_64") and features & {"+avx512vnni", "+avxvnni"}:
        return VNNI
    return DOT if here.triple.startswith(("aarch64", "arm64")) and "+dotprod" in features else PLAIN


@native_kernel
def _to_bytes(
    k: Emitter,
    x: Pointer,
    bytes_: Pointer,
    steps: Pointer,
    rows: Integer,
    length: Integer,
    width: Integer,
    step: Real,
    is_fixed: bool,
    offset: int,
) -> None:
    """Round rows to integers plus `offset`, and write the step of each row."""
    lanes = natural_lanes(F32)
    with k.loop(*k.part_range(rows)) as row:
        line, goal = x.at(row * length), bytes_.at(row * width)
        scale = k.convert(step, F32) if is_fixed else step_of(k, line, length)
        # The step of a row with an infinity becomes a NaN, like the result.
        steps.store(row, scale + (scale - scale))
        for place, many in k.vectors(0, length, lanes, 1):
            goal.store(place, to_byte(k, line.load(place, many) / scale, offset))
        with k.loop(length, width) as place:
            goal.store(place, k.constant(offset, I8))


def to_byte(k: Emitter, number: RegisterValue, offset: int) -> RegisterValue:
    """Return numbers rounded to integers from -127 to 127, plus `offset`."""
    limited = k.maximum(k.minimum(number, LARGEST), -LARGEST)
    # The sum is so large that it has no fraction, and its last bits are the integer.
    bits = k.bitcast(limited + (_WITHOUT_FRACTION + offset), vector(I32, number.lanes))
    return k.convert(bits, I8)


def step_of(k: Emitter, line: Pointer, length: Number) -> RegisterValue:
    """The step of a row: its largest size divided by 127; NaN if any number is NaN."""
    # The bits of numbers without a sign, read as integers, have the order of the numbers, with NaN
    # as the largest.
    sizes, lanes = line.cast(I32), natural_lanes(F32)
    found, wide = k.variable(0, I32), k.variable(0, vector(I32, lanes))
    for place, many in k.vectors(0, length, lanes, 1):
        total = wide if many == lanes and lanes > 1 else found
        total.value = k.maximum(total.value, sizes.load(place, many) & 0x7FFFFFFF)
    most = k.maximum(found.value, k.reduce_lanes(wide.value, k.maximum))
    return math.maximum(k, k.bitcast(most, F32) / LARGEST, LEAST)


def add_products(
    k: Emitter, total: MutableRegister, a: RegisterValue, b: RegisterValue, way: str
) -> None:
    """total += the sums of four products of bytes of `a` and `b`, given as 32-bit lanes."""
    lanes = total.value.lanes
    if way != PLAIN:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * lanes}"
        if way == DOT:
            name = f"llvm.aarch64.neon.sdot.v{lanes}i32.v{GROUP * lanes}i8"
            a, b = (k.bitcast(each, vector(I8, GROUP * lanes)) for each in (a, b))
        signature = ir.FunctionType(total.type, [total.type, a.type, b.type])
        function = k.declared(name, signature)
        total.value = RegisterValue(k, k.ir.call(function, [total.value.raw, a.raw, b.raw]))
        return
    pairs = vector(I16, 2 * lanes)
    (a_even, a_odd), (b_even, b_odd) = (
        ((both << 8) >> 8, both >> 8) for both in (k.bitcast(each, pairs) for each in (a, b))
    )
    if total.value.lanes in _PAIRS and host_target().triple.startswith("x86_64"):
        signature = ir.FunctionType(total.type, [a_even.type, a_even.type])
        function = k.declared(_PAIRS[total.value.lanes], signature)
        for left, right in ((a_even, b_even), (a_odd, b_odd)):
            products = RegisterValue(k, k.ir.call(function, [left.raw, right.raw]))
            total.value = total.value + products
        return
    products = k.convert(a_even, I32) * k.convert(b_even, I32)
    products = products + k.convert(a_odd, I32) * k.convert(b_odd, I32)
    evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
    sums = k.shuffle(products, None, evens) + k.shuffle(products, None, odds)
    total.value = total.value + sums


@native_kernel
def _multiply(
    k: Emitter,
    bytes_: Pointer,
    steps: Pointer,
    weight: Pointer,
    scale: Pointer,
    bias: Pointer | None,
    out: Pointer,
    rows: Integer,
    columns: Integer,
    panels: Integer,
    groups: Integer,
    way: str,
    lanes: int,
    tile: tuple[int, int],
) -> None:
    """Multiply rows of bytes by the weights, in tiles of some rows and some panels."""
    height, wide = tile
    weight, inputs = weight.cast(I32), bytes_.cast(I32)
    vectors = PANEL // lanes
    with k.loop(*k.part_range((panels + (wide - 1)) // wide)) as block:
        numbers = [k.minimum(block * wide + j, panels - 1) for j in range(wide)]
        starts = [weight.at(number * groups * PANEL) for number in numbers]
        with k.loop(0, rows, height) as top:
            lines = [k.minimum(top + i, rows - 1) for i in range(height)]
            sums = [
                [k.variable(0, vector(I32, lanes)) for _ in range(wide * vectors)]
                for _ in range(height + (way == VNNI))
            ]
            with k.loop(0, groups) as group:
                factors = [
                    start.load(group * PANEL + v * lanes, lanes)
                    for start in starts
                    for v in range(vectors)
                ]
                given = [k.splat(inputs.load(line * groups + group), lanes) for line in lines]
                if way == VNNI:
                    # The sums of weights, times 128.
                    given.append(k.constant(-0x7F7F7F80, vector(I32, lanes)))
                for totals, left in zip(sums, given, strict=True):
                    for total, right in zip(totals, factors, strict=True):
                        add_products(k, total, left, right, way)
            shifts = sums.pop() if way == VNNI else None
            for line, totals in zip(lines, sums, strict=True):
                step, goal = steps.load(line), out.at(line * columns)
                for n, total in enumerate(totals):
                    place = numbers[n // vectors] * PANEL + n % vectors * lanes
                    found = total.value - shifts[n].value if shifts else total.value
                    number = k.convert(found, F32) * step * scale.load(place, lanes)
                    number = number if bias is None else number + bias.load(place, lanes)
                    _write(k, goal, place, number, columns)


def _write(
    k: Emitter, goal: Pointer, place: RegisterValue, number: RegisterValue, columns: RegisterValue
) -> None:
    """Store a vector of a row, of which the last may extend beyond the columns."""
    with k.if_else(place + number.lanes <= columns) as (whole, part):
        with whole:
            goal.store(place, number)
        with part, k.if_then(place < columns):
            aside = k.alloca(F32, number.lanes)
            aside.store(0, number)
            copy_elements(k, goal.at(place), aside, columns - place, number.lanes)


def _bind(call: Call) -> Runner:
    x, weight, scale, *bias = call.inputs
    (out,) = call.outputs
    (rows, length), attrs = x.shape, call.node.attrs
    if out.size == 0:
        return NativeRunner([])
    panels, groups = weight.shape[:2]
    scratch, calls = Scratch(call.workspace), list[NativeCall]()
    x, weight, scale, *bias = (contiguous(each, scratch, calls) for each in call.inputs)
    way, width, step = instructions(), groups * GROUP, attrs["step"]
    bytes_, steps = dense((rows, width), uint8, scratch), dense((rows,), float32, scratch)
    goal = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
    lanes = min(PANEL, host_target().width // 4)
    parts = parts_for(2 * out.size * length // _WORK)
    calls.append(
        _to_bytes.call(
            x=x,
            bytes_=bytes_,
            steps=steps,
            rows=rows,
            length=length,
            width=width,
            step=step or 1.0,
            is_fixed=step is not None,
            offset=128 if way == VNNI else 0,
            parts=min(rows, parts),
        )
    )
    tile = _tile(rows, panels, lanes)
    calls.append(
        _multiply.call(
            bytes_=bytes_,
            steps=steps,
            weight=weight,
            scale=scale,
            bias=bias[0] if bias else None,
            out=goal,
            rows=rows,
            columns=out.shape[1],
            panels=panels,
            groups=groups,
            way=way,
            lanes=lanes,
            tile=tile,
            parts=min(parts, -(-panels // tile[1])),
        )
    )
    return NativeRunner(calls if goal is out else [*calls, *copied(goal, out)])


def _tile(rows: int, panels: int, lanes: int) -> tuple[int, int]:
    """Rows and panels whose sums fit into the registers, with the weights of a step."""
    vectors = PANEL // lanes
    room = host_target().registers - 2
    wide = max(1, min(panels, 4, room // (3 * vectors)))
    # Weights, and sums of weights, need the registers of two more rows.
    highest = max(1, room // (wide * vectors) - 2)
    return min(range(1, highest + 1), key=lambda height: (-(-rows // height), height)), wide


def _workspace(node: Node) -> int:
    rows, length = node.inputs[0].shape
    width = -(-length // GROUP) * GROUP
    copies = (node.inputs[0].spec, Spec((rows, width), uint8), Spec((rows,), float32))
    return sum(map(workspace_bytes, copies))


def _supports(node: Node) -> bool:
    return 0 < node.inputs[0].shape[1] <= LONGEST


offer("int8_linear", "bytes", _bind, _supports, _workspace, priority=10)
