"""Top-k compression: selection of the largest elements, and their exchange.

The threshold is exact or sampled. Magnitudes are compared in float32 as the integers of their
bits: infinities and NaNs come first, so they are detected immediately, and equal magnitudes are
ordered by index. Zeros are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import ceil, inf
from typing import Unpack

import numpy as np

from caldera.base.arguments import require
from caldera.comm import Communicator
from caldera.comm.autotune import Link, link_for_choices
from caldera.compress.codecs import Codec, QsgdCodec, RawCodec
from caldera.compress.compressor import Compressor, CompressorOptions, RandomStream, compressors
from caldera.compress.sparse import ALGORITHMS, SparseCodec, SparseVector, Sum, sum_sparse
from caldera.errors import ConfigError
from caldera.kernels.native.compression import (
    put_only,
    take_out,
    take_top_k_in_blocks,
    top_k_in_blocks,
)

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SAMPLE = 4096
"""Elements in a sample, or a hundredth of all if that is more."""
_TOO_MANY = 1.5
"""If a sampled threshold selects more than this multiple of k, the largest are selected exactly."""


def in_blocks(vectors: Sequence[np.ndarray], count: int, block: int) -> list[np.ndarray]:
    """Return for each vector the indices of the `count` largest of every `block` elements."""
    return [top_k_in_blocks(vector.astype(np.float32), count, block) for vector in vectors]


def exact(vectors: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """Return the indices of the `count` largest elements of each vector.

    >>> import numpy as np
    >>> exact([np.array([1.0, -7.0]), np.array([3.0, 9.0])], 2)
    [array([1], dtype=int32), array([1], dtype=int32)]
    """
    return _apart(_largest(_magnitudes(vectors), count), vectors)


def sampled(vectors: Sequence[np.ndarray], count: int, offset: int) -> list[np.ndarray]:
    """Return about `count` of the largest elements, by a threshold from a sample.

    Every so-manieth element is in the sample, from `offset` on.
    """
    together = _magnitudes(vectors)
    stride = max(together.size // max(_SAMPLE, together.size // 100), 1)
    sample = together[offset % stride :: stride]
    wanted = max(round(count * sample.size / together.size), 1)
    least = max(int(np.partition(sample, sample.size - wanted)[sample.size - wanted]), 1)
    chosen = np.flatnonzero(together >= least)
    if chosen.size > _TOO_MANY * count:
        chosen = chosen[_largest(together[chosen], count)]
    return _apart(chosen, vectors)


def _magnitudes(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """The bits of absolute values of all vectors together, which are in the order of the values."""
    found = [
        np.ascontiguousarray(vector, np.float32).view(np.int32) & _MAGNITUDE for vector in vectors
    ]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _largest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the `count` largest nonzero elements, in order."""
    if count >= magnitudes.size:
        return np.flatnonzero(magnitudes)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    if not least:
        return np.flatnonzero(magnitudes)
    reaching = np.flatnonzero(magnitudes >= least)
    surplus = reaching.size - count
    if surplus:
        equal = np.flatnonzero(magnitudes[reaching] == least)
        reaching = np.delete(reaching, equal[equal.size - surplus :])
    return reaching


def _apart(chosen: np.ndarray, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Split indices into the concatenated vectors into indices of each vector."""
    edges = np.cumsum([0, *(vector.size for vector in vectors)])
    cuts = np.searchsorted(chosen, edges)
    return [
        (chosen[cuts[i] : cuts[i + 1]] - edges[i]).astype(np.int32) for i in range(len(vectors))
    ]


@compressors.register("topk")
class TopK(Compressor):
    """Elements with the largest magnitudes, summed by a sparse allreduce.

    - `k`: the number of elements, or below 1 the fraction of all.
    - `block`: select the k largest in every block of this length; the fastest selection.
    - `scope`: "layer" selects k of each parameter, "global" of all parameters exchanged together.
    - `sampled`: estimate the threshold from a sample, so that about k elements are sent.
    - `bits`: 2, 4 or 8 bits a value, rounded stochastically (QSGD); None sends all bits.
    - `momentum`: momentum correction (Lin and others, Deep Gradient Compression, 2018): each rank
      accumulates velocity instead of gradients, so that delayed elements have their momentum when
      they are sent. The velocity of sent elements is reset. The optimizer must have no momentum.
    - `algorithm`, `latency`, `bandwidth`: the sum of sparse vectors, see `sparse_allreduce`, and
      the link of its cost model (see `Link`), which is measured by default.

    Unsent elements and rounding errors are kept and added to the next gradient. They act like
    momentum, so the optimizer should have no additional momentum, as `optim.Adam(beta1=0.0)`.
    `compressors.make("top16_q4")` is TopK(16, block=512, bits=4), the setting of SparCML.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> topk = compress.TopK(1)
    >>> gradient = np.array([1.0, -3.0, 2.0], np.float32)
    >>> topk.exchange("w", gradient, comm.SingleProcess())
    >>> gradient, topk.state()["residual/w"]
    (array([ 0., -3.,  0.], dtype=float32), array([1., 0., 2.], dtype=float32))
    """

    def __init__(
        self,
        k: float = 0.01,
        *,
        block: int | None = None,
        scope: str = "layer",
        sampled: bool = False,
        bits: int | None = None,
        momentum: float = 0.0,
        algorithm: str = "auto",
        latency: float | None = None,
        bandwidth: float | None = None,
        **options: Unpack[CompressorOptions],
    ) -> None:
        super().__init__(**options)
        _check(k, block, scope, sampled, momentum, algorithm)
        self.k = k
        self.block = block
        self.scope = scope
        self.sampled = sampled
        self.momentum = momentum
        self.algorithm = algorithm
        given = {"latency": latency, "bandwidth": bandwidth}
        known = {name: value for name, value in given.items() if value is not None}
        self.link = Link(**known) if known else None
        self.quantiser = None if bits is None else QsgdCodec(bits)

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        waiting = self._kept.together("residual", gradients)
        added = [gradient.reshape(-1) for gradient in gradients.values()]
        if self.momentum:
            velocity = self._kept.together("velocity", gradients)
            velocity *= velocity.dtype.type(self.momentum)
            parts = np.split(velocity, np.cumsum([each.size for each in added])[:-1])
            for part, gradient in zip(parts, added, strict=True):
                part += gradient
            vector = self.take(waiting, parts, random_stream)
            velocity[vector.places] = 0
        else:
            vector = self.take(waiting, added, random_stream)
        if not np.isfinite(vector.values).all():
            self._forget_what_is_no_number(gradients)
        code: Codec = self.quantiser or RawCodec(vector.values.dtype)
        coding = SparseCodec(code, random_stream, communicator.rank, waiting)
        if self.link is None and self.algorithm == "auto":
            self.link = link_for_choices(communicator) or Link()
        total = sum_sparse(
            vector,
            communicator,
            coding,
            self.expected([each.size for each in added]),
            self.algorithm,
            self.link,
        )
        if isinstance(total, np.ndarray):
            total = self._scaled(total, communicator.size)
        else:
            total = replace(total, values=self._scaled(total.values, communicator.size))
        write_sum(total, list(gradients.values()))

    def take(
        self, waiting: np.ndarray, added: Sequence[np.ndarray], random_stream: RandomStream
    ) -> SparseVector:
        """Return the elements to send, and keep the rest in `waiting`.

        `added` contains the new values of each parameter.
        """
        if self.block is not None and waiting.dtype == np.float32:
            new = [each.astype(np.float32, copy=False) for each in added]
            found = take_top_k_in_blocks(waiting, new, int(self.k), self.block)
            return SparseVector(waiting.size, *found)
        edges = list(accumulate((each.size for each in added), initial=0))
        residuals = [waiting[begin:end] for begin, end in pairwise(edges)]
        for residual, each in zip(residuals, added, strict=True):
            residual += each
        chosen = self._largest(residuals, random_stream)
        shifted = [places + np.int32(edge) for places, edge in zip(chosen, edges, strict=False)]
        places = np.concatenate(shifted)
        return SparseVector(waiting.size, places, take_out(waiting, places))

    def _largest(
        self, residuals: Sequence[np.ndarray], random_stream: RandomStream
    ) -> list[np.ndarray]:
        """Return the indices of the sent elements in each residual."""
        if self.block is not None:
            return in_blocks(residuals, int(self.k), self.block)
        chosen: list[np.ndarray] = []
        for group in [residuals] if self.scope == "global" else [[each] for each in residuals]:
            count = self._count(sum(each.size for each in group))
            chosen += (
                sampled(group, count, random_stream.step) if self.sampled else exact(group, count)
            )
        return chosen

    def _count(self, size: int) -> int:
        """Return the number of elements sent out of `size`."""
        if self.block is not None:
            whole, rest = divmod(size, self.block)
            return whole * int(self.k) + -(-int(self.k) * rest // self.block)
        return max(ceil(self.k * size), 1) if self.k < 1 else min(int(self.k), size)

    def expected(self, sizes: Sequence[int]) -> int:
        """Return the number of elements that each rank sends for parameters of these sizes.

        The number is the same on all ranks and does not depend on the values.
        """
        return self._count(sum(sizes)) if self.scope == "global" else sum(map(self._count, sizes))

    def _forget_what_is_no_number(self, gradients: Mapping[str, np.ndarray]) -> None:
        """Infinities and nans are sent, so that the step shows them, but must not stay."""
        for name, gradient in gradients.items():
            for kind in ("residual", "velocity") if self.momentum else ("residual",):
                kept = self._kept.like(kind, name, gradient)
                kept[~np.isfinite(kept)] = 0


compressors.add("top16_q4", partial(TopK, 16, block=512, bits=4))


def _check(
    k: float, block: int | None, scope: str, sampled: bool, momentum: float, algorithm: str
) -> None:
    if not 0 < k < inf or (k >= 1 and k != int(k)) or (block is not None and not 1 <= k <= block):
        raise ConfigError.build(
            "TopK",
            expected="k as a part below 1 or an integer, no more than the block",
            got=f"k={k!r}, block={block!r}",
        )
    require(scope in ("layer", "global"), "TopK", "scope 'layer' or 'global'", repr(scope))
    if block is not None and (scope == "global" or sampled):
        raise ConfigError.build(
            "TopK", expected="either blocks, or scope='global' or sampled=True", got="both"
        )
    require(0 <= momentum < 1, "TopK", "momentum from 0 to below 1", momentum)
    require(
        algorithm in ("auto", *ALGORITHMS),
        "TopK",
        "'auto' or one of " + ", ".join(ALGORITHMS),
        repr(algorithm),
    )


def write_sum(total: Sum, gradients: Sequence[np.ndarray]) -> None:
    """Write a sum to gradients, which are consecutive parts of it.

    >>> import numpy as np
    >>> from caldera.compress.sparse import SparseVector
    >>> gradients = [np.ones((1, 2), np.float32), np.ones(1, np.float32)]
    >>> write_sum(SparseVector.of(np.array([0, 5, 7], np.float32)), gradients)
    >>> gradients
    [array([[0., 5.]], dtype=float32), array([7.], dtype=float32)]
    """
    whole = _contiguous(gradients)
    if isinstance(total, SparseVector):
        if whole is not None and whole.dtype == total.values.dtype:
            put_only(whole, total.places, total.values)
            return
        total = total.dense()
    edges = accumulate((gradient.size for gradient in gradients), initial=0)
    for gradient, (begin, end) in zip(gradients, pairwise(edges), strict=True):
        gradient.reshape(-1)[...] = total[begin:end]


def _contiguous(arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return arrays as one vector if they are adjacent in memory, like the parts of a message."""
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
