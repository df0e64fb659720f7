"""Sparse vectors as messages, and what becomes of what rounding their values loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from caldera.compress.codes import Code
from caldera.compress.draws import Chance
from caldera.compress.places import pack_places, unpack_places
from caldera.compress.sparse.vector import SparseVector
from caldera.compress.wire import as_bytes
from caldera.tensor.dtype import DType

Keep = Callable[[np.ndarray, np.ndarray], None]
"""Is given places and what was lost there."""


class Coding:
    """How values travel in one allreduce: in which code, and rounded by which draws.

    What a rank loses by rounding goes to `keep`, once: where several ranks round the same vector
    alike, one of them owns it. Over all ranks, the sum and what was kept add up to what was to be
    summed.
    """

    def __init__(self, code: Code, chance: Chance, rank: int, keep: Keep) -> None:
        self.code = code
        self._chance = chance
        self._rank = rank
        self._keep = keep

    def encode(
        self, vectors: Sequence[SparseVector], begins: Sequence[int], stage: int, owner: int
    ) -> tuple[list[np.ndarray], list[SparseVector]]:
        """The messages of some vectors, and the vectors that whoever decodes them will have.

        `begins` are where the vectors begin in the whole. `owner` is the rank by whose draws of
        this stage they are rounded, and who keeps the loss.
        """
        values = [vector.values for vector in vectors]
        encoded, decoded = self.code.encode_all(values, self._chance.of(owner, stage))
        messages = [
            as_bytes(pack_places(vector.places, vector.length), each)
            for vector, each in zip(vectors, encoded, strict=True)
        ]
        if self.code.lossless:
            return messages, list(vectors)
        if owner == self._rank:
            places = [v.places + np.int32(b) for v, b in zip(vectors, begins, strict=True)]
            lost = [meant - sent for meant, sent in zip(values, decoded, strict=True)]
            self._lose(np.concatenate(places), np.concatenate(lost))
        return messages, [replace(v, values=d) for v, d in zip(vectors, decoded, strict=True)]

    def decode(self, message: np.ndarray, length: int, dtype: DType) -> SparseVector:
        """The vector of a message."""
        places, rest = unpack_places(message, length)
        return SparseVector(length, places, self.code.decode(rest, places.size, dtype))

    def encode_dense(self, part: np.ndarray, stage: int, begin: int) -> np.ndarray:
        """The message of a part of the sum with all its elements, which this rank owns."""
        message = self.code.encode(part, self._chance.of(self._rank, stage))
        if not self.code.lossless:
            error = part - self.code.decode(message, part.size, part.dtype)
            places = np.flatnonzero(error)
            self._lose((places + begin).astype(np.int32), error[places])
        return message

    def _lose(self, places: np.ndarray, error: np.ndarray) -> None:
        # What is lost to an infinity or a nan cannot be made up for.
        finite = np.isfinite(error)
        if finite.all():
            self._keep(places, error)
        else:
            self._keep(places[finite], error[finite])
