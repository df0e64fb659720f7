"""Codec interface, with float16, bfloat16, raw and lossless codecs.

The 16-bit codecs round to the nearest. The lossless codec is shorter where many values are zero
or repeat their predecessor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera.compress.messages import as_bytes, pack_indices, read, unpack_indices
from caldera.core.tensor.dtype import BY_NAME, DType, canonical
from caldera.errors import ConfigError, DataError
from caldera.kernels.native.compression.stochastic_rounding import Draws


class Codec(ABC):
    """How a vector of values travels. What a code loses is for its user to find out and keep.

    `lossless` codes give every value back bit for bit.
    """

    lossless = False

    @abstractmethod
    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        """The bytes (uint8) of a vector; what is rounded by chance is rounded by these draws."""

    @abstractmethod
    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        """The `count` values of a message, as a new array of this dtype."""

    def encode_all(
        self,
        values: np.ndarray,
        spans: Sequence[tuple[int, int]],
        messages: Sequence[np.ndarray],
        draws: Draws,
    ) -> np.ndarray | None:
        """Write each span of values to a message, which has the bytes of its size. What each value
        has lost by that, infinities and nans nothing; None if none has."""
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
        """The values of several messages, one after the other."""
        found = [self.decode(m, count, dtype) for m, count in zip(messages, counts, strict=True)]
        return np.concatenate([np.empty(0, dtype), *found])

    @abstractmethod
    def bits(self, count: int) -> float:
        """About how many bits a value takes where there are so many, scales included."""

    def size(self, count: int) -> int | None:
        """The bytes of any vector of that length; None if they depend on what is in it."""
        return None

    def longest(self, count: int, dtype: DType) -> int:
        """The most bytes that a vector of that length and dtype can take."""
        size = self.size(count)
        assert size is not None, "a code without a size says how long it may be"
        return size


def check_size(code: Codec, message: np.ndarray, count: int) -> None:
    """Refuse a message that does not have the bytes its code gives to so many values."""
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
