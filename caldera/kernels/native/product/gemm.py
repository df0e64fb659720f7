"""Matrix products by the BLAS, one thread each, split over the framework's threads.

A product is split into blocks of rows or columns, and a batch into its members. Each part of the
work also applies bias and activation to its blocks while they are in cache. If the result is small
and the sums are long, as in the gradient of a weight, the sums are split instead, and a second call
adds the partial sums.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from caldera.base.threads import thread_count
from caldera.core.graph.node import Node, Spec
from caldera.core.tensor import HALVES, size
from caldera.kernels.common.binding import Scratch, compute_dtype, workspace_bytes
from caldera.kernels.common.product import (
    NOTHING,
    Epilogue,
    Matrices,
    ProductArrays,
    as_matrices,
    offsets_of,
)
from caldera.kernels.native.codegen import (
    MEMORY_TYPES,
    Emitter,
    Integer,
    NativeCall,
    NativeRunner,
    Pointer,
    native_kernel,
    natural_lanes,
    offer,
)
from caldera.kernels.native.codegen.matrix_multiply import blas, gemm
from caldera.kernels.native.product.problem import (
    WORTH_SPLITTING_COPIES,
    apply_epilogue,
    blocks,
    blocks_of_part,
    copied,
    copy_workspace,
    dense,
    extent_of,
    parts_for,
    prepared,
)
from caldera.kernels.table import Array, Call, Runner

Ready = TypeVar("Ready")
Prepared = tuple[Ready, list[NativeCall]]
"""An operand as kernels take it, and the calls that make it so."""

# --- the kernel


@native_kernel
def _multiply(
    k: Emitter,
    address: Integer,
    table: Pointer,
    a: Pointer,
    b: Pointer,
    c: Pointer,
    leading_a: Integer,
    leading_b: Integer,
    leading_c: Integer,
    ta: Integer,
    tb: Integer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    height: Integer,
    width: Integer,
    scales: list[Pointer],
    bias: Pointer | None,
    epilogue: Epilogue,
) -> None:
    """Compute the blocks of this part by the BLAS function at `address`.

    Each row of the table is one product: offsets of its matrices, and length of its sums.
    """
    alpha, beta = k.constant(1.0, c.type), k.constant(0.0, c.type)
    lanes = natural_lanes(c.type)
    if scales:
        alpha, beta = (each.load(0) for each in scales)
    with blocks_of_part(k, table, count, (rows, columns), (height, width)) as part:
        product, top, left = part.product, part.top, part.left
        lines, span = part.bottom - top, part.right - left
        block = c.at(product.load(2) + top * leading_c + left)
        # A BLAS may read operands that it multiplies by 0. With a sum of length 0, it reads none.
        counted = k.select(alpha.equals(0.0), 0, product.load(3)) if scales else product.load(3)
        gemm(
            k,
            address,
            (lines, span, counted),
            (a.at(product.load(0) + k.select(ta.differs(0), top, top * leading_a)), leading_a),
            (b.at(product.load(1) + k.select(tb.differs(0), left * leading_b, left)), leading_b),
            (block, leading_c),
            ta=ta,
            tb=tb,
            alpha=alpha,
            beta=beta,
        )
        if epilogue.changes:
            with k.loop(0, lines) as line:
                row = block.at(line * leading_c)
                for column, some in k.vectors(0, span, 4 * lanes, lanes, 1):
                    value = row.load(column, some)
                    row.store(column, apply_epilogue(k, epilogue, bias, value, left + column))


# --- cut sums


@native_kernel
def _add_up(
    k: Emitter,
    pieces: Pointer,
    out: Pointer,
    count: Integer,
    rows: Integer,
    columns: Integer,
    leading: Integer,
    bias: Pointer | None,
    epilogue: Epilogue,
) -> None:
    """Add the partial sums of all pieces row by row and apply the epilogue."""
    lanes = natural_lanes(out.type)
    with k.loop(*k.part_range(rows)) as row:
        for column, some in k.vectors(0, columns, 4 * lanes, lanes, 1):
            start = row * columns + column
            total = k.variable(pieces.load(start, some))
            with k.loop(1, count) as piece:
                total.value = total.value + pieces.load(piece * rows * columns + start, some)
            done = apply_epilogue(k, epilogue, bias, total.value, column)
            out.store(row * leading + column, done)


def add_pieces(
    pieces: Array, out: Array, leading: int, *, bias: Array, epilogue: Epilogue
) -> NativeCall:
    """Return the call that adds up (pieces, rows, columns)."""
    count, rows, columns = pieces.shape
    return _add_up.call(
        pieces=pieces,
        out=out,
        count=count,
        rows=rows,
        columns=columns,
        leading=leading,
        bias=bias,
        epilogue=epilogue,
        parts=thread_count() if pieces.size >= WORTH_SPLITTING_COPIES else 1,
    )


# --- binding


def dense_bias(array: Array, scratch: Scratch) -> tuple[Array, list[NativeCall]]:
    """Return a bias that is contiguous and in the compute dtype, and the calls that copy it."""
    row = array.reshape(1, -1)
    if row.strides[-1] == row.itemsize and row.dtype not in HALVES:
        return row, []
    copy = dense(row.shape, compute_dtype(row.dtype), scratch)
    return copy, copied(row, copy)


def epilogue_of(call: Call, scratch: Scratch) -> tuple[Epilogue, Array, list[NativeCall]]:
    """Return the epilogue of a call, its bias if any, and the calls that prepare the bias."""
    if call.node.op.name != "matmul_epilogue":
        return NOTHING, None, []
    bias: Array = None
    calls: list[NativeCall] = []
    for array in call.inputs[2:]:
        bias, calls = dense_bias(array, scratch)
    return Epilogue.of(call.node), bias, calls


class Binder:
    """Builder of the calls of a product: copies of operands, the product itself, the epilogue."""

    def __init__(self, call: Call, operands: int = 0) -> None:
        """The product of the call's inputs number `operands` and the next."""
        self.call = call
        self.scratch = Scratch(call.workspace)
        self.product = ProductArrays.of(call, *call.inputs[operands : operands + 2])
        self.calls: list[NativeCall] = []
        self.left = self.ready(self.product.left, prepared)
        self.right = self.ready(self.product.right, prepared)
        self.epilogue, self.bias, calls = epilogue_of(call, self.scratch)
        self.calls += calls
        # A result that lies otherwise is computed elsewhere and copied.
        out = self.product.out
        place = None if out.dtype in HALVES else as_matrices(out)
        if place is None or place.transposed:
            place = as_matrices(dense(out.shape, compute_dtype(out.dtype), self.scratch))
        assert place is not None
        self.place = place

    def ready(self, array: Array, make: Callable[[Array, Scratch], Prepared[Ready]]) -> Ready:
        """Return the operand as prepared by `make`, and record the calls for it."""
        found, calls = make(array, self.scratch)
        self.calls += calls
        return found

    def runner(self) -> Runner:
        """Return the calls that were made, and the copy of the result if it is not in its place."""
        if self.place.array is not self.product.out:
            self.calls += copied(self.place.array, self.product.out)
        return NativeRunner(self.calls)

    def multiply(self, *scales: Array) -> None:
        """The product in blocks of rows or columns; `scales` are alpha and beta."""
        length = self.product.extent[2]
        batch = self.product.batch
        table = np.stack(
            [
                *(offsets_of(each.array, batch) for each in (self.left, self.right, self.place)),
                np.full(size(batch), length),
            ],
            axis=1,
        )
        self.add_products(
            table, self.place, parts_for(self.product.work), scales, self.bias, self.epilogue
        )

    def multiply_split_k(self, most: int | None = None) -> None:
        """Add the calls for a product of two matrices whose sums are split into pieces.

        There is one piece per thread, or at most `most` pieces, each of which threads share in
        blocks.
        """
        rows, columns, length = self.product.extent
        pieces = pieces_of(length, most)
        found = dense((pieces, rows, columns), self.place.array.dtype, self.scratch)
        cuts = np.arange(pieces + 1) * length // pieces
        table = np.stack(
            [
                cuts[:-1] * (self.left.leading if self.left.transposed else 1),
                cuts[:-1] * (1 if self.right.transposed else self.right.leading),
                np.arange(pieces) * rows * columns,
                np.diff(cuts),
            ],
            axis=1,
        )
        goal = as_matrices(found)
        assert goal is not None
        self.add_products(table, goal, max(pieces, parts_for(self.product.work)))
        self.calls.append(
            add_pieces(
                found, self.place.array, self.place.leading, bias=self.bias, epilogue=self.epilogue
            )
        )

    def add_products(
        self,
        table: np.ndarray,
        goal: Matrices,
        parts: int,
        scales: tuple[Array, ...] = (),
        bias: Array = None,
        epilogue: Epilogue = NOTHING,
    ) -> None:
        """Add the call that computes every product of the table in `parts` parts."""
        rows, columns, _ = self.product.extent
        height, width = blocks(len(table), rows, columns, parts, finish=epilogue.changes)
        known = blas()
        assert known is not None
        self.calls.append(
            _multiply.call(
                address=known.gemm(MEMORY_TYPES[goal.array.dtype.name]),
                table=np.ascontiguousarray(table, np.int64),
                a=self.left.array,
                b=self.right.array,
                c=goal.array,
                leading_a=self.left.leading,
                leading_b=self.right.leading,
                leading_c=goal.leading,
                ta=self.left.transposed,
                tb=self.right.transposed,
                count=len(table),
                rows=rows,
                columns=columns,
                height=height,
                width=width,
                scales=scales,
                bias=bias,
                epilogue=epilogue,
                parts=min(parts, len(table) * -(-rows // height) * -(-columns // width)),
            )
        )


def bind_product(
    call: Call, make: type[Binder], multiply: Callable[[Binder], None] = Binder.multiply
) -> Runner:
    """Return a product in blocks, or with its sum cut into pieces: by a method of the binder."""
    if call.outputs[0].size == 0:
        return NativeRunner([])
    binder = make(call)
    multiply(binder)
    return binder.runner()


def pieces_of(length: int, most: int | None = None) -> int:
    """Return the number of pieces into which a sum of this length is split."""
    return max(1, min(most or thread_count(), length))


def bind_accumulate(call: Call, make: type[Binder]) -> Runner:
    """Return a product that is added to a matrix, in its place if it may."""
    if call.outputs[0].size == 0:
        return NativeRunner([])
    binder = make(call, operands=1)
    start, _, _, *scales = call.inputs
    place = binder.place.array
    if start.__array_interface__["data"] != place.__array_interface__["data"]:
        binder.calls += copied(start, place)
    numbers = [binder.ready(scale, dense_bias) for scale in scales]
    binder.multiply(*numbers)
    return binder.runner()


def accumulates_in_place(node: Node) -> bool:
    """Return a matrix that is also a factor must not change while the product is computed."""
    return node.inputs[0] not in node.inputs[1:3]


def has_long_sums(node: Node) -> bool:
    """Return True for a single product with a small result and long sums."""
    count, rows, columns, length = extent_of(node)
    return count == 1 and length >= 2 * max(rows, columns)


def product_workspace(node: Node) -> int:
    """Return the workspace for copies of operands and results that BLAS cannot access in place."""
    return copy_workspace(node) + (
        workspace_bytes(Spec(node.shape, compute_dtype(node.dtype))) if node.dtype in HALVES else 0
    )


def split_k_workspace(node: Node, most: int | None = None) -> int:
    """Return the workspace of a split sum: copies as above, and the partial sums of all pieces."""
    return product_workspace(node) + workspace_bytes(
        Spec((most or thread_count(), *node.shape[-2:]), compute_dtype(node.dtype))
    )


def _has_blas(node: Node) -> bool:
    return blas() is not None


offer(
    ("matmul", "matmul_epilogue"),
    "blas",
    partial(bind_product, make=Binder),
    _has_blas,
    product_workspace,
    priority=10,
)
offer(
    ("matmul", "matmul_epilogue"),
    "blas, sums cut",
    partial(bind_product, make=Binder, multiply=Binder.multiply_split_k),
    lambda node: _has_blas(node) and has_long_sums(node),
    split_k_workspace,
    priority=9,
)
offer(
    "matmul_accumulate",
    "blas",
    partial(bind_accumulate, make=Binder),
    _has_blas,
    product_workspace,
    priority=10,
    in_place=accumulates_in_place,
)
