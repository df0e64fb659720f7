"""Sparse vectors: places in order, and their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from caldera.base.arguments import refusal
from caldera.errors import ShapeError
from caldera.kernels.native.compression import merge_sorted, not_zero

LONGEST = 2**31 - 1


@dataclass(frozen=True)
class SparseVector:
    """A vector of `length` elements that is zero but at some places.

    `places` are int32 and increase; `values` are float32 or float64.

    >>> import numpy as np
    >>> from caldera.compress.sparse import SparseVector
    >>> x = SparseVector.of(np.array([0.0, 3.0, 0.0, 4.0], np.float32))
    >>> y = SparseVector.of(np.array([0.0, 1.0, 5.0, 0.0], np.float32))
    >>> (x + y).dense()
    array([0., 4., 5., 4.], dtype=float32)
    """

    length: int
    places: np.ndarray
    values: np.ndarray

    def __post_init__(self) -> None:
        for name in ("places", "values"):
            if not isinstance(getattr(self, name), np.ndarray):
                raise refusal("SparseVector", name, "an array", getattr(self, name))
        if self.length > LONGEST or self.places.shape != self.values.shape:
            raise ShapeError.build(
                "SparseVector",
                expected=f"up to {LONGEST} elements, a value for every place",
                got=f"{self.length}, {self.places.shape} and {self.values.shape}",
                hint="exchange fewer parameters at once",
            )

    @classmethod
    def of(cls, dense: np.ndarray, begin: int = 0, length: int | None = None) -> SparseVector:
        """The elements of a vector that are not zero; it may be a part that begins somewhere."""
        places, values = not_zero(dense, begin)
        return cls(dense.size if length is None else length, places, values)

    def __add__(self, other: SparseVector) -> SparseVector:
        places, values = merge_sorted((self.places, self.values), (other.places, other.values))
        return SparseVector(self.length, places, values)

    def span(self, part: tuple[int, int]) -> tuple[int, int]:
        """From where to where among the places lie those of a part."""
        low, high = np.searchsorted(self.places, np.array(part, np.int32))
        return int(low), int(high)

    def dense(self) -> np.ndarray:
        """All elements."""
        whole = np.zeros(self.length, self.values.dtype)
        whole[self.places] = self.values
        return whole
