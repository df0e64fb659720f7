"""Weights kept and sent in fewer bits, rounded by chance.

Rounding to the nearest loses every update smaller than half a step of the format, and training
stops; rounding by chance keeps them on average (Gupta and others, 2015). All ranks round the same
parameter with the same draws, so their weights stay equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np

from caldera.base.registry import nearest
from caldera.comm import Communicator
from caldera.compress.error_feedback import CompressorState, State
from caldera.compress.random_stream import RandomStream
from caldera.errors import ConfigError
from caldera.kernels.native.compression import FORMATS, round_stochastically


class LowPrecisionWeights:
    """Weights in "bfloat16", "float16", "float8_e4m3fn" or "float8_e5m2".

    `store(name, weights)` gives the array to keep, rounded by chance; `round(name, weights)` does
    the same in place of float32 weights; `broadcast` sends weights from one rank to all in this
    format. Draws depend on the seed, the parameter and how often it was rounded: `state()` and
    `restore` keep the latter.

    >>> import numpy as np
    >>> from caldera import compress
    >>> low = compress.LowPrecisionWeights("bfloat16", seed=1)
    >>> weight = np.ones(1000, np.float32)
    >>> for _ in range(100):                      # a step of 1e-4 is far below bfloat16's 2**-8
    ...     weight -= np.float32(1e-4)
    ...     low.round("w", weight)
    >>> round(float(weight.mean()), 3), low.store("w", weight).nbytes
    (0.99, 2000)
    """

    def __init__(self, dtype: str = "bfloat16", seed: int = 0) -> None:
        if dtype not in FORMATS:
            raise ConfigError.build(
                "LowPrecisionWeights",
                expected="a format of fewer bits",
                got=repr(dtype),
                hint=nearest(dtype, FORMATS),
            )
        self.name = dtype
        self.dtype = np.dtype(dtype if dtype == "float16" else getattr(ml_dtypes, dtype))
        self.seed = seed
        self._kept = CompressorState()

    def round(self, name: str, weights: np.ndarray) -> None:
        """Replace float32 weights by numbers of the format, near them and equal on average."""
        random_stream = RandomStream(self.seed, self._kept.next_step(name), name)
        weights[...] = round_stochastically(
            np.ascontiguousarray(weights), self.name, random_stream.of(rank=0)
        )

    def store(self, name: str, weights: np.ndarray) -> np.ndarray:
        """The weights rounded by chance, in the format's own dtype."""
        rounded = np.array(weights, np.float32)
        self.round(name, rounded)
        return rounded.astype(self.dtype)

    def broadcast(
        self, weights: Mapping[str, np.ndarray], communicator: Communicator, root: int = 0
    ) -> None:
        """Send the root's float32 weights to all ranks in the format, in place on every rank."""
        bytes_each = [array.size * self.dtype.itemsize for array in weights.values()]
        message = np.empty(sum(bytes_each), np.uint8)
        stored = [self.store(name, array) for name, array in weights.items()]
        if communicator.rank == root and stored:
            message[:] = np.concatenate([array.reshape(-1).view(np.uint8) for array in stored])
        communicator.Bcast(message, root)
        start = 0
        for array, size in zip(weights.values(), bytes_each, strict=True):
            part = message[start : start + size].copy().view(self.dtype)
            array[...] = part.astype(np.float32).reshape(array.shape)
            start += size

    def state(self) -> State:
        """How often each parameter was rounded, for a checkpoint."""
        return self._kept.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take up what `state()` gave."""
        self._kept.restore(state)
