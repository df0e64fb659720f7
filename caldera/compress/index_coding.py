"""Which elements of a vector a sparse message is about, in as few bytes as two forms allow.

- **gaps**: how many elements lie between one place and the next, by Rice's code. For places that
  are spread by chance this is within 3% of the entropy; with the parameter 0 it is a bitmap.
- **runs**: the gaps before the runs of neighbours, and the lengths of the runs, both by Rice's
  code. Rows of an embedding look like this.

Both are lossless; `kernels.native.compression.rice` has the layout.
"""

from __future__ import annotations

import numpy as np

from caldera.kernels.native.compression.rice import HEADER, pack, unpack

__all__ = ["HEADER", "max_index_bytes", "pack_indices", "packed_bits", "unpack_indices"]
_WIDEST = 30


def pack_indices(places: np.ndarray, length: int) -> np.ndarray:
    """Increasing places (int32) below `length` as bytes, in the smaller of the forms.

    >>> import numpy as np
    >>> from caldera.compress.index_coding import pack_indices, unpack_indices
    >>> places = np.arange(0, 32_000, 32, dtype=np.int32)
    >>> packed = pack_indices(places, 32_000)
    >>> packed.nbytes, np.array_equal(unpack_indices(packed, 32_000)[0], places)
    (766, True)
    """
    (packed,) = pack(places, [(0, places.size)], [(0, length)], [0])
    return packed


def unpack_indices(packed: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The places (int32) at the beginning of a message, and the bytes that follow."""
    places, _, (taken,) = unpack([packed], [(0, length)])
    return places, packed[taken:]


def max_index_bytes(length: int) -> int:
    """The most bytes that places in a vector of this length can take.

    >>> max_index_bytes(1000)
    141
    """
    return HEADER + -(-length // 8)


def packed_bits(density: float) -> float:
    """About how many bits a place takes if this part of all elements is chosen by chance.

    >>> round(packed_bits(1 / 32), 1), round(packed_bits(0.9), 1)
    (6.5, 1.1)
    """
    if density <= 0:
        return 0.0
    bitmap = 1 / density
    if density >= 0.5:
        return bitmap
    keep = 1 - density
    by_gaps = (r + 1 + keep ** (1 << r) / (1 - keep ** (1 << r)) for r in range(_WIDEST))
    return min(bitmap, *by_gaps)
