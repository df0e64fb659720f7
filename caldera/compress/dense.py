"""Sums of whole vectors in a code: each rank adds up one part of them and sends the sum around.

Rank r receives part r of all vectors, decodes and adds them in the order of the ranks, encodes the
sum and sends it to all. Every value thus crosses the wire 2 (n - 1) / n times, as in a ring, and
is rounded twice: once by the rank it comes from, once by the one that adds up. Both keep what they
lost. A rank's own part of its own vector is not rounded, since it does not travel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from caldera.comm import Communicator
from caldera.compress._base import Compressor
from caldera.compress.codecs import Codec
from caldera.compress.messages import EMPTY, allgather_messages, alltoall_messages, bounds
from caldera.compress.random_stream import RandomStream
from caldera.core.tensor.dtype import HALVES

_SUMMANDS, _SUMS = 0, 1
"""The two stages, as far as chance is concerned."""


class DenseCompressor(Compressor):
    """Compressors that encode every value: `code` on the way to the sum, `sum_codec` after.

    With `feedback` what was lost is kept for the next exchange.
    """

    code: Codec
    sum_codec: Codec
    feedback: bool

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        if communicator.size == 1 and not self.feedback:
            return
        flat = _joined([gradient.reshape(-1) for gradient in gradients.values()])
        residuals = []
        if self.feedback:
            residuals = [self._kept.like("residual", n, g) for n, g in gradients.items()]
            flat = flat + _joined(residuals)
        lost = np.zeros_like(flat) if self.feedback else None
        total = sum_encoded(flat, self.code, self.sum_codec, communicator, random_stream, lost)
        total = self._scaled(total, communicator.size)
        _spread(total, [gradient.reshape(-1) for gradient in gradients.values()])
        if lost is not None:
            _spread(lost, residuals)


def sum_encoded(
    vector: np.ndarray,
    code: Codec,
    sum_codec: Codec,
    communicator: Communicator,
    random_stream: RandomStream,
    lost: np.ndarray | None,
) -> np.ndarray:
    """The sum of the ranks' vectors; to `lost`, what this rank has lost of it by rounding.

    The sum and what all ranks have lost add up to the sum of the vectors. What is lost to an
    infinity or a nan counts as nothing.
    """
    size, rank = communicator.size, communicator.rank
    if size == 1:
        return vector
    edges = bounds(vector.size, size)
    parts = [vector[begin:end] for begin, end in pairwise(edges)]
    mine = parts[rank]
    leaving = [
        EMPTY
        if other == rank
        else code.encode(part, random_stream.of(rank, _SUMMANDS, edges[other]))
        for other, part in enumerate(parts)
    ]
    arriving = alltoall_messages(communicator, leaving, code.longest(mine.size, vector.dtype))
    total = np.zeros_like(mine)
    for other, message in enumerate(arriving):
        total += mine if other == rank else code.decode(message, mine.size, vector.dtype)
    sums = sum_codec.encode(total, random_stream.of(rank, _SUMS))
    longest = [sum_codec.longest(part.size, vector.dtype) for part in parts]
    gathered = allgather_messages(communicator, sums, longest)
    result = np.concatenate(
        [
            sum_codec.decode(message, part.size, vector.dtype)
            for message, part in zip(gathered, parts, strict=True)
        ]
    )
    if lost is not None:
        for other, (begin, end) in enumerate(pairwise(edges)):
            if other == rank:
                lost[begin:end] = total - result[begin:end]
            else:
                lost[begin:end] = parts[other] - code.decode(
                    leaving[other], end - begin, vector.dtype
                )
        lost[~np.isfinite(lost)] = 0
    return result


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One vector; halves become float32."""
    wide = [array.astype(np.float32) if array.dtype in HALVES else array for array in arrays]
    return wide[0] if len(wide) == 1 else np.concatenate(wide)


def _spread(vector: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Write the parts of a vector to arrays, one after the other."""
    start = 0
    for array in arrays:
        array[...] = vector[start : start + array.size]
        start += array.size
