"""Values as they are."""

from __future__ import annotations

import numpy as np

from caldera.compress.codecs._base import Codec, check_size
from caldera.compress.messages import as_bytes
from caldera.kernels.native.compression.random_draws import Draws
from caldera.tensor.dtype import DType, canonical


class RawCodec(Codec):
    """All bits of every value.

    >>> import numpy as np
    >>> from caldera.compress.codecs import RawCodec
    >>> code = RawCodec("float32")
    >>> code.decode(code.encode(np.array([1.5], np.float32), draws=None), 1, np.dtype("float32"))
    array([1.5], dtype=float32)
    """

    lossless = True

    def __init__(self, dtype: str | DType = "float32") -> None:
        self.dtype = canonical(dtype)

    def encode(self, values: np.ndarray, draws: Draws | None) -> np.ndarray:
        return as_bytes(values.astype(self.dtype, copy=False))

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        check_size(self, message, count)
        return message.copy().view(self.dtype).astype(dtype, copy=False)

    def bits(self, count: int) -> float:
        return 8 * self.dtype.itemsize

    def size(self, count: int) -> int:
        return count * self.dtype.itemsize
