"""Values without loss, in fewer bytes where many are zero or follow one that is the same."""

from __future__ import annotations

import numpy as np

from caldera.compress.codecs._base import Codec
from caldera.compress.index_coding import pack_indices, unpack_indices
from caldera.compress.messages import as_bytes, read
from caldera.core.tensor.dtype import DType
from caldera.errors import DataError
from caldera.kernels.native.compression.random_draws import Draws

_PLAIN, _SPARSE, _REPEATED = 0, 1, 2
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class LosslessCodec(Codec):
    """The smallest of: all values; those that are not zero with their places; one of each run of
    equal values with the places where the runs begin. Bits are compared, so -0 and nans survive.

    >>> import numpy as np
    >>> from caldera.compress.codecs import LosslessCodec
    >>> rows = np.zeros((1000, 100), np.float32); rows[7] = np.arange(100) + 0.5
    >>> message = LosslessCodec().encode(rows.reshape(-1), None)
    >>> again = LosslessCodec().decode(message, rows.size, rows.dtype)
    >>> message.nbytes, np.array_equal(again, rows.reshape(-1))
    (429, True)
    """

    lossless = True

    def encode(self, values: np.ndarray, draws: Draws | None) -> np.ndarray:
        values = np.ascontiguousarray(values)
        words = values.view(_WORDS[values.itemsize])
        plain = as_bytes(np.array([_PLAIN], np.uint8), values)
        best = plain
        for form, kept in ((_SPARSE, words != 0), (_REPEATED, _begins(words))):
            # Values, and at least half a bit for every place.
            if np.count_nonzero(kept) * (values.itemsize + 1 / 16) < best.size:
                places = np.flatnonzero(kept).astype(np.int32)
                packed = pack_indices(places, values.size)
                message = as_bytes(np.array([form], np.uint8), packed, values[places])
                best = min(best, message, key=lambda each: each.size)
        return best

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        (form,), body = read(message, "uint8", 1)
        if form == _PLAIN:
            kept, places = body, np.empty(0, np.int32)
        else:
            places, kept = unpack_indices(body, count)
        wanted = count if form == _PLAIN else places.size
        if kept.size != wanted * dtype.itemsize or form > _REPEATED:
            raise DataError.build(
                "a packed message", expected=f"{wanted} values", got=f"{kept.size} bytes"
            )
        values = kept.copy().view(dtype)
        if form == _PLAIN:
            return values
        if form == _REPEATED:
            return np.repeat(values, np.diff(places, append=count))
        whole = np.zeros(count, dtype)
        whole[places] = values
        return whole

    def bits(self, count: int) -> float:
        return 32

    def longest(self, count: int, dtype: DType) -> int:
        return count * dtype.itemsize + 1


def _begins(words: np.ndarray) -> np.ndarray:
    """Where a value differs from the one before; the first always does."""
    begins = np.ones(words.size, bool)
    np.not_equal(words[1:], words[:-1], out=begins[1:])
    return begins
