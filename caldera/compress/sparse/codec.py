"""Sparse vectors as messages, and what becomes of what rounding their values loses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.compress.codecs import Codec
from caldera.compress.index_coding import max_index_bytes
from caldera.compress.random_stream import RandomStream
from caldera.compress.sparse.vector import SparseVector
from caldera.core.tensor.dtype import DType
from caldera.kernels.native.compression import add_at
from caldera.kernels.native.compression.rice import Span, pack, unpack


class SparseCodec:
    """How values travel in one allreduce: in which code, and rounded by which draws.

    What a rank loses by rounding is added to `kept`, which is as long as the vectors, and once:
    where several ranks round the same vector alike, one of them owns it. Over all ranks, the sum
    and what was kept add up to what was to be summed.
    """

    def __init__(
        self, code: Codec, random_stream: RandomStream, rank: int, kept: np.ndarray | None
    ) -> None:
        self.code = code
        self._chance = random_stream
        self._rank = rank
        self._kept = kept

    def encode(
        self, vector: SparseVector, parts: Sequence[Span], stage: int, owner: int
    ) -> list[np.ndarray]:
        """The messages of some parts of a vector.

        `owner` is the rank by whose draws of this stage they are rounded, and who keeps the loss.
        """
        spans = [vector.span(part) for part in parts]
        free = [self._size(high - low) for low, high in spans]
        messages = pack(vector.places, spans, parts, free)
        behind = [each[each.size - size :] for each, size in zip(messages, free, strict=True)]
        draws = self._chance.of(owner, stage)
        lost = self.code.encode_all(vector.values, spans, behind, draws)
        if lost is not None and self._kept is not None and owner == self._rank:
            add_at(self._kept, vector.places, lost.astype(self._kept.dtype, copy=False))
        return messages

    def decode(
        self, messages: Sequence[np.ndarray], parts: Sequence[Span], dtype: DType
    ) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """Places and values of messages about these parts, and how many each of them has."""
        places, counts, taken = unpack(messages, parts)
        behind = [each[size:] for each, size in zip(messages, taken, strict=True)]
        return places, self.code.decode_all(behind, counts, dtype), counts

    def longest(self, part: Span) -> int:
        """The most bytes that the message of a part can have."""
        length = part[1] - part[0]
        return max_index_bytes(length) + self._size(length)

    def encode_dense(self, part: np.ndarray, stage: int, begin: int) -> np.ndarray:
        """The message of a part of the sum with all its elements, which this rank owns."""
        message = np.empty(self._size(part.size), np.uint8)
        draws = self._chance.of(self._rank, stage)
        lost = self.code.encode_all(part, [(0, part.size)], [message], draws)
        if lost is not None and self._kept is not None:
            self._kept[begin : begin + part.size] += lost
        return message

    def _size(self, count: int) -> int:
        size = self.code.size(count)
        assert size is not None, "sparse values travel in a code whose size is known"
        return size
