"""Values as floats: in 16 bits, float16 or bfloat16 rounded to the nearest, or as they are."""

from __future__ import annotations

import numpy as np

from caldera.compress.codecs._base import Codec, check_size
from caldera.compress.messages import as_bytes, read
from caldera.core.tensor.dtype import BY_NAME, DType, canonical
from caldera.errors import ConfigError
from caldera.kernels.native.compression.random_draws import Draws

_HIGHEST_EXPONENT = 15
"""The largest float16 has this exponent."""


class HalfPrecisionCodec(Codec):
    """float16 or bfloat16.

    A vector of float16 travels with a power of two that brings its largest magnitude close to the
    largest float16, so that small values do not vanish and sums do not overflow. bfloat16 reaches
    as far as float32 and needs none.

    >>> import numpy as np
    >>> from caldera.compress.codecs import HalfPrecisionCodec
    >>> code = HalfPrecisionCodec("float16")
    >>> small = np.array([2.0 ** -40, 2.0 ** -50], np.float32)
    >>> code.decode(code.encode(small, None), 2, small.dtype) == small
    array([ True,  True])
    """

    def __init__(self, dtype: str = "bfloat16") -> None:
        if dtype not in ("float16", "bfloat16"):
            raise ConfigError.build("Cast", expected="'float16' or 'bfloat16'", got=repr(dtype))
        self.dtype = BY_NAME[dtype]
        self.scaled = dtype == "float16"

    def encode(self, values: np.ndarray, draws: Draws | None) -> np.ndarray:
        if not self.scaled:
            return as_bytes(values.astype(self.dtype))
        largest = float(np.abs(values).max(initial=0.0))
        scale = np.float32(1)
        if 0 < largest < np.inf:
            # Not below float32's own range: 2 ** 100 is more than any gradient needs.
            exponent = int(np.frexp(largest)[1])
            scale = np.float32(2.0 ** max(exponent - _HIGHEST_EXPONENT, -100))
        # A power of two, so the division is exact where nothing leaves float32's range.
        return as_bytes(np.atleast_1d(scale), (values / scale).astype(self.dtype))

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        check_size(self, message, count)
        if not self.scaled:
            return message.copy().view(self.dtype).astype(dtype)
        scale, rest = read(message, "float32", 1)
        return rest.copy().view(self.dtype).astype(dtype) * dtype.type(scale[0])

    def bits(self, count: int) -> float:
        return 16

    def size(self, count: int) -> int:
        return 2 * count + 4 * self.scaled


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
