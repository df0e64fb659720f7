"""Values on a few levels, rounded by chance: QSGD."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.compress.codecs._base import Codec, check_size
from caldera.errors import ConfigError
from caldera.kernels.native.compression import dequantise, quantise
from caldera.kernels.native.compression.random_draws import Draws
from caldera.tensor.dtype import DType

WIDTHS = (2, 4, 8)


class QsgdCodec(Codec):
    """2, 4 or 8 bits a value: -s, ..., s times a scale, s = 2**(bits - 1) - 1.

    Every `bucket` values share one scale, their largest magnitude. Rounding by chance makes the
    expectation equal to the value; the variance of n values is at most min(n / s**2,
    sqrt(n) / s) times the square of their norm (Alistarh and others, QSGD, 2017).
    """

    def __init__(self, bits: int = 4, bucket: int = 512) -> None:
        if bits not in WIDTHS:
            raise ConfigError.build("QSGD", expected="2, 4 or 8 bits", got=repr(bits))
        if bucket < 64 or bucket % 64:
            raise ConfigError.build("QSGD", expected="a bucket of 64, 128, ...", got=repr(bucket))
        self.width = bits
        self.bucket = bucket
        self.levels = (1 << (bits - 1)) - 1
        self._form = {"levels": self.levels, "width": bits, "bucket": bucket}

    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        message = np.empty(self.size(values.size), np.uint8)
        self.encode_all(values, [(0, values.size)], [message], draws)
        return message

    def encode_all(
        self,
        values: np.ndarray,
        spans: Sequence[tuple[int, int]],
        messages: Sequence[np.ndarray],
        draws: Draws,
    ) -> np.ndarray:
        single = np.ascontiguousarray(values, np.float32)
        lost = quantise(single, spans, messages, draws, **self._form)
        if single.dtype == values.dtype:
            return lost
        # What float32 does not hold is lost as well.
        with np.errstate(invalid="ignore"):
            error = values - (single - lost)
        return np.where(np.isfinite(error), error, 0)

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        return self.decode_all([message], [count], dtype)

    def decode_all(
        self, messages: Sequence[np.ndarray], counts: Sequence[int], dtype: DType
    ) -> np.ndarray:
        for message, count in zip(messages, counts, strict=True):
            check_size(self, message, count)
        return dequantise(messages, counts, **self._form).astype(dtype, copy=False)

    def bits(self, count: int) -> float:
        return self.width + 32 / self.bucket

    def size(self, count: int) -> int:
        return -(-count * self.width // 8) + 4 * -(-count // self.bucket)
