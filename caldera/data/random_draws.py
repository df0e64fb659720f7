"""Random numbers of the input pipeline: the order of an epoch, and draws of stages.

Both are functions of (seed, epoch, position in the epoch), from the same counter-based generator as
all other random numbers. They are independent of earlier draws, so an epoch can be continued in its
middle, and each sample has the same numbers for any number of ranks and any batch size. A device
that makes its batches itself also uses these numbers: `LazyDraw` names them in a graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caldera import op
from caldera.base.arguments import within
from caldera.compiler.lazy import Expr
from caldera.core.tensor import philox

_LOW_WORD = 0xFFFFFFFF
# Fillers and random ops count their streams from 0; these are out of their way.
_ORDER_STREAM = 0xDA7A0000
_STAGE_STREAMS = 0xDA7A0001


def permutation(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the numbers 0 to `count` - 1 in the random order of an epoch.

    >>> permutation(6, seed=0, epoch=0).tolist()
    [0, 4, 2, 3, 1, 5]
    >>> permutation(6, seed=0, epoch=1).tolist()
    [0, 4, 3, 5, 1, 2]
    """
    within("order", "epoch", epoch, 0, 2**63 - 1)
    seed = index(seed)
    key = (seed & _LOW_WORD, (seed >> 32) & _LOW_WORD)
    words = philox.random_bits(key, 0, 2 * count, upper=(epoch, _ORDER_STREAM))
    # Sorting random keys that carry the number in their lower bits is faster than an argsort, and
    # has one result on every machine, because no two keys are equal.
    keys = words[0::2].astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= words[1::2]
    number_bits = np.uint64(max(count - 1, 1).bit_length())
    keys >>= number_bits
    keys <<= number_bits
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << int(number_bits)) - 1)
    return keys.astype(np.int64)


_BLOCKS_MIXED = 16


def block_permutation(count: int, block: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return a random order in which samples of a block are close to each other.

    The blocks are in random order, and the samples of 16 consecutive blocks are mixed.

    >>> order = block_permutation(1000, block=10, seed=0, epoch=0)
    >>> sorted(order.tolist()) == list(range(1000)), len(set((order[:160] // 10).tolist()))
    (True, 16)
    """
    mixed = permutation(count, seed, epoch)
    if block == 1:
        return mixed
    blocks = permutation(-(-count // block), seed, epoch)
    numbers = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    numbers = numbers[numbers < count]
    groups = np.arange(count) // (block * _BLOCKS_MIXED)
    return numbers[np.lexsort((mixed, groups))]


@dataclass(frozen=True, slots=True)
class Draw:
    """Random numbers of a batch whose samples start at position `first` in the epoch.

    >>> from caldera import data
    >>> whole = data.Draw(seed=1, epoch=2).uniform(samples=4)
    >>> part = data.Draw(seed=1, epoch=2, first=2).uniform(samples=2)
    >>> bool((whole[2:] == part).all())
    True
    """

    seed: int = 0
    epoch: int = 0
    first: int = 0
    stream: int = 0

    def of_stage(self, number: int) -> Draw:
        """Return the numbers of the stage at this place in a pipeline."""
        return Draw(self.seed, self.epoch, self.first, number)

    def uniform(self, samples: int, numbers: int = 1) -> NDArray[np.float32]:
        """Return numbers in [0, 1), of shape (samples, numbers)."""
        flat = philox.uniform01(
            self.seed,
            self.epoch,
            _STAGE_STREAMS + self.stream,
            self.first * numbers,
            samples * numbers,
        )
        return flat.reshape(samples, numbers)

    def whole(self, samples: int, below: tuple[int, ...]) -> NDArray[Any]:
        """Return integers from 0 up to, without, each of `below`: (samples, len(below))."""
        # In float64 the product is exact, so it never reaches the bound by rounding.
        scaled = self.uniform(samples, len(below)).astype(np.float64) * below
        return scaled.astype(np.int64)


@dataclass(frozen=True, slots=True)
class LazyDraw:
    """The numbers of a `Draw` as expressions, for batches that are made on a device.

    `state` is the int64 pair (seed, epoch), `first` the index of the batch's first sample.

    >>> import numpy as np
    >>> from caldera import data
    >>> from caldera.data.random_draws import LazyDraw
    >>> drawn = LazyDraw(state=np.array([1, 2]), first=np.int64(5), stream=3).uniform(samples=4)
    >>> bool((drawn.numpy() == data.Draw(seed=1, epoch=2, first=5, stream=3).uniform(4)).all())
    True
    """

    state: Any
    first: Any
    stream: int = 0

    def of_stage(self, number: int) -> LazyDraw:
        """Return the numbers of the stage at this place in a pipeline."""
        return replace(self, stream=number)

    def uniform(self, samples: int, numbers: int = 1) -> Expr:
        """See `Draw.uniform`."""
        return op.random_uniform(
            (samples, numbers),
            state=self.state,
            offset=self.first * numbers,
            stream=_STAGE_STREAMS + self.stream,
        )

    def whole(self, samples: int, below: tuple[int, ...]) -> Expr:
        """See `Draw.whole`."""
        uniform = op.cast(self.uniform(samples, len(below)), "float64")
        return op.cast(uniform * np.array(below, np.float64), "int64")
