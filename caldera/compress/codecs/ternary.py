"""Three levels, five values in a byte: TernGrad."""

from __future__ import annotations

import numpy as np

from caldera.compress.codecs._base import Codec, check_size
from caldera.compress.messages import as_bytes, read
from caldera.errors import ConfigError
from caldera.kernels.native.compression import dequantise, quantise
from caldera.kernels.native.compression.random_draws import ALIGNED, Draws
from caldera.tensor.dtype import DType

_IN_A_BYTE = 5
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
_DIGITS = (np.arange(243)[:, None] // _POWERS % 3).astype(np.uint8)
"""The five digits of every byte."""


class TernaryCodec(Codec):
    """-1, 0 or 1 times one scale for the whole vector: 8/5 bits a value.

    Values beyond `clip` standard deviations are clipped first (0: none are), since a single large
    one would make the scale, and with it the variance, large. What is clipped is rounded by chance
    without bias (Wen and others, TernGrad, 2017).
    """

    def __init__(self, clip: float = 2.5) -> None:
        if not clip >= 0:
            raise ConfigError.build("TernGrad", expected="clip of 0 or more", got=repr(clip))
        self.clip = clip

    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        single = np.ascontiguousarray(values, np.float32)
        if self.clip and single.size:
            # An infinity or a nan makes the limit a nan: nothing is clipped, and it shows.
            with np.errstate(invalid="ignore"):
                limit = np.float32(self.clip * single.std(dtype=np.float64))
            single = np.clip(single, -limit, limit) if np.isfinite(limit) else single
        count = single.size
        message = np.empty(4 * min(count, 1) + count, np.uint8)
        quantise(single, [(0, count)], [message], draws, **self._form(count))
        scales, codes = message[: message.size - count], message[message.size - count :]
        padded = np.zeros((-(-count // _IN_A_BYTE), _IN_A_BYTE), np.uint8)
        padded.reshape(-1)[:count] = codes
        return as_bytes(scales, padded @ _POWERS)

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        check_size(self, message, count)
        scales, packed = read(message, "uint8", 4 * min(count, 1))
        plain = as_bytes(scales, _DIGITS[packed].reshape(-1)[:count])
        return dequantise([plain], [count], **self._form(count)).astype(dtype, copy=False)

    @staticmethod
    def _form(count: int) -> dict[str, int]:
        """A byte each, and one bucket for all."""
        return {"levels": 1, "width": 8, "bucket": -(-max(count, 1) // ALIGNED) * ALIGNED}

    def bits(self, count: int) -> float:
        return 8 / _IN_A_BYTE

    def size(self, count: int) -> int:
        return -(-count // _IN_A_BYTE) + 4 * min(count, 1)
