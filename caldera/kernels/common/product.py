"""A product of matrices as arrays."""

from __future__ import annotations

from dataclasses import dataclass

from caldera.core.tensor.shape import Shape, size
from caldera.kernels.table import Array, Call


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
