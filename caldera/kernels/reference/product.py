"""Matrix products in NumPy. Nothing is rounded that `compute` allows to round."""

from __future__ import annotations

import numpy as np

from caldera.kernels.reference.registry import by_decomposition, reference


@reference("matmul")
def _matmul(
    a: np.ndarray, b: np.ndarray, *, ta: bool, tb: bool, compute: str | None = None
) -> np.ndarray:
    return np.matmul(a.swapaxes(-1, -2) if ta else a, b.swapaxes(-1, -2) if tb else b)


@reference("matmul_accumulate")
def _matmul_accumulate(
    c: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    alpha: np.ndarray,
    beta: np.ndarray,
    *,
    ta: bool,
    tb: bool,
    compute: str | None = None,
) -> np.ndarray:
    result = c * beta if beta else np.zeros_like(c)
    return result + _matmul(a, b, ta=ta, tb=tb) * alpha if alpha else result


by_decomposition("matmul_epilogue")
