"""Codecs of values: float16, bfloat16, raw, lossless, and on few levels (QSGD, TernGrad, signs).

The 16-bit codecs round to the nearest. The lossless codec is shorter where many values are zero
or repeat their predecessor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera.base.arguments import require
from caldera.compress.compressor import as_bytes, pack_indices, read, unpack_indices
from caldera.core.tensor.dtype import BY_NAME, DType, canonical
from caldera.errors import ConfigError, DataError
from caldera.kernels.native.compression import dequantise, quantise
from caldera.kernels.native.compression.stochastic_rounding import ALIGNED, Draws


class Codec(ABC):
    """Encoding of a vector of values. Errors are computed and stored by the caller.

    `lossless` codecs restore every value bit for bit.
    """

    lossless = False

    @abstractmethod
    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        """Encode a vector as uint8; stochastic rounding uses the given draws."""

    @abstractmethod
    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        """Return the `count` values of a message, as a new array of this dtype."""

    def encode_all(
        self,
        values: np.ndarray,
        spans: Sequence[tuple[int, int]],
        messages: Sequence[np.ndarray],
        draws: Draws,
    ) -> np.ndarray | None:
        """Encode each span of values into its message, whose size is exact.

        Return the error of each value (0 for infinities and NaNs), or None if there is none.
        """
        lost = None if self.lossless else np.zeros_like(values)
        for (low, high), message in zip(spans, messages, strict=True):
            message[...] = self.encode(values[low:high], draws)
            draws = draws.after(high - low)
            if lost is not None:
                error = values[low:high] - self.decode(message, high - low, values.dtype)
                lost[low:high] = np.where(np.isfinite(error), error, 0)
        return lost

    def decode_all(
        self, messages: Sequence[np.ndarray], counts: Sequence[int], dtype: DType
    ) -> np.ndarray:
        """Return the concatenated values of several messages."""
        found = [self.decode(m, count, dtype) for m, count in zip(messages, counts, strict=True)]
        return np.concatenate([np.empty(0, dtype), *found])

    @abstractmethod
    def bits(self, count: int) -> float:
        """Return the approximate bits per value in a vector of `count` values, including scales."""

    def size(self, count: int) -> int | None:
        """Return the bytes of any vector of this length, or None if they depend on its values."""
        return None

    def longest(self, count: int, dtype: DType) -> int:
        """Return the most bytes that a vector of that length and dtype can take."""
        size = self.size(count)
        assert size is not None, "define the maximum size of a code without a fixed size"
        return size


def check_size(code: Codec, message: np.ndarray, count: int) -> None:
    """Raise unless a message has the size of `count` encoded values."""
    if message.size != code.size(count):
        raise DataError.build(
            f"{type(code).__name__} of {count} values",
            expected=f"{code.size(count)} bytes",
            got=f"{message.size}",
        )


_HIGHEST_EXPONENT = 15
"""The largest float16 has this exponent."""


class HalfPrecisionCodec(Codec):
    """float16 or bfloat16.

    A float16 vector is sent with a power of two that scales its largest magnitude close to the
    largest float16, so that small values do not vanish and sums do not overflow. bfloat16 has the
    range of float32 and needs no scale.

    >>> import numpy as np
    >>> from caldera.compress.codecs import HalfPrecisionCodec
    >>> code = HalfPrecisionCodec("float16")
    >>> small = np.array([2.0 ** -40, 2.0 ** -50], np.float32)
    >>> code.decode(code.encode(small, None), 2, small.dtype) == small
    array([ True,  True])
    """

    def __init__(self, dtype: str = "bfloat16") -> None:
        require(dtype in ("float16", "bfloat16"), "Cast", "'float16' or 'bfloat16'", repr(dtype))
        self.dtype = BY_NAME[dtype]
        self.scaled = dtype == "float16"

    def encode(self, values: np.ndarray, draws: Draws | None) -> np.ndarray:
        if not self.scaled:
            return as_bytes(values.astype(self.dtype))
        largest = float(np.abs(values).max(initial=0.0))
        scale = np.float32(1)
        if 0 < largest < np.inf:
            # Not below float32's own range: 2 ** 100 is more than any gradient needs.
            scale = np.float32(2.0 ** max(int(np.frexp(largest)[1]) - _HIGHEST_EXPONENT, -100))
        # The scale is a power of two, so the division is exact within float32's range.
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
    """Codec that sends values unchanged.

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


_PLAIN, _SPARSE, _REPEATED = 0, 1, 2
_WORDS = {2: np.uint16, 4: np.uint32, 8: np.uint64}


class LosslessCodec(Codec):
    """Lossless encoding in the smallest of three forms.

    The forms are: all values; nonzero values with their indices; one value per run of equal values
    with the start of each run. Bits are compared, so -0 and NaNs are preserved.

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
        best = as_bytes(np.array([_PLAIN], np.uint8), values)
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
        require(
            kept.size == wanted * dtype.itemsize and form <= _REPEATED,
            "a packed message",
            f"{wanted} values",
            f"{kept.size} bytes",
            error=DataError,
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
    """Return True where a value differs from its predecessor; the first is always True."""
    begins = np.ones(words.size, bool)
    np.not_equal(words[1:], words[:-1], out=begins[1:])
    return begins


WIDTHS = (2, 4, 8)


class QsgdCodec(Codec):
    """2, 4 or 8 bits a value: -s, ..., s times a scale, s = 2**(bits - 1) - 1.

    Every `bucket` values share one scale, their largest magnitude. Rounding by chance makes the
    expectation equal to the value; the variance of n values is at most min(n / s**2,
    sqrt(n) / s) times the square of their norm (Alistarh and others, QSGD, 2017).
    """

    def __init__(self, bits: int = 4, bucket: int = 512) -> None:
        require(bits in WIDTHS, "QSGD", "2, 4 or 8 bits", repr(bits))
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
    """-1, 0 or 1 times a scale per vector: 8/5 bits a value.

    Values beyond `clip` standard deviations are clipped first (0 disables it), since a single large
    value would make the scale, and thereby the variance, large. The clipped values are rounded
    stochastically without bias (Wen and others, TernGrad, 2017).
    """

    def __init__(self, clip: float = 2.5) -> None:
        require(clip >= 0, "TernGrad", "clip >= 0", repr(clip))
        self.clip = clip

    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        single = np.ascontiguousarray(values, np.float32)
        if self.clip and single.size:
            # An infinity or a NaN makes the limit NaN: no value is clipped, and the error becomes
            # visible.
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
        """Return the kernel's format: a byte per value, and a single bucket."""
        return {"levels": 1, "width": 8, "bucket": -(-max(count, 1) // ALIGNED) * ALIGNED}

    def bits(self, count: int) -> float:
        return 8 / _IN_A_BYTE

    def size(self, count: int) -> int:
        return -(-count // _IN_A_BYTE) + 4 * min(count, 1)


# --- one bit a value


class SignCodec(Codec):
    """Sign of every value, with two means per bucket.

    The means are over the non-negative and over the negative values of the bucket (Seide and
    others, 1-bit SGD, 2014). They minimise the squared error. The encoding is biased: its error
    must be kept.
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
