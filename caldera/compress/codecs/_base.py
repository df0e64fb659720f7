"""What a code is: values to bytes and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera.core.tensor.dtype import DType
from caldera.errors import DataError
from caldera.kernels.native.compression.random_draws import Draws


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
