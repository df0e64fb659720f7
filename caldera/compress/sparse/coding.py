"""Sparse vectors as messages, and what becomes of what rounding their values loses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from caldera.compress.codes import Code
from caldera.compress.draws import Chance
from caldera.compress.places import pack_places, unpack_places
from caldera.compress.sparse.vector import SparseVector
from caldera.compress.wire import as_bytes
from caldera.kernels.native.compression.draws import ALIGNED
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
        self, vector: SparseVector, stage: int, owner: int, begin: int = 0, drawn: int = 0
    ) -> tuple[np.ndarray, SparseVector]:
        """The message of a vector, and the vector that whoever decodes it will have.

        `owner` is the rank whose draws round it and who keeps the loss; `begin` is where the
        vector begins in the whole, and `drawn` how many draws the owner used in this stage.
        """
        draws = self._chance.of(owner, stage, -(-drawn // ALIGNED) * ALIGNED)
        encoded = self.code.encode(vector.values, draws)
        message = as_bytes(pack_places(vector.places, vector.length), encoded)
        if self.code.lossless:
            return message, vector
        values = self.code.decode(encoded, vector.values.size, vector.values.dtype)
        if owner == self._rank:
            self._lose(vector.places + np.int32(begin), vector.values - values)
        return message, SparseVector(vector.length, vector.places, values)

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
