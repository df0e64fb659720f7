"""Sparse vectors and their sums over ranks."""

from __future__ import annotations

from caldera.comm.link import Link
from caldera.compress.sparse.cost import predicted_seconds
from caldera.compress.sparse.vector import (
    ALGORITHMS,
    SparseCodec,
    SparseVector,
    Sum,
    sparse_allreduce,
    sum_sparse,
)

__all__ = [
    "ALGORITHMS",
    "Link",
    "SparseCodec",
    "SparseVector",
    "Sum",
    "predicted_seconds",
    "sparse_allreduce",
    "sum_sparse",
]
