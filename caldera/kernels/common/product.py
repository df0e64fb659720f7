"""A product of matrices as arrays, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.config import settings
from caldera.graph.node import Node
from caldera.kernels.table import Array, Call
from caldera.tensor.shape import Shape, size

WORTH_SPLITTING = 400_000
"""Operations a part has at least: about ten microseconds."""
IN_CACHE = 1 << 17
"""Elements of a block that is finished while it is in cache."""
COLUMN_GRAIN, ROW_GRAIN = 8, 4
"""Widths of blocks are multiples of what the kernels of a BLAS take at once."""
FEWEST_ROWS = 128
"""Blocks of fewer rows would have the BLAS rearrange its other operand too often."""


@dataclass(frozen=True)
class Product:
    """out = left @ right as arrays, the transposes that the node asks for already made."""

    left: Array
    right: Array
    out: Array

    @classmethod
    def of(cls, call: Call, left: Array, right: Array) -> Product:
        """The product that a call computes, with as few batch axes as possible."""
        attrs = call.node.attrs
        left = left.swapaxes(-1, -2) if attrs["ta"] else left
        right = right.swapaxes(-1, -2) if attrs["tb"] else right
        return cls(left, right, call.outputs[0])._flattened()

    def _flattened(self) -> Product:
        """Matrices that all meet the same one on the right are one tall matrix."""
        shared = not any(
            stride
            for n, stride in zip(self.right.shape[:-2], self.right.strides, strict=False)
            if n > 1
        )
        if self.out.ndim == 2 or not shared or self.left.ndim != self.out.ndim:
            return self
        rows = size(self.out.shape[:-1])
        try:
            left = self.left.reshape(rows, self.left.shape[-1], copy=False)
            out = self.out.reshape(rows, self.out.shape[-1], copy=False)
        except ValueError:
            return self
        return Product(left, self.right[(0,) * (self.right.ndim - 2)], out)

    @property
    def batch(self) -> Shape:
        """The axes before the matrices'."""
        shape: Shape = self.out.shape[:-2]
        return shape

    @property
    def extent(self) -> tuple[int, int, int]:
        """Rows, columns, and the length of each sum."""
        rows, columns = self.out.shape[-2:]
        return rows, columns, self.left.shape[-1]

    @property
    def work(self) -> int:
        """Operations of the whole batch."""
        return 2 * self.out.size * self.left.shape[-1]


def extent_of(node: Node) -> tuple[int, int, int, int]:
    """How many products a node computes, and rows, columns and length of each."""
    rows, columns = node.shape[-2:]
    length = node.inputs[0].shape[-2 if node.attrs["ta"] else -1]
    return size(node.shape[:-2]), rows, columns, length


# --- how the work is cut


def blocks(count: int, rows: int, columns: int, parts: int, *, finish: bool) -> tuple[int, int]:
    """Rows and columns of the blocks into which each of `count` products is cut.

    Of the grids with as many blocks as needed, that with the blocks closest to squares: they read
    least.
    """
    each = -(-parts // max(count, 1))
    shapes = [
        (_rounded(rows, down, ROW_GRAIN), _rounded(columns, each // down, COLUMN_GRAIN))
        for down in range(1, each + 1)
        if each % down == 0
    ]
    height, width = min(shapes, key=sum)
    if finish:
        height = min(height, max(FEWEST_ROWS, IN_CACHE // width))
    return height, width


def _rounded(length: int, pieces: int, grain: int) -> int:
    return length if pieces == 1 else -(-length // (pieces * grain)) * grain


def parts_for(work: int) -> int:
    """How many threads pay for this many operations."""
    return max(1, min(settings.threads, work // WORTH_SPLITTING))
