"""Arithmetic of reductions, and validation of the buffers passed to collectives.

Sums of float16 and bfloat16 are accumulated in float32 and rounded once: in their own format they
would overflow or lose small terms. They are scaled by a power of two before the sum, which is
exact, so that not even the largest bfloat16 overflows before the end.

An invalid buffer raises an error before any data are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import ml_dtypes
import numpy as np

from caldera.base.arguments import refusal
from caldera.core.tensor.dtype import refuse_masked
from caldera.errors import CommError, DtypeError, ShapeError

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
    """Return True if a reduction must use a wider dtype than its buffers have.

    >>> import numpy as np
    >>> must_widen(np.dtype("float16"), "sum"), must_widen(np.dtype("float16"), "max")
    (True, False)
    """
    return op in ("sum", "mean") and dtype in _HALVES


def upcast(part: np.ndarray, ranks: int) -> np.ndarray:
    """Return float16 or bfloat16 values as float32, scaled so that a sum over `ranks` is finite.

    >>> import numpy as np
    >>> upcast(np.array([6.0], np.float16), 3)
    array([1.5], dtype=float32)
    """
    return part.astype(np.float32) * np.float32(0.5 ** (ranks - 1).bit_length())


def downcast(total: np.ndarray, dtype: np.dtype, op: str, ranks: int) -> np.ndarray:
    """Return the sum or mean of scaled numbers, rounded to the dtype they had.

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
    """Apply the final steps of a reduction, such as the division of a mean."""
    if op == "mean":
        total /= ranks


REDUCTIONS = ("sum", "mean", "max", "min")


def check_buffer(where: str, buffer: np.ndarray, *, written: bool = False) -> None:
    """A buffer is a contiguous array, and writable if something is received into it."""
    if not isinstance(buffer, np.ndarray):
        raise DtypeError.build(where, expected="a NumPy array", got=type(buffer).__name__)
    refuse_masked(buffer, where)
    if not buffer.flags.c_contiguous:
        raise ShapeError.build(
            where,
            expected="a contiguous buffer",
            got=f"strides {buffer.strides}",
            hint="use np.ascontiguousarray",
        )
    if buffer.dtype.hasobject:
        raise DtypeError.build(
            where,
            expected="a buffer of numbers",
            got="Python objects",
            hint="gather_objects and bcast_object send values",
        )
    if written and not buffer.flags.writeable:
        raise ShapeError.build(where, expected="a buffer to write to", got="a read-only one")


def check_alike(where: str, send: np.ndarray, receive: np.ndarray) -> None:
    """Check that two buffers have the same dtype and are identical or disjoint memory."""
    if send.dtype != receive.dtype:
        raise DtypeError.build(
            where, expected=f"one dtype, {send.dtype} as it is sent", got=str(receive.dtype)
        )
    if send is not receive and _overlap(send, receive) and not same_memory(send, receive):
        raise CommError.build(
            where, expected="buffers that are identical or do not overlap", got="two that overlap"
        )


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Return True if two contiguous arrays occupy the same bytes."""
    return a is b or (a.nbytes == b.nbytes and _address(a) == _address(b))


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    return _address(a) < _address(b) + b.nbytes and _address(b) < _address(a) + a.nbytes


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def check_size(where: str, what: str, buffer: np.ndarray, elements: int) -> None:
    """Check that a buffer has the number of elements that the operation requires."""
    if buffer.size != elements:
        raise ShapeError.build(
            where, expected=f"{elements} elements in the {what} buffer", got=str(buffer.size)
        )


def check_reduction(where: str, op: str, send: np.ndarray) -> None:
    """A buffer of a dtype that has this known reduction."""
    check_buffer(where, send)
    dtype = send.dtype
    if not isinstance(op, str) or op not in REDUCTIONS:
        raise CommError.build(where, expected="one of " + ", ".join(REDUCTIONS), got=repr(op))
    if dtype == np.bool_ and op in ("sum", "mean"):
        raise DtypeError.build(
            where, expected="numbers", got="bool", hint="cast to an integer to count, or use max"
        )
    if op == "mean" and dtype.kind in "iu":
        raise DtypeError.build(
            where,
            expected="floating-point numbers for a mean",
            got=str(dtype),
            hint="use sum, and divide",
        )
    if op in ("max", "min") and dtype.kind == "c":
        raise DtypeError.build(where, expected="numbers with an order", got=str(dtype))


def checked_counts(
    where: str, counts: Sequence[int] | None, buffer: np.ndarray, ranks: int
) -> list[int]:
    """Return the number of elements per rank; equal parts without `counts`."""
    if counts is None:
        if buffer.size % ranks:
            raise ShapeError.build(
                where,
                expected=f"a multiple of {ranks} elements",
                got=str(buffer.size),
                hint="give the elements of each rank as counts",
            )
        return [buffer.size // ranks] * ranks
    try:
        found = [index(count) for count in counts]
    except TypeError as error:
        raise refusal(where, "counts", "a list, each an integer", counts) from error
    if len(found) != ranks or min(found) < 0:
        raise ShapeError.build(
            where, expected=f"{ranks} counts, 0 or more each", got=str(list(counts))
        )
    check_size(where, "whole", buffer, sum(found))
    return found


def check_result(where: str, send: np.ndarray, receive: np.ndarray, elements: int) -> None:
    """Check that a receive buffer has `elements` elements of the dtype of `send`."""
    check_buffer(where, receive, written=True)
    check_size(where, "receive", receive, elements)
    check_alike(where, send, receive)
