"""Sums of sparse vectors over ranks, after SparCML (Renggli and others, 2018)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.comm import Communicator
from caldera.compress.codecs import RawCodec
from caldera.compress.random_stream import RandomStream
from caldera.compress.sparse.codec import SparseCodec
from caldera.compress.sparse.cost import Link, fastest
from caldera.compress.sparse.recursive_doubling import recursive_doubling
from caldera.compress.sparse.split_allgather import dense_switching, split_allgather
from caldera.compress.sparse.vector import SparseVector
from caldera.registry import Registry

Sum = SparseVector | np.ndarray
Algorithm = Callable[[Communicator, SparseVector, SparseCodec], Sum]

ALGORITHMS: Registry[Algorithm] = Registry("sparse allreduce")
ALGORITHMS.add("recursive_doubling", recursive_doubling)
ALGORITHMS.add("split_allgather", split_allgather)
ALGORITHMS.add("dense_switching", dense_switching)


def sparse_allreduce(
    vector: SparseVector,
    communicator: Communicator,
    *,
    algorithm: str = "auto",
    link: Link | None = None,
) -> np.ndarray:
    """The sum of the ranks' vectors, all its elements, the same bits on every rank.

    `algorithm` is "recursive_doubling", "split_allgather", "dense_switching" or "auto": the one
    that the cost model expects to be fastest on this `link`.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> def work(communicator):
    ...     mine = np.zeros(6, np.float32)
    ...     mine[[0, communicator.rank + 1]] = 1.0
    ...     return compress.sparse_allreduce(compress.SparseVector.of(mine), communicator)
    >>> comm.run_virtual_ranks(3, work)[0]
    array([3., 1., 1., 1., 0., 0.], dtype=float32)
    """
    counts = np.array([vector.places.size], np.int64)
    communicator.Allreduce(counts.copy(), counts, op="max")
    coding = SparseCodec(
        RawCodec(vector.values.dtype), RandomStream(0, 0, ""), communicator.rank, None
    )
    total = sum_sparse(vector, communicator, coding, int(counts[0]), algorithm, link)
    return total if isinstance(total, np.ndarray) else total.dense()


def sum_sparse(
    vector: SparseVector,
    communicator: Communicator,
    coding: SparseCodec,
    expected: int,
    algorithm: str = "auto",
    link: Link | None = None,
) -> Sum:
    """As `sparse_allreduce` with any coding; all ranks expect the same number of places."""
    if algorithm == "auto":
        bits = coding.code.bits(expected)
        algorithm = fastest(vector.length, expected, communicator.size, bits, link)
    chosen = ALGORITHMS[algorithm]
    return vector if communicator.size == 1 else chosen(communicator, vector, coding)
