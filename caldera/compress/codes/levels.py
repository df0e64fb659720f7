"""Values on a few levels, rounded by chance: QSGD."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from caldera.compress.codes._base import Code, check_size
from caldera.compress.wire import as_bytes, read
from caldera.errors import ConfigError
from caldera.kernels.native.compression import from_levels, pack_bits, to_levels
from caldera.kernels.native.compression.draws import Draws
from caldera.tensor.dtype import DType

WIDTHS = (2, 4, 8)


class Levels(Code):
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

    def encode(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        single = np.ascontiguousarray(values, np.float32)
        codes, scales = to_levels(single, self.levels, self.bucket, draws)
        return as_bytes(scales, self._packed(codes))

    def encode_all(
        self, vectors: Sequence[np.ndarray], draws: Draws
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        # All at once: each begins with a bucket of its own, and zeros fill up the one before.
        buckets = [-(-vector.size // self.bucket) for vector in vectors]
        edges = list(accumulate(buckets, initial=0))
        padded = np.zeros(edges[-1] * self.bucket, np.float32)
        for vector, edge in zip(vectors, edges, strict=False):
            padded[edge * self.bucket :][: vector.size] = vector
        codes, scales = to_levels(padded, self.levels, self.bucket, draws)
        values = from_levels(codes, scales, self.levels, self.bucket)
        packed = self._packed(codes)
        messages, decoded = [], []
        for vector, (begin, end) in zip(vectors, pairwise(edges), strict=True):
            part = packed[begin * self.bucket * self.width // 8 :]
            messages.append(as_bytes(scales[begin:end], part[: -(-vector.size * self.width // 8)]))
            found = values[begin * self.bucket :][: vector.size]
            decoded.append(found.astype(vector.dtype, copy=False))
        return messages, decoded

    def _packed(self, codes: np.ndarray) -> np.ndarray:
        return codes if self.width == 8 else pack_bits(codes, self.width)

    def decode(self, message: np.ndarray, count: int, dtype: DType) -> np.ndarray:
        check_size(self, message, count)
        scales, packed = read(message, "float32", -(-count // self.bucket))
        values = from_levels(
            packed, scales, self.levels, self.bucket, count=count, width=self.width
        )
        return values.astype(dtype, copy=False)

    def bits(self, count: int) -> float:
        return self.width + 32 / self.bucket

    def size(self, count: int) -> int:
        return -(-count * self.width // 8) + 4 * -(-count // self.bucket)
