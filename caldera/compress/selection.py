"""Which elements of a vector are sent: the largest, found exactly or by a sampled threshold.

Magnitudes are compared in float32, as the integers that their bits are: infinities and nans come
first, so that they are seen at once, and of equal magnitudes those with the lower place. Zeros are
never sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.kernels.native.compression import top_k_in_blocks

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SAMPLE = 4096
"""Elements in a sample, or a hundredth of all if that is more."""
_TOO_MANY = 1.5
"""If a sampled threshold selects so many times what was wanted, the largest of them are taken."""


def in_blocks(vectors: Sequence[np.ndarray], count: int, block: int) -> list[np.ndarray]:
    """For each vector, the places of the `count` largest of every `block` elements."""
    return [top_k_in_blocks(vector.astype(np.float32), count, block) for vector in vectors]


def exact(vectors: Sequence[np.ndarray], count: int) -> list[np.ndarray]:
    """For each vector, the places of its elements that are among the `count` largest of all.

    >>> import numpy as np
    >>> exact([np.array([1.0, -7.0]), np.array([3.0, 9.0])], 2)
    [array([1], dtype=int32), array([1], dtype=int32)]
    """
    magnitudes = [_magnitudes(vector) for vector in vectors]
    together = magnitudes[0] if len(vectors) == 1 else np.concatenate(magnitudes)
    chosen = _largest(together, count)
    return _apart(chosen, vectors)


def sampled(vectors: Sequence[np.ndarray], count: int, offset: int) -> list[np.ndarray]:
    """As `exact`, with a threshold from a sample: about `count` elements, found in less time.

    Every so-manieth element is in the sample, from `offset` on.
    """
    magnitudes = [_magnitudes(vector) for vector in vectors]
    together = magnitudes[0] if len(vectors) == 1 else np.concatenate(magnitudes)
    stride = max(together.size // max(_SAMPLE, together.size // 100), 1)
    sample = together[offset % stride :: stride]
    wanted = max(round(count * sample.size / together.size), 1)
    least = max(int(np.partition(sample, sample.size - wanted)[sample.size - wanted]), 1)
    chosen = np.flatnonzero(together >= least)
    if chosen.size > _TOO_MANY * count:
        chosen = chosen[_largest(together[chosen], count)]
    return _apart(chosen, vectors)


def _magnitudes(vector: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vector, np.float32).view(np.int32) & _MAGNITUDE


def _largest(magnitudes: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest that are not zero, in order."""
    if count >= magnitudes.size:
        return np.flatnonzero(magnitudes)
    least = np.partition(magnitudes, magnitudes.size - count)[magnitudes.size - count]
    if not least:
        return np.flatnonzero(magnitudes)
    reaching = np.flatnonzero(magnitudes >= least)
    surplus = reaching.size - count
    if surplus:
        equal = np.flatnonzero(magnitudes[reaching] == least)
        reaching = np.delete(reaching, equal[equal.size - surplus :])
    return reaching


def _apart(chosen: np.ndarray, vectors: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Places in all vectors together as places in each."""
    edges = np.cumsum([0, *(vector.size for vector in vectors)])
    cuts = np.searchsorted(chosen, edges)
    return [
        (chosen[cuts[i] : cuts[i + 1]] - edges[i]).astype(np.int32) for i in range(len(vectors))
    ]
