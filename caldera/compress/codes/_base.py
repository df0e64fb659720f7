"""What a code is: values to bytes and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.compression.draws import Draws
from caldera.tensor.dtype import DType


class Code(ABC):
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
        self, vectors: Sequence[np.ndarray], draws: Draws
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """A message for each vector, and the values that whoever decodes it will have."""
        messages, values = [], []
        for vector in vectors:
            messages.append(self.encode(vector, draws))
            draws = draws.after(vector.size)
            if self.lossless:
                values.append(vector)
            else:
                values.append(self.decode(messages[-1], vector.size, vector.dtype))
        return messages, values

    @abstractmethod
    def bits(self, count: int) -> float:
        """About how many bits a value takes where there are so many, scales included."""

    def size(self, count: int) -> int | None:
        """The bytes of any vector of that length; None if they depend on what is in it."""
        return None


def check_size(code: Code, message: np.ndarray, count: int) -> None:
    """Refuse a message that does not have the bytes its code gives to so many values."""
    if message.size != code.size(count):
        raise DataError.build(
            f"{type(code).__name__} of {count} values", expected=f"{code.size(count)} bytes",
            got=f"{message.size}",
        )  # fmt: skip
