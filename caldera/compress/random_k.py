"""Elements chosen by chance, the same on all ranks: their places need not be sent."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Unpack

import numpy as np

from caldera.comm import Communicator
from caldera.compress._base import Compressor, Options, compressors
from caldera.compress.random_stream import RandomStream
from caldera.core.tensor.dtype import HALVES
from caldera.core.tensor.philox import random_bits
from caldera.errors import ConfigError


@compressors.register("random_k")
class RandomK(Compressor):
    """A part `k` of the elements, chosen anew in each step from the seed, summed as they are.

    With `feedback` (the default) what was not chosen is kept for the next step. Without it, what
    is chosen is multiplied by n / count, which makes it unbiased.

    >>> import numpy as np
    >>> from caldera import comm, compress
    >>> random_k = compress.RandomK(0.5, seed=1)
    >>> gradient = np.arange(1, 9, dtype=np.float32)
    >>> random_k.exchange("w", gradient, comm.SingleProcess())
    >>> int((gradient != 0).sum()), (gradient + random_k.state()["residual/w"]).tolist()
    (4, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    """

    def __init__(
        self, k: float = 0.01, *, feedback: bool = True, **options: Unpack[Options]
    ) -> None:
        super().__init__(**options)
        if not 0 < k <= 1:
            raise ConfigError.build("RandomK", expected="k above 0, up to 1", got=repr(k))
        self.k = k
        self.feedback = feedback

    def _exchange(
        self,
        gradients: Mapping[str, np.ndarray],
        communicator: Communicator,
        random_stream: RandomStream,
    ) -> None:
        sent = []
        chosen = []
        for number, (name, gradient) in enumerate(gradients.items()):
            places = self._places(gradient.size, random_stream, number)
            values = gradient.reshape(-1)
            if self.feedback:
                values = self._kept.like("residual", name, gradient)
                values += gradient.reshape(-1)
            taken = values[places]
            if self.feedback:
                values[places] = 0
            else:
                taken = taken * taken.dtype.type(gradient.size / places.size)
            sent.append(taken.astype(np.float32) if taken.dtype in HALVES else taken)
            chosen.append(places)
        buffer = np.concatenate(sent)
        communicator.Allreduce(buffer, buffer)
        buffer = self._scaled(buffer, communicator.size)
        start = 0
        for gradient, places in zip(gradients.values(), chosen, strict=True):
            gradient.fill(0)
            gradient.reshape(-1)[places] = buffer[start : start + places.size]
            start += places.size

    def count(self, size: int) -> int:
        """How many of so many elements are sent."""
        return max(ceil(self.k * size), 1)

    def _places(self, size: int, random_stream: RandomStream, number: int) -> np.ndarray:
        """As many places as wanted, in order: those with the smallest random words."""
        seed, step, stream, first = random_stream.of(rank=0, stage=number)
        key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
        words = random_bits(key, first * 64, size, (step, stream))
        count = self.count(size)
        if count == size:
            return np.arange(size)
        return np.sort(np.argpartition(words, count)[:count])
