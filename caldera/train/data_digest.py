"""Short names for data, by which ranks find out whether they were given the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from caldera.data import Pipeline
from caldera.train.sample_weights import SampleWeights

ROWS = 16
"""How many samples are looked at where each has to be read, which may take long."""
BYTES = 1 << 22
"""How much is looked at of samples that lie in arrays."""


def data_digest(data: Pipeline | None) -> str:
    """A name for data, from samples that are evenly spaced; "" for none and for a stream, which
    cannot be read twice.

    >>> import numpy as np
    >>> from caldera.data import Pipeline
    >>> x = np.zeros((100, 3))
    >>> data_digest(Pipeline(x)) == data_digest(Pipeline(x + 1))
    False
    """
    if data is None or data.is_stream or not len(data):
        return ""
    first, again = (_digest(_rows(data)) for _ in range(2))
    # Samples that are made by chance, other ones each time, have no name.
    return first if first == again else "random"


def weights_digest(weights: SampleWeights | None) -> str:
    """A name for the weights of samples and classes."""
    if weights is None:
        return ""
    return _digest(each for each in (weights.by_sample, weights.by_class) if each is not None)


def _rows(data: Pipeline) -> Iterable[np.ndarray]:
    source, count = data.source, len(data)
    stored = data.stored()
    wanted = ROWS
    if stored is not None:
        wanted = max(ROWS, BYTES // max(sum(each[:1].nbytes for each in stored.arrays), 1))
    numbers = np.unique(np.linspace(0, count - 1, min(count, wanted)).astype(np.int64))
    return source.raw_batch(numbers)  # type: ignore[union-attr]


def _digest(arrays: Iterable[np.ndarray]) -> str:
    made = hashlib.blake2b(digest_size=8)
    for array in arrays:
        made.update(f"{array.dtype} {array.shape}".encode())
        if array.dtype == object:
            # Samples that are still encoded.
            for each in array.flat:
                made.update(bytes(each))
        else:
            made.update(np.ascontiguousarray(array).view(np.uint8).data)
    return made.hexdigest()
