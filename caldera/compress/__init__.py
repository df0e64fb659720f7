"""Compression: gradients and weights of many ranks with fewer bytes on the wire.

A compressor sums gradients over ranks in place; what it leaves out it keeps and adds to the next
ones, so that nothing is lost. `Compressor` says what they have in common.
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
