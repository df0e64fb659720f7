"""Samples as they are stored, with all that makes batches of them: for devices that do it there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.data._base import Arrays
from caldera.data.draw import LazyDraw
from caldera.data.transform import Compose
from caldera.lazy import Expr
from caldera.tensor.dtype import float32, uint8


@dataclass(frozen=True)
class Stored:
    """The arrays of `ArrayData` (of them, the `rows` of a subset), and what becomes of x.

    >>> import numpy as np
    >>> from caldera import data, op
    >>> stored = data.ArrayData(np.array([51], np.uint8)).stored()
    >>> x = stored.finished(op.input("x", (1,), "uint8"), draw=None)
    >>> x.eval(x=stored.samples()[0]).tolist()
    [0.20000000298023224]
    """

    arrays: Arrays
    rows: NDArray[np.int64] | None
    transform: Compose | None
    scale: float | None

    def __len__(self) -> int:
        return len(self.arrays[0] if self.rows is None else self.rows)

    def samples(self) -> Arrays:
        """All samples; those of a subset are gathered, so that nobody need hold the others."""
        if self.rows is None:
            return self.arrays
        return tuple(array[self.rows] for array in self.arrays)

    def finished(self, x: Expr, draw: LazyDraw) -> Expr | None:
        """A batch of x as it leaves the pipeline; None if only the host can make it."""
        if self.transform is not None:
            changed = self.transform.lazily(x, draw)
            if changed is None:
                return None
            x = changed
        if self.scale is not None and x.dtype == uint8:
            return op.cast(x, float32) / self.scale
        return x
