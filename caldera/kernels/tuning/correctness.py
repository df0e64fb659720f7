"""Which kernels compute the right result: they confirm each other, or the oracle decides."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from caldera.core.graph.node import Node
from caldera.core.tensor.dtype import DType, bfloat16, float16, float32, float64, is_float
from caldera.kernels.reference import evaluate
from caldera.kernels.table import Call, Kernel

TOLERANCE: dict[DType, float] = {float64: 1e-10, float32: 1e-4, float16: 1e-2, bfloat16: 4e-2}
"""Largest error, relative to the largest element of the right result."""
ROUNDED = 5e-3
"""The same where float32 operands may be rounded to tf32."""
PIECE = 1 << 16
"""Elements of two results that are compared at once."""


class Judge:
    """Knows the right results of a call: those that two kernels agree on, or the oracle's.

    Kernels of one origin share its mistakes, and do not confirm each other. With `alone` no kernel
    confirms another.
    """

    def __init__(self, call: Call, *, alone: bool) -> None:
        self._call = call
        self._right: Sequence[np.ndarray] | None = None
        self._witness: tuple[Kernel, list[np.ndarray]] | None = None
        # Integers may be right by chance.
        self._alone = alone or not all(is_float(output.dtype) for output in call.outputs)

    def hear(self, kernel: Kernel) -> None:
        """Take what a kernel has just written; raise if it is known to be wrong."""
        call = self._call
        if not is_checkable(call.node):
            return
        if self._right is None and not self._alone:
            if self._witness is None:
                self._witness = kernel, [output.copy() for output in call.outputs]
                return
            witness, results = self._witness
            if witness.origin != kernel.origin and self._agree(results, call.outputs):
                self._right = results
                return
        self._check(call.outputs)

    def wrong(self) -> dict[str, str]:
        """What is wrong with the first kernel, if no other has confirmed it."""
        if self._witness is None or self._right is self._witness[1]:
            return {}
        (kernel, results), self._witness = self._witness, None
        try:
            self._check(results)
        except _WrongResultError as problem:
            return {kernel.name: f"{type(problem).__name__}: {problem}"}
        return {}

    def _agree(self, results: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
        # What nobody has written to is the same for all.
        if not all(map(_is_finite, results)):
            return False
        try:
            self._compare(others, results)
        except _WrongResultError:
            return False
        return True

    def _check(self, results: Sequence[np.ndarray]) -> None:
        if self._right is None:
            self._right = evaluate(self._call.node, self._call.inputs)
        self._compare(results, self._right)

    def _compare(self, results: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
        for result, right in zip(results, wanted, strict=True):
            compare(result, right, tolerance_of(self._call.node, result.dtype))


class _WrongResultError(Exception):
    """A kernel does not compute what the oracle does."""


def is_checkable(node: Node) -> bool:
    """Whether made-up numbers show if a result is right.

    Through the steps of a loop they grow without bound, and differences in the last bit with them.
    """
    return node.op.name != "scan"


def tolerance_of(node: Node, dtype: DType) -> float:
    """How far a result of this dtype may be off, beside the largest element of the right one."""
    is_rounded = node.attrs.get("compute") == "tf32" and dtype == float32
    return ROUNDED if is_rounded else TOLERANCE.get(dtype, 0.0)


def compare(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raise if a result is not the right one."""
    if not is_float(output.dtype):
        if not np.array_equal(output, wanted):
            raise _WrongResultError("the result differs from that of the oracle")
        return
    if _is_close_at_once(output, wanted, tolerance):
        return
    wide = np.asarray(wanted, float64)
    scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    allowed = tolerance * max(scale, 1e-30)
    if not np.allclose(output.astype(float64), wide, rtol=0.0, atol=allowed, equal_nan=True):
        worst = float(np.nanmax(np.abs(output.astype(float64) - wide), initial=0.0))
        raise _WrongResultError(
            f"the result differs from that of the oracle by {worst:.1e}, beside {scale:.1e}"
        )


def _is_close_at_once(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Whether all numbers are finite and near enough, found without making them wider.

    Results of a first step are large, and most are right. The difference of two float32 numbers
    that are nearly alike is as exact as it has to be; where it is not small, or not a number, it is
    looked at more closely.
    """
    if output.dtype != wanted.dtype or output.dtype not in (float32, float64) or not wanted.size:
        return False
    scale = max(abs(float(wanted.max())), abs(float(wanted.min())))
    if not math.isfinite(scale):
        return False
    # Half of what is allowed, so that rounding here decides nothing; a nan is not below it.
    allowed = 0.5 * tolerance * max(scale, 1e-30)
    return all(
        float(np.abs(output[part] - wanted[part]).max()) <= allowed for part in _pieces(wanted)
    )


def _is_finite(array: np.ndarray) -> bool:
    """Whether an array of floats has numbers alone."""
    return all(
        bool(np.isfinite(array[part].astype(float32, copy=False)).all()) for part in _pieces(array)
    )


def _pieces(array: np.ndarray) -> Iterator[tuple[slice, ...]]:
    """Where parts of an array are, so small that what is computed from one stays in the cache: a
    weight may be as large as all that the step needs."""
    if array.ndim == 0:
        yield ()
        return
    axis = max(range(array.ndim), key=array.shape.__getitem__)
    length = array.shape[axis]
    step = max(1, PIECE * length // max(array.size, 1))
    for start in range(0, length, step):
        yield (*(slice(None) for _ in range(axis)), slice(start, start + step))
