"""How two buffers become one: the arithmetic of a reduction, apart from how data moves.

Sums of float16 and bfloat16 are formed in float32 and rounded once: added up in their own format
they would overflow or lose small parts on the way. They are scaled by a power of two before the
sum, which rounds nothing, so that not even the largest bfloat16 overflows before the end.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

_FUNCTIONS = {"sum": np.add, "mean": np.add, "max": np.maximum, "min": np.minimum}
_HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


def combine(target: np.ndarray, other: np.ndarray, op: str) -> None:
    """Take another rank's numbers into `target`.

    >>> import numpy as np
    >>> total = np.array([1.0, 5.0])
    >>> combine(total, np.array([3.0, 2.0]), "max")
    >>> total
    array([3., 5.])
    """
    _FUNCTIONS[op](target, other, out=target)


def must_widen(dtype: np.dtype, op: str) -> bool:
    """Whether a reduction must be done in a wider dtype than that of its buffers.

    >>> import numpy as np
    >>> must_widen(np.dtype("float16"), "sum"), must_widen(np.dtype("float16"), "max")
    (True, False)
    """
    return op in ("sum", "mean") and dtype in _HALVES


def upcast(part: np.ndarray, ranks: int) -> np.ndarray:
    """A rank's float16 or bfloat16 numbers in float32, scaled so that `ranks` of them fit.

    >>> import numpy as np
    >>> upcast(np.array([6.0], np.float16), 3)
    array([1.5], dtype=float32)
    """
    return part.astype(np.float32) * np.float32(0.5 ** (ranks - 1).bit_length())


def downcast(total: np.ndarray, dtype: np.dtype, op: str, ranks: int) -> np.ndarray:
    """The sum or mean of scaled numbers, rounded to the dtype they had.

    >>> import numpy as np
    >>> downcast(np.array([4.5], np.float32), np.dtype(np.float16), "sum", 3)
    array([18.], dtype=float16)
    """
    scale = 2.0 ** (ranks - 1).bit_length()
    total *= np.float32(scale / ranks if op == "mean" else scale)
    with np.errstate(over="ignore"):
        # A sum that is too large for its dtype is an infinity there, as for any other sum.
        return total.astype(dtype)


def finish(total: np.ndarray, op: str, ranks: int) -> None:
    """What remains to be done when all ranks are in `total`."""
    if op == "mean":
        total /= ranks
