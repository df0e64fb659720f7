"""Increasing places as bytes, for several messages in one call.

Packed places are how many there are and how many runs (both uint32), then a string of places; or,
if there are runs, one of where these begin and one of where they end. A string has, by Rice's code,
the gap before each place divided by 2**r in unary, and what is left over in r bits:

    r, bits of the unary part (uint32); what is left over, the lowest bits first; the unary part

In the unary part every place has a one, with as many zeros before it as the quotient says. With
r = 0 that is a bitmap of all elements up to the last place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldera.errors import DataError
from caldera.kernels.native.codegen.kernel import addresses_of
from caldera.kernels.native.codegen.program import run_now
from caldera.kernels.native.compression.rice_decode import SLACK, unpack_places
from caldera.kernels.native.compression.rice_encode import HEADER, pack_places

Span = tuple[int, int]
"""From one number to (but without) another."""


def pack(
    places: np.ndarray, spans: Sequence[Span], parts: Sequence[Span], free: Sequence[int]
) -> list[np.ndarray]:
    """A message for each span of places (int32, increasing), all of which lie in that part of a
    vector; so many bytes are free behind the places.

    >>> import numpy as np
    >>> from caldera.kernels.native.compression.rice import pack, unpack
    >>> places, parts = np.array([3, 4, 5, 17], np.int32), [(0, 10), (10, 20)]
    >>> messages = pack(places, [(0, 3), (3, 4)], parts, free=[0, 2])
    >>> [message.size for message in messages]
    [17, 19]
    >>> unpack(messages, parts)
    (array([ 3,  4,  5, 17], dtype=int32), [3, 1], [17, 17])
    """
    longest = [
        HEADER + -(-(end - begin) // 8) + spare
        for (begin, end), spare in zip(parts, free, strict=True)
    ]
    out = np.empty(sum(longest), np.uint8)
    ends = np.empty(len(longest), np.int64)
    most = max((high - low for low, high in spans), default=0)
    run_now(
        pack_places,
        places=places,
        spans=_numbers(spans),
        reach=_numbers(parts),
        free=_numbers(free),
        messages=len(longest),
        out=out,
        ends=ends,
        spare=np.empty((2, most), np.int32),
        most=most,
    )
    found = ends.tolist()
    return [out[begin:end] for begin, end in zip([0, *found], found, strict=False)]


def unpack(
    messages: Sequence[np.ndarray], parts: Sequence[Span]
) -> tuple[np.ndarray, list[int], list[int]]:
    """The places of all messages, each in its part of a vector; how many a message has, and how
    many of its bytes these took. Messages that cannot be are refused."""
    lengths = [end - begin for begin, end in parts]
    counts = [
        int.from_bytes(each[:4].tobytes(), "little") if each.size >= HEADER else -1
        for each in messages
    ]
    for count, length in zip(counts, lengths, strict=True):
        if not 0 <= count <= length:
            raise DataError.build(
                "places of a message", expected=f"places below {length}", got=f"{count} of them"
            )
    places = np.empty(sum(counts), np.int32)
    taken = np.empty(len(messages), np.int64)
    sizes = [each.size for each in messages]
    most = max(counts, default=0)
    scratch = np.empty(max(sizes, default=0) + SLACK, np.uint8)
    run_now(
        unpack_places,
        addresses=addresses_of(messages),
        sizes=_numbers(sizes),
        reach=_numbers(parts),
        messages=len(messages),
        places=places,
        taken=taken,
        scratch=scratch,
        spare=np.empty((2, most), np.int32),
        most=most,
    )
    found = taken.tolist()
    for each, length in zip(found, lengths, strict=True):
        if each < 0:
            raise DataError.build(
                "places of a message", expected=f"increasing places below {length}", got="others"
            )
    return places, counts, found


def _numbers(values: Sequence[int] | Sequence[Span]) -> np.ndarray:
    return np.array(values, np.int64)
