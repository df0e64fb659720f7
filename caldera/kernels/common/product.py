"""Matrix products, batches of matrices by offset and stride, and fused epilogues.

An epilogue adds a bias and applies an activation while a block of the result is still at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.graph.ops.epilogue import Attributes
from caldera.core.tensor.shape import Shape, size
from caldera.kernels.table import Array, Call


@dataclass(frozen=True)
class ProductArrays:
    """Arrays of out = left @ right, already transposed as the node requires."""

    left: Array
    right: Array
    out: Array

    @classmethod
    def of(cls, call: Call, left: Array, right: Array) -> ProductArrays:
        """Return the product that a call computes, with the fewest possible batch axes."""
        attrs = call.node.attrs
        left = left.swapaxes(-1, -2) if attrs["ta"] else left
        right = right.swapaxes(-1, -2) if attrs["tb"] else right
        out = call.outputs[0]
        batch = zip(right.shape[:-2], right.strides, strict=False)
        is_shared = not any(stride for n, stride in batch if n > 1)
        if out.ndim == 2 or not is_shared or left.ndim != out.ndim:
            return cls(left, right, out)
        # Matrices that all meet the same one on the right are one tall matrix.
        rows = size(out.shape[:-1])
        try:
            tall = left.reshape(rows, left.shape[-1], copy=False)
            wide = out.reshape(rows, out.shape[-1], copy=False)
        except ValueError:
            return cls(left, right, out)
        return cls(tall, right[(0,) * (right.ndim - 2)], wide)

    @property
    def batch(self) -> Shape:
        """The axes before the matrices'."""
        return self.out.shape[:-2]

    @property
    def extent(self) -> tuple[int, int, int]:
        """Rows, columns, and the length of each sum."""
        rows, columns = self.out.shape[-2:]
        return rows, columns, self.left.shape[-1]

    @property
    def work(self) -> int:
        """Operations of the whole batch."""
        return 2 * self.out.size * self.left.shape[-1]


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices: `leading` is the distance between rows (columns, if `transposed`)."""

    array: Array
    leading: int
    transposed: bool


def offsets_of(array: Array, batch: Shape) -> np.ndarray:
    """Return the offset in elements of each matrix of an array broadcast to this batch."""
    whole = np.broadcast_to(array, (*batch, *array.shape[-2:]))
    found = np.zeros((), np.int64)
    for n, stride in zip(batch, whole.strides, strict=False):
        found = np.add.outer(found, np.arange(n) * (stride // array.itemsize))
    return found.ravel()


def steps(array: Array) -> tuple[int, int]:
    """Return the distances between rows and between columns, in elements."""
    down, right = array.strides[-2:]
    return down // array.itemsize, right // array.itemsize


def as_matrices(array: Array) -> Matrices | None:
    """Return the array as it lies; None if BLAS cannot take it so."""
    rows, columns = array.shape[-2:]
    down, right = steps(array)
    # The stride of an axis of length 1 is meaningless.
    if (right == 1 or columns <= 1) and (down >= max(columns, 1) or rows <= 1):
        return Matrices(array, down if rows > 1 else max(columns, 1), transposed=False)
    if (down == 1 or rows <= 1) and (right >= max(rows, 1) or columns <= 1):
        return Matrices(array, right if columns > 1 else max(rows, 1), transposed=True)
    return None


@dataclass(frozen=True)
class Epilogue:
    """A bias along the columns or none, then an activation or none."""

    bias: bool = False
    activation: str | None = None
    attributes: Attributes = ()

    @classmethod
    def of(cls, node: Node) -> Epilogue:
        """Return the epilogue of a `matmul_epilogue` node."""
        attrs = node.attrs
        return cls(len(node.inputs) > 2, attrs["activation"], attrs["attributes"])

    @property
    def changes(self) -> bool:
        """True if there is a bias or an activation."""
        return self.bias or self.activation is not None


NOTHING = Epilogue()
"""Neither a bias nor an activation."""
