"""Values on few levels: QSGD with chosen bits, TernGrad with three levels, and signs alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.compress.codecs.codec import Codec, check_size
from caldera.compress.messages import as_bytes, read
from caldera.core.tensor.dtype import DType
from caldera.errors import ConfigError
from caldera.kernels.native.compression import dequantise, quantise
from caldera.kernels.native.compression.stochastic_rounding import ALIGNED, Draws

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


# --- three levels, five values in a byte

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


# --- one bit a value


class SignCodec(Codec):
    """The sign of every value; a bucket of them shares the mean of its values that are not
    negative and the mean of those that are (Seide and others, 1-bit SGD, 2014).

    These two numbers make the squared error least. It is not unbiased: what is lost must be kept.
    """

    def __init__(self, bucket: int = 512) -> None:
        if bucket < 8 or bucket % 8:
            raise ConfigError.build("OneBit", expected="a bucket of 8, 16, ...", got=repr(bucket))
        self.bucket = bucket

    def encode(self, values: np.ndarray, draws: Draws | None) -> np.ndarray:
        single = np.ascontiguousarray(values, np.float32)
        positive = ~np.signbit(single)
        starts = np.arange(0, single.size, self.bucket)
        if not single.size:
            return np.empty(0, np.uint8)
        scales = np.empty((starts.size, 2), np.float32)
        for column, chosen in enumerate((positive, ~positive)):
            total = np.add.reduceat(np.where(chosen, single, np.float32(0)), starts, dtype="f8")
            number = np.add.reduceat(chosen, starts, dtype=np.int64)
            scales[:, column] = total / np.maximum(number, 1)
        return as_bytes(scales, np.packbits(positive, bitorder="little"))

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        check_size(self, message, count)
        buckets = -(-count // self.bucket)
        scales, packed = read(message, "float32", 2 * buckets)
        positive = np.unpackbits(packed, count=count, bitorder="little").astype(bool)
        means = np.repeat(scales.reshape(-1, 2), self.bucket, axis=0)[:count]
        return np.where(positive, means[:, 0], means[:, 1]).astype(dtype, copy=False)

    def bits(self, count: int) -> float:
        return 1 + 64 / self.bucket

    def size(self, count: int) -> int:
        return -(-count // 8) + 8 * -(-count // self.bucket)
