"""Checks of kernel results: kernels confirm each other, or the oracle decides."""

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
"""Number of elements of two results compared at a time."""


class Judge:
    """Checker of the results of a call: two kernels must agree, or a kernel with the oracle.

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
        """Check the results that a kernel has just written; raise if they are known to be wrong."""
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
        """Return the error of the first kernel, if no second kernel has confirmed it."""
        if self._witness is None or self._right is self._witness[1]:
            return {}
        (kernel, results), self._witness = self._witness, None
        try:
            self._check(results)
        except _WrongResultError as problem:
            return {kernel.name: f"{type(problem).__name__}: {problem}"}
        return {}

    def _agree(self, results: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
        # Elements that no kernel has written are the same for all kernels.
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
    """The results of a kernel differ from the oracle's."""


def is_checkable(node: Node) -> bool:
    """Return True if results for artificial inputs can be compared.

    In a loop, numbers grow without bound over the steps, and rounding differences grow with them.
    """
    return node.op.name != "scan"


def tolerance_of(node: Node, dtype: DType) -> float:
    """Return the maximum error of a result of this dtype, relative to its largest element."""
    is_rounded = node.attrs.get("compute") == "tf32" and dtype == float32
    return ROUNDED if is_rounded else TOLERANCE.get(dtype, 0.0)


def compare(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raise if a result is not the right one."""
    if not is_float(output.dtype):
        if not np.array_equal(output, wanted):
            raise _WrongResultError("the result differs from the reference kernel")
        return
    if _is_close_at_once(output, wanted, tolerance):
        return
    wide = np.asarray(wanted, float64)
    scale = float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
    allowed = tolerance * max(scale, 1e-30)
    if not np.allclose(output.astype(float64), wide, rtol=0.0, atol=allowed, equal_nan=True):
        worst = float(np.nanmax(np.abs(output.astype(float64) - wide), initial=0.0))
        raise _WrongResultError(
            f"the result differs from the reference kernel by {worst:.1e}, at a scale of "
            f"{scale:.1e}"
        )


def _is_close_at_once(output: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Return True if all numbers are finite and close, without converting them to a wider dtype.

    Results of a first step are large, and most are right. The difference of two close float32
    numbers is exact enough. If a difference is not small, or not a number, False leads to a precise
    comparison.
    """
    if output.dtype != wanted.dtype or output.dtype not in (float32, float64) or not wanted.size:
        return False
    scale = max(abs(float(wanted.max())), abs(float(wanted.min())))
    if not math.isfinite(scale):
        return False
    # Half the tolerance, so that rounding here has no effect; a nan is never below it.
    allowed = 0.5 * tolerance * max(scale, 1e-30)
    return all(
        float(np.abs(output[part] - wanted[part]).max()) <= allowed for part in _pieces(wanted)
    )


def _is_finite(array: np.ndarray) -> bool:
    """Return True if all elements of a floating-point array are finite."""
    return all(
        bool(np.isfinite(array[part].astype(float32, copy=False)).all()) for part in _pieces(array)
    )


def _pieces(array: np.ndarray) -> Iterator[tuple[slice, ...]]:
    """Yield slices of an array small enough that temporary results stay in the cache.

    A weight may be as large as all other arrays of the step.
    """
    if array.ndim == 0:
        yield ()
        return
    axis = max(range(array.ndim), key=array.shape.__getitem__)
    length = array.shape[axis]
    step = max(1, PIECE * length // max(array.size, 1))
    for start in range(0, length, step):
        yield (*(slice(None) for _ in range(axis)), slice(start, start + step))
