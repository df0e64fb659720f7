"""Which families of kernels want images channels last (NHWC) in memory."""

from __future__ import annotations

_CHANNELS_LAST = frozenset({"cpu", "cuda"})


def wants_channels_last(family: str) -> bool:
    """Whether plans for this family should lay images out channels last.

    Channels are what convolutions, pooling and normalisation vectorise over. Every kernel takes
    row-major images as well; these are slower.

    >>> wants_channels_last("cpu")
    True
    """
    return family in _CHANNELS_LAST
