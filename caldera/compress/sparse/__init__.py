"""Sparse vectors and their sums over ranks."""

from __future__ import annotations

from caldera.compress.sparse.allreduce import ALGORITHMS, Sum, sparse_allreduce, sum_sparse
from caldera.compress.sparse.codec import SparseCodec
from caldera.compress.sparse.cost import Link, predicted_seconds
from caldera.compress.sparse.vector import SparseVector

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
