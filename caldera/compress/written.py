"""Sums in the place of the gradients that they are sums of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from caldera.compress.sparse import SparseVector, Sum
from caldera.kernels.native.compression import put_only


def write_sum(total: Sum, gradients: Sequence[np.ndarray]) -> None:
    """Write a sum to gradients, which are its elements one after the other.

    >>> import numpy as np
    >>> from caldera.compress.sparse import SparseVector
    >>> gradients = [np.ones((1, 2), np.float32), np.ones(1, np.float32)]
    >>> write_sum(SparseVector.of(np.array([0, 5, 7], np.float32)), gradients)
    >>> gradients
    [array([[0., 5.]], dtype=float32), array([7.], dtype=float32)]
    """
    whole = _as_one(gradients)
    if isinstance(total, SparseVector):
        if whole is not None and whole.dtype == total.values.dtype:
            put_only(whole, total.places, total.values)
            return
        total = total.dense()
    edges = accumulate((gradient.size for gradient in gradients), initial=0)
    for gradient, (begin, end) in zip(gradients, pairwise(edges), strict=True):
        gradient.reshape(-1)[...] = total[begin:end]


def _as_one(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Arrays as one vector, if one begins where the other ends: those of a message do."""
    first = arrays[0]
    if any(each.dtype != first.dtype for each in arrays):
        return None
    at = first.__array_interface__["data"][0]
    for each in arrays:
        if each.__array_interface__["data"][0] != at:
            return None
        at += each.nbytes
    elements = sum(each.size for each in arrays)
    return np.lib.stride_tricks.as_strided(first, (elements,), (first.itemsize,))
