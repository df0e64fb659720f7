"""One bit a value: its sign."""

from __future__ import annotations

import numpy as np

from caldera.compress.codecs._base import Codec, check_size
from caldera.compress.messages import as_bytes, read
from caldera.errors import ConfigError
from caldera.kernels.native.compression.random_draws import Draws
from caldera.tensor.dtype import DType


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
