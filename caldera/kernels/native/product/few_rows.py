"""Products of a few rows with a large matrix, such as a dense layer on a single sample.

Each element of the matrix is read once, so the speed of memory decides. A tile of the result in
registers would read a few cache lines from each row of the matrix, and each row is in another page.
Here the sums are in the nearest cache, and a strip of several rows of the matrix is read at a time,
in the order that processors prefetch. Of a transposed matrix, several columns are read at a time,
each along its length.
"""

from __future__ import annotations

from operator import add

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor import size
from caldera.kernels.common.binding import Scratch
from caldera.kernels.common.product import Epilogue, ProductArrays, offsets_of, steps
from caldera.kernels.native.codegen import (
    ElementPointer,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Number,
    Pointer,
    computed_type,
    itemsize,
    load_wide,
    native_kernel,
    natural_lanes,
    offer,
    vector,
)
from caldera.kernels.native.product.gemm import epilogue_of
from caldera.kernels.native.product.problem import (
    apply_epilogue,
    copied,
    copy_workspace,
    dense,
    extent_of,
    parts_for,
)
from caldera.kernels.table import Call, Runner

MOST_ROWS = 3
"""With more rows, packing the matrix takes less time than reading all sums again and again."""
LEAST_WORK = 1 << 17
"""Number of operations below which the matrix is in a near cache."""
STRIP = 1024
"""Maximum number of columns of a strip, whose sums stay in the first cache."""
COLUMNS = 4
"""Columns of a transposed matrix that are read at a time."""
_GRAIN = 64
"""Granularity of strips: whole cache lines of every dtype."""


@native_kernel
def _multiply(
    k: Emitter,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: ElementPointer,
    a_down: Integer,
    a_right: Integer,
    b_down: Integer,
    c_down: Integer,
    count: Integer,
    columns: Integer,
    length: Integer,
    width: Integer,
    bias: Pointer | None,
    epilogue: Epilogue,
    rows: int,
) -> None:
    """Compute products in strips; each row of the table has the offsets of a product's matrices."""
    kind = computed_type(c.name)
    lanes, depth = natural_lanes(kind), 8 if rows == 1 else 4
    across = (columns + (width - 1)) // width
    sums = [k.alloca(kind, STRIP) for _ in range(rows)]
    with k.loop(*k.part_range(count * across)) as task:
        product, left = table.at(task // across * 3), task % across * width
        wide = k.minimum(width, columns - left)
        x, matrix = a.at(product.load(0)), b.at(product.load(1) + left)
        for row in sums:
            k.clear_bytes(row, wide * itemsize(kind))

        def add_terms(first: Number, terms: int) -> None:
            numbers = [first + term for term in range(terms)]
            lines = [matrix.at(number * b_down) for number in numbers]
            scales = [
                [load_wide(k, x.at(row * a_down), n * a_right, 1, c.name) for n in numbers]
                for row in (k.constant(row, a_down.type) for row in range(rows))
            ]
            for place, many in k.vectors(0, wide, lanes, 1):
                factors = [load_wide(k, line, place, many, c.name) for line in lines]
                for row, own in zip(sums, scales, strict=True):
                    total = row.load(place, many)
                    for scale, factor in zip(own, factors, strict=True):
                        total = k.fma(scale, factor, total)
                    row.store(place, total)

        whole = length // depth * depth
        with k.loop(0, whole, depth) as first:
            add_terms(first, depth)
        with k.loop(whole, length) as first:
            add_terms(first, 1)
        for number, row in enumerate(sums):
            goal = c.at(product.load(2) + c_down * number + left)
            for place, many in k.vectors(0, wide, lanes, 1):
                total = row.load(place, many)
                goal.store(place, apply_epilogue(k, epilogue, bias, total, left + place))


@native_kernel
def _multiply_along(
    k: Emitter,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: ElementPointer,
    a_down: Integer,
    b_right: Integer,
    c_down: Integer,
    count: Integer,
    columns: Integer,
    length: Integer,
    bias: Pointer | None,
    epilogue: Epilogue,
    rows: int,
) -> None:
    """Compute products with a matrix whose columns are contiguous, as dot products."""
    kind = computed_type(c.name)
    lanes = natural_lanes(kind)
    across = (columns + (COLUMNS - 1)) // COLUMNS
    with k.loop(*k.part_range(count * across)) as task:
        product, left = table.at(task // across * 3), task % across * COLUMNS
        x, goal = a.at(product.load(0)), c.at(product.load(2) + left)
        # Where fewer columns are left, the last one is computed several times.
        places = [k.minimum(left + n, columns - 1) for n in range(COLUMNS)]
        lines = [b.at(product.load(1) + place * b_right) for place in places]
        sums = [[k.variable(0.0, kind) for _ in lines] for _ in range(rows)]
        wide = [[k.variable(0.0, vector(kind, lanes)) for _ in lines] for _ in range(rows)]
        for place, many in k.vectors(0, length, lanes, 1):
            factors = [load_wide(k, line, place, many, c.name) for line in lines]
            for row, totals in enumerate(wide if many > 1 else sums):
                scale = load_wide(k, x.at(a_down * row), place, many, c.name)
                for factor, total in zip(factors, totals, strict=True):
                    total.value = k.fma(scale, factor, total.value)
        for row in range(rows):
            for place, total, more in zip(places, sums[row], wide[row], strict=True):
                done = total.value + k.reduce_lanes(more.value, add)
                goal.store(
                    place - left + c_down * row, apply_epilogue(k, epilogue, bias, done, place)
                )


def _bind(call: Call) -> Runner:
    if call.outputs[0].size == 0:
        return NativeRunner([])
    product = ProductArrays.of(call, *call.inputs[:2])
    scratch = Scratch(call.workspace)
    epilogue, bias, calls = epilogue_of(call, scratch)
    left, right, out = product.left, product.right, product.out
    rows, columns, length = product.extent
    is_along = steps(right)[1] != 1 and steps(right)[0] == 1
    if is_along and steps(left)[1] != 1:
        left = dense(left.shape, left.dtype, scratch)
        calls += copied(product.left, left)
    elif not is_along and steps(right)[1] != 1:
        right = dense(right.shape, right.dtype, scratch)
        calls += copied(product.right, right)
    place = out if steps(out)[1] == 1 else np.empty(out.shape, out.dtype)
    table = np.stack([offsets_of(each, product.batch) for each in (left, right, place)], 1)
    parts = parts_for(product.work)
    width = min(STRIP, -(-columns // (parts * _GRAIN)) * _GRAIN)
    a_down, a_right = steps(left)
    b_down, b_right = steps(right)
    how = (
        {"b_right": b_right} if is_along else {"a_right": a_right, "b_down": b_down, "width": width}
    )
    kernel, wide = (_multiply_along, COLUMNS) if is_along else (_multiply, width)
    multiply: NativeCall = kernel.call(
        table=table,
        a=left,
        b=right,
        c=place,
        a_down=a_down,
        c_down=steps(place)[0],
        count=len(table),
        columns=columns,
        length=length,
        bias=bias,
        epilogue=epilogue,
        rows=rows,
        parts=min(parts, len(table) * -(-columns // wide)),
        **how,
    )
    after = [] if place is out else copied(place, out)
    return NativeRunner([*calls, multiply, *after])


def _supports(node: Node) -> bool:
    count, rows, columns, length = extent_of(node)
    # Matrices that all meet the same one on the right are one tall matrix.
    tall = rows if size(node.inputs[1].shape[:-2]) > 1 else count * rows
    worth = 2 * rows * columns * length >= LEAST_WORK
    return tall <= MOST_ROWS and worth


offer(("matmul", "matmul_epilogue"), "few rows", _bind, _supports, copy_workspace, priority=12)
