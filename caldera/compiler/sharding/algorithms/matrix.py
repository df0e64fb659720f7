"""A matrix that ranks have parts of, for algorithms that are made of others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.comm import Communicator
from caldera.compiler.sharding.algorithms import product_variants
from caldera.compiler.sharding.algorithms.process_grid import (
    ProcessGrid,
    even_cuts,
    grid_shapes,
    process_grid,
)
from caldera.compiler.sharding.algorithms.qr import qr as qr_on_grid
from caldera.compiler.sharding.algorithms.tsqr import tsqr
from caldera.compiler.sharding.algorithms.variant import choose, cyclic_layout, rows_layout
from caldera.compiler.sharding.layout import CartesianLayout, Layout, replicated
from caldera.compiler.sharding.transfer import redistributed
from caldera.compiler.sharding.volume import Links

BLOCK = 64
"""How wide panels are, unless another width was chosen."""


@dataclass(frozen=True)
class Matrix:
    """This rank's part, and the layout of the whole."""

    part: np.ndarray
    layout: Layout
    comm: Communicator

    @property
    def shape(self) -> tuple[int, int]:
        """That of the whole matrix."""
        m, n = self.layout.shape
        return m, n

    @property
    def adjoint(self) -> Matrix:
        """The conjugate transpose; nothing moves."""
        return Matrix(self.part.conj().T, self.layout.transposed((1, 0)), self.comm)

    def to(self, layout: Layout) -> Matrix:
        """The same matrix in another layout."""
        if layout == self.layout:
            return self
        moved = redistributed(self.part, self.layout, layout, self.comm, rank=self.comm.rank)
        return Matrix(moved, layout, self.comm)

    def hermitian(self, layout: Layout) -> Matrix:
        """(A + Aᴴ) / 2 in a layout."""
        other = self.to(layout.transposed((1, 0))).adjoint
        half = self.part.dtype.type(0.5)
        return Matrix((self.to(layout).part + other.part) * half, layout, self.comm)


def multiply(a: Matrix, b: Matrix) -> Matrix:
    """The product, by the way that costs least."""
    given, size = (a.layout, b.layout), a.part.itemsize
    variants = product_variants.product_variants(
        a.shape, b.shape, (False, False), given, a.comm.size, size
    )
    variant = choose(variants, given, size, Links()).variant
    parts = [each.to(where).part for each, where in zip((a, b), variant.inputs, strict=True)]
    (made,) = product_variants.run_matmul(
        parts, variant.inputs, variant.outputs, variant.options, a.comm
    )
    return Matrix(made, variant.outputs[0], a.comm)


def factorisation_grid(ranks: int) -> tuple[int, int]:
    """The squarest grid, with fewer rows than columns: panels are factorised down a column."""
    return grid_shapes(ranks)[0]


def block_size(n: int, ranks: int, widest: int = BLOCK) -> int:
    """Of a block-cyclic matrix: small enough that all ranks have several blocks."""
    return max(1, min(widest, n // (2 * max(factorisation_grid(ranks)))))


def grid_of(comm: Communicator) -> ProcessGrid:
    """The ranks as a grid for factorisations."""
    return process_grid(comm, *factorisation_grid(comm.size))


def is_tall(shape: tuple[int, int], ranks: int) -> bool:
    """Whether every rank can have as many rows as there are columns."""
    return shape[0] >= shape[1] * ranks


def qr_layouts(
    shape: tuple[int, int], ranks: int, widest: int = BLOCK
) -> tuple[CartesianLayout, ...]:
    """Where a matrix must be to be factorised, and where Q and R will be."""
    (m, n), k = shape, min(shape)
    if is_tall(shape, ranks):
        rows = even_cuts(m, ranks)
        return (
            rows_layout((m, n), rows),
            rows_layout((m, k), rows),
            replicated((k, n), range(ranks)),
        )
    block, grid = block_size(k, ranks, widest), factorisation_grid(ranks)
    return tuple(cyclic_layout(each, block, grid) for each in ((m, n), (m, k), (k, n)))


def qr(a: Matrix, widest: int = BLOCK) -> tuple[Matrix, Matrix]:
    """Q and R, by TSQR if the matrix is tall, else on a grid."""
    ranks, comm = a.comm.size, a.comm
    given, of_q, of_r = qr_layouts(a.shape, ranks, widest)
    part = a.to(given).part
    if is_tall(a.shape, ranks):
        q, r = tsqr(part, comm)
    else:
        q, r = qr_on_grid(part, a.shape, block_size(min(a.shape), ranks, widest), grid_of(comm))
    return Matrix(q, of_q, comm), Matrix(r, of_r, comm)
