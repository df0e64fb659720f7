"""Compression of gradients and weights exchanged between ranks.

A compressor sums gradients over ranks in place. It stores the unsent remainder and adds it to the
next gradients, so that the total is preserved. `Compressor` is the common interface.
"""

from __future__ import annotations

from caldera.base.arguments import guard as _guard
from caldera.compress.compressor import Compressor, compressors, redistribute
from caldera.compress.dense import QSGD, Cast, Lossless, LowPrecisionWeights, OneBit, TernGrad
from caldera.compress.linear_compressors import PowerSGD, RandomK
from caldera.compress.sparse import Link, SparseVector, predicted_seconds, sparse_allreduce
from caldera.compress.top_k import TopK

__all__ = [
    "QSGD",
    "Cast",
    "Compressor",
    "Link",
    "Lossless",
    "LowPrecisionWeights",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "SparseVector",
    "TernGrad",
    "TopK",
    "compressors",
    "predicted_seconds",
    "redistribute",
    "sparse_allreduce",
]

_guard(globals(), methods={"Link": "measured seconds"})
