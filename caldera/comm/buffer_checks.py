"""What buffers must be before they go on the wire; a wrong one is refused, never sent in part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.errors import CommError, DtypeError, ShapeError

REDUCTIONS = ("sum", "mean", "max", "min")


def check_buffer(where: str, buffer: np.ndarray, *, written: bool = False) -> None:
    """A buffer is a contiguous array, and writable if something is received into it."""
    if not isinstance(buffer, np.ndarray):
        raise DtypeError.build(where, expected="a NumPy array", got=type(buffer).__name__)
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
    """Two buffers of one dtype that are the same memory, or do not touch."""
    if send.dtype != receive.dtype:
        raise DtypeError.build(
            where, expected=f"one dtype, {send.dtype} as it is sent", got=str(receive.dtype)
        )
    if send is not receive and _overlap(send, receive) and not same_memory(send, receive):
        raise CommError.build(
            where, expected="buffers that are the same or apart", got="two that overlap"
        )


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two contiguous arrays are the same bytes."""
    return a is b or (a.nbytes == b.nbytes and _address(a) == _address(b))


def _overlap(a: np.ndarray, b: np.ndarray) -> bool:
    return _address(a) < _address(b) + b.nbytes and _address(b) < _address(a) + a.nbytes


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def check_size(where: str, what: str, buffer: np.ndarray, elements: int) -> None:
    """A buffer has as many elements as the operation needs."""
    if buffer.size != elements:
        raise ShapeError.build(
            where, expected=f"{elements} elements in the {what} buffer", got=str(buffer.size)
        )


def check_reduction(where: str, op: str, dtype: np.dtype) -> None:
    """A known reduction of a dtype that has it."""
    if op not in REDUCTIONS:
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
    """How many elements of a buffer belong to each rank: equal parts if nobody says otherwise."""
    if counts is None:
        if buffer.size % ranks:
            raise ShapeError.build(
                where,
                expected=f"a multiple of {ranks} elements",
                got=str(buffer.size),
                hint="give the elements of each rank as counts",
            )
        return [buffer.size // ranks] * ranks
    found = [int(count) for count in counts]
    if len(found) != ranks or min(found) < 0:
        raise ShapeError.build(
            where, expected=f"{ranks} counts, 0 or more each", got=str(list(counts))
        )
    check_size(where, "whole", buffer, sum(found))
    return found
