"""Which random words an exchange takes: they depend on what is rounded, never on when.

The stream is named by the parameter, the step by how often it was exchanged; ranks and the stages
of an exchange follow each other on the stream, so no two of them share a word.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from caldera.kernels.native.compression.random_draws import ALIGNED, Draws

_RANKS = 1 << 16
_ROOM = 1 << 32
"""For one rank in one stage, in units of 64 words."""


@dataclass(frozen=True)
class RandomStream:
    """The random words of one exchange.

    >>> random_stream = RandomStream(seed=3, step=0, name="dense/weight")
    >>> stream = random_stream.of(rank=1)
    >>> stream == random_stream.of(rank=1), stream == random_stream.of(rank=1, stage=1)
    (True, False)
    """

    seed: int
    step: int
    name: str

    def of(self, rank: int, stage: int = 0, start: int = 0) -> Draws:
        """The words of a rank in a stage, for what begins at an element that 64 divides."""
        stream = zlib.crc32(self.name.encode())
        place = (stage * _RANKS + rank) * _ROOM + start // ALIGNED
        return Draws(self.seed, self.step & 0xFFFFFFFF, stream, place)
