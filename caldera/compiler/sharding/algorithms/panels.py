"""Panel factorisations on a grid of ranks: distributed matrices, panel messages and costs.

A rank sends rows of a panel to several ranks while these continue other work. `RowMessages` sends
each receiver its rows. With shared memory, no rank waits until a busy sender returns to its
messages: with `Posting` the sender leaves the panel in shared memory and sends its address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator, Request
from caldera.comm.algorithms.shared_post import post_bytes, shared_post
from caldera.compiler.sharding.algorithms import product_variants
from caldera.compiler.sharding.algorithms.process_grid import (
    ProcessGrid,
    even_cuts,
    grid_shapes,
    process_grid,
)
from caldera.compiler.sharding.algorithms.qr import qr as qr_on_grid
from caldera.compiler.sharding.algorithms.qr import tsqr
from caldera.compiler.sharding.algorithms.variant import (
    AlgorithmCost,
    axis_layout,
    choose,
    cyclic_layout,
)
from caldera.compiler.sharding.layout import CartesianLayout, ShardLayout, replicated
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import Links
from caldera.core.graph.node import Node

BLOCK = 64
"""Default width of panels."""


@dataclass(frozen=True)
class LocalMatrix:
    """This rank's part, and the layout of the whole."""

    part: np.ndarray
    layout: ShardLayout
    comm: Communicator

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the whole matrix."""
        m, n = self.layout.shape
        return m, n

    @property
    def adjoint(self) -> LocalMatrix:
        """Conjugate transpose, without communication."""
        return LocalMatrix(self.part.conj().T, self.layout.transposed((1, 0)), self.comm)

    def to(self, layout: ShardLayout) -> LocalMatrix:
        """Redistribute the matrix to another layout."""
        if layout == self.layout:
            return self
        moved = redistributed(self.part, self.layout, layout, self.comm, rank=self.comm.rank)
        return LocalMatrix(moved, layout, self.comm)

    def hermitian(self, layout: ShardLayout) -> LocalMatrix:
        """(A + Aᴴ) / 2 in a layout."""
        other = self.to(layout.transposed((1, 0))).adjoint
        half = self.part.dtype.type(0.5)
        return LocalMatrix((self.to(layout).part + other.part) * half, layout, self.comm)


def multiply(a: LocalMatrix, b: LocalMatrix) -> LocalMatrix:
    """Return the product, by the cheapest algorithm."""
    given, size = (a.layout, b.layout), a.part.itemsize
    variants = product_variants.product_variants(
        a.shape, b.shape, (False, False), given, a.comm.size, size
    )
    variant = choose(variants, given, size, Links())
    parts = [each.to(where).part for each, where in zip((a, b), variant.inputs, strict=True)]
    (made,) = product_variants.run_matmul(
        parts, variant.inputs, variant.outputs, variant.options, a.comm
    )
    return LocalMatrix(made, variant.outputs[0], a.comm)


def factorisation_grid(ranks: int) -> tuple[int, int]:
    """The squarest grid, with fewer rows than columns: panels are factorised down a column."""
    return grid_shapes(ranks)[0]


def block_size(n: int, ranks: int, widest: int = BLOCK) -> int:
    """Return the block size of a block-cyclic matrix, so that every rank has several blocks."""
    return max(1, min(widest, n // (2 * max(factorisation_grid(ranks)))))


def grid_of(comm: Communicator) -> ProcessGrid:
    """Return the ranks as a grid for factorisations."""
    return process_grid(comm, *factorisation_grid(comm.size))


def is_tall(shape: tuple[int, int], ranks: int) -> bool:
    """Return True if every rank can have n rows of a matrix with n columns."""
    return shape[0] >= shape[1] * ranks


def qr_layouts(
    shape: tuple[int, int], ranks: int, widest: int = BLOCK
) -> tuple[CartesianLayout, ...]:
    """Return the layouts that a QR requires of its matrix, and the layouts of Q and R."""
    (m, n), k = shape, min(shape)
    if is_tall(shape, ranks):
        rows = even_cuts(m, ranks)
        return (
            axis_layout((m, n), 0, rows),
            axis_layout((m, k), 0, rows),
            replicated((k, n), range(ranks)),
        )
    block, grid = block_size(k, ranks, widest), factorisation_grid(ranks)
    return tuple(cyclic_layout(each, block, grid) for each in ((m, n), (m, k), (k, n)))


def qr(a: LocalMatrix, widest: int = BLOCK) -> tuple[LocalMatrix, LocalMatrix]:
    """Q and R, by TSQR if the matrix is tall, else on a grid."""
    ranks, comm = a.comm.size, a.comm
    given, of_q, of_r = qr_layouts(a.shape, ranks, widest)
    part = a.to(given).part
    if is_tall(a.shape, ranks):
        q, r = tsqr(part, comm)
    else:
        q, r = qr_on_grid(part, a.shape, block_size(min(a.shape), ranks, widest), grid_of(comm))
    return LocalMatrix(q, of_q, comm), LocalMatrix(r, of_r, comm)


Places = slice | np.ndarray
"""Selection of indices along the first axis."""
ALL, NONE = slice(None), slice(0, 0)
Arriving = Callable[[], np.ndarray]
"""Function that waits for a message and returns its array."""


class RowMessages:
    """Messages with rows of arrays, only those that each receiver needs."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._leaving: list[Request] = []

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return memory for an array to send."""
        return np.empty(shape, dtype)

    def send(self, array: np.ndarray, places: Places, rank: int, tag: int) -> None:
        """Send some rows of an array that `place` has made, which is not changed any more."""
        self._leaving.append(self._comm.Isend(np.ascontiguousarray(array[places]), rank, tag))

    def receive(
        self, shape: tuple[int, ...], dtype: np.dtype, places: Places, rank: int, tag: int
    ) -> Arriving:
        """Start to receive the rows `places` of an array of this shape."""
        count = shape[0] if isinstance(places, slice) else len(places)
        rows = np.empty((count, *shape[1:]), dtype)
        request = self._comm.Irecv(rows, rank, tag)

        def arrived() -> np.ndarray:
            request.wait()
            return rows

        return arrived

    def finish(self) -> None:
        """Wait until all messages have been sent."""
        for request in self._leaving:
            request.wait()
        self._leaving.clear()


class Posting(RowMessages):
    """Row messages through shared memory, read in place.

    The arrays remain valid until all ranks have synchronised after `finish`.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self._post = shared_post(comm)
        self._post.clear()
        self._sent = 0

    def place(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return shared memory for an array that other ranks will read."""
        return self._post.place(shape, dtype)

    def send(self, array: np.ndarray, places: Places, rank: int, tag: int) -> None:
        """Post the address of an array; the rows read by the receiver count as sent."""
        rows = len(array) if isinstance(places, slice) else len(places)
        self._sent += array.nbytes // max(len(array), 1) * rows
        self._leaving.append(self._post.tell(array, rank, tag))

    def receive(
        self, shape: tuple[int, ...], dtype: np.dtype, places: Places, rank: int, tag: int
    ) -> Arriving:
        """Return the rows `places` of an array, in place if they are contiguous."""
        arriving = self._post.listen(rank, tag)
        return lambda: self._post.read(arriving, rank, shape, dtype)[places]

    def finish(self) -> None:
        """Publish the number of messages, and wait until all have been sent."""
        self._post.count(len(self._leaving), self._sent)
        super().finish()


def carrier(comm: Communicator, most_bytes: int) -> RowMessages:
    """Return the fastest usable `RowMessages`; a collective call.

    `most_bytes` is the total size of the arrays on the rank that sends most.
    """
    if comm.size > 1 and comm.shares_memory and most_bytes <= post_bytes(comm.size):
        return Posting(comm)
    return RowMessages(comm)


Size = tuple[int, int]
PANELS = {
    "cholesky": ("cholesky", 1.7, 1.0),
    "slogdet": ("solve", 7.3, 0.45),
    "solve": ("solve", 7.3, 1.0),
    "inverse": ("solve", 7.3, 1.0),
}
QR_PANELS = ("qr", 7, 1.0)
"""Cost of panels by op: measured factorisation, operations and calls; QR for other ops.

The first is the factorisation whose measured messages and calls are used. The second is the number
of operations for each element and column of a panel, which are much slower than operations of
products. The third is the number of those messages and calls, relative to the measured one.
"""
AVERAGING = 21
"""Cost of Cholesky's work per element of a matrix, in units of reading the element.

Most of this work makes the matrix symmetric, which traverses memory across rows.
"""


def shape_of(node: Node) -> Size:
    """Return the shape of the first input matrix of a node."""
    m, n = node.inputs[0].shape
    return m, n


def grid_cost(node: Node, ranks: int, block: int) -> AlgorithmCost:
    """Return the cost of a factorisation on the grid.

    Panels of half a matrix are sent along rows and columns of the grid, for each input. The panels
    themselves are factorised by one column of the grid while the remaining columns wait.
    """
    rows, columns = factorisation_grid(ranks)
    elements = sum(each.spec.size for each in node.inputs)
    (m, n), itemsize = node.inputs[0].shape, node.inputs[0].dtype.itemsize
    k = min(m, n)
    like, slower, calls = PANELS.get(node.op.name, QR_PANELS)
    work = AlgorithmCost(
        # Even if ranks of a column share a panel, the remaining ranks wait as long as for the whole
        # panel.
        flops=int(slower * m * k * block) + node.op.count_flops(node) // ranks,
        copied=int(_updated(node) / block + elements * AVERAGING * (like == "cholesky"))
        * itemsize
        // ranks,
        panels=((like, calls * -(-k // block)),),
    )
    if ranks == 1:
        return work
    if like == "qr":
        # Panels gathered down a column and sent along rows, and sums of products with them, once
        # for R and once for Q.
        reflections = (m - k / 2 + block / 2) * (rows + columns - 2) / rows
        sums = 2 * (rows - 1) / rows * n
        sent = (reflections + block * (columns - 1) + sums) * k / columns
        return work + AlgorithmCost(int(sent * itemsize))
    if like == "solve":
        return work + _lu_bytes(n, _right_sides(node), (rows, columns), itemsize)
    # One column of the grid after another sends its panel while the remaining columns wait for it.
    panels = n * n * (rows + columns - 2) / (2 * rows)
    averaging = n * n * (ranks - 1) / (2 * ranks * ranks)
    sent = panels / columns + averaging
    others = panels - panels / columns
    read = n * n / 2 * (1 / rows + 1 / columns)
    is_left = n * n / ranks + 3 * block * n / rows <= post_bytes(ranks) / itemsize
    return work + AlgorithmCost(
        int(sent * itemsize),
        awaited=int(others * itemsize),
        copied=int(read * itemsize),
        posted=int((sent + others) * itemsize) if is_left else 0,
    )


def _lu_bytes(n: int, sides: int, grid: Size, itemsize: int) -> AlgorithmCost:
    """Return the communication cost of LU and of solving with it.

    L and U are sent along the rows of the grid, for the factors and for both triangles of the
    solution. U and twice the solution are sent down its columns. In addition, panels are gathered
    and rows are exchanged. Ranks outside the column of a panel of L wait for it.
    """
    rows, columns = grid
    along, solved = n * n * (columns - 1) / 2, bool(sides)
    down = n * (n + 2 * sides) * (rows - 1)
    places = 2 * n * (n + sides) * (rows - 1) / rows
    sent = (along * (1 + 2 * solved) + down + places) / (rows * columns)
    return AlgorithmCost(
        int(sent * itemsize), awaited=int(along * (columns - 1) / (rows * columns) * itemsize)
    )


def _right_sides(node: Node) -> int:
    """Return the number of right-hand sides."""
    return {"solve": node.inputs[-1].shape[-1], "inverse": shape_of(node)[1]}.get(node.op.name, 0)


def _updated(node: Node) -> float:
    """Return the number of elements behind the panels that products read and write.

    It is the sum over all panels, each one column wide; products with a narrow panel consist of
    these.
    """
    m, n = shape_of(node)
    k = min(m, n)
    if node.op.name == "cholesky":
        return n**3 / 3
    if node.op.name in ("solve", "inverse", "slogdet"):
        return 2 * (n**3 / 3 + n * n * _right_sides(node))
    # Read twice and written once, for R and for Q.
    return 3 * sum(m * c * k - (m + c) * k * k / 2 + k**3 / 3 for c in (n, k))


def tsqr_cost(node: Node, ranks: int) -> AlgorithmCost:
    """Of a rank's own rows, and of triangles up the tree and down again."""
    (m, n), levels = shape_of(node), (ranks - 1).bit_length()
    triangle = n * n * node.inputs[0].dtype.itemsize
    # LAPACK is slower than products, the more so the fewer columns there are.
    slower = 2.4 + 100 / max(n, 1)
    # Up the tree fewer and fewer ranks compute, each a little faster for it.
    flops = int(slower * (4 * (m // ranks) * n * n + levels * 7 * n**3))
    return AlgorithmCost(2 * levels * triangle, 3 * levels, flops, overhead=levels * 1e-4)
