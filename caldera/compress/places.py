"""Which elements of a vector a sparse message is about, in as few bytes as three forms allow.

- **bitmap**: one bit an element.
- **gaps**: how many elements lie between one place and the next, by Rice's code: the gap divided
  by 2**r in unary, the rest in r bits. Unary and rest are kept apart, so that both are read at
  once instead of bit by bit. For places that are spread by chance this is within 3% of the
  entropy.
- **runs**: the gaps before the runs of neighbours, and the lengths of the runs, both by Rice's
  code. Rows of an embedding look like this.

All of them are lossless. The first byte of what is packed tells the form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from caldera.compress.wire import as_bytes, read
from caldera.errors import DataError
from caldera.kernels.native.compression import rice_read, rice_sizes, rice_write

BITMAP, GAPS, RUNS = 0, 1, 2
HEADER = 8
"""Bytes before the places: the form, then how many places or runs there are."""
_RICE_HEADER = 8
_WIDEST = 30


class _Rice(NamedTuple):
    """Increasing places with the parameter that packs them best, and what it takes."""

    places: np.ndarray
    rest: int
    unary: int
    size: int
    runs: int


def pack_places(places: np.ndarray, length: int) -> np.ndarray:
    """Increasing places (int32) below `length` as bytes, in the smallest of the forms.

    >>> import numpy as np
    >>> from caldera.compress.places import pack_places, unpack_places
    >>> places = np.arange(0, 32_000, 32, dtype=np.int32)
    >>> packed = pack_places(places, 32_000)
    >>> packed.nbytes, np.array_equal(unpack_places(packed, 32_000)[0], places)
    (766, True)
    """
    bitmap = -(-length // 8)
    gaps = _fitted(places)
    best = min(bitmap, gaps.size)
    # Runs have to be two places long on average to be worth their lengths.
    if gaps.runs * 2 < places.size:
        runs = _runs(places)
        if sum(each.size for each in runs) < best:
            written = [array for each in runs for array in _written(each)]
            return as_bytes(_header(RUNS, gaps.runs), *written)
    if gaps.size < bitmap:
        return as_bytes(_header(GAPS, places.size), *_written(gaps))
    chosen = np.zeros(length, bool)
    chosen[places] = True
    return as_bytes(_header(BITMAP, places.size), np.packbits(chosen, bitorder="little"))


def unpack_places(packed: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The places (int32) at the beginning of a message, and the bytes that follow."""
    header, body = read(packed, "uint32", 2)
    form, count = int(header[0]), int(header[1])
    if form == BITMAP:
        bitmap, rest = read(body, "uint8", -(-length // 8))
        chosen = np.unpackbits(bitmap, count=length, bitorder="little")
        places = np.flatnonzero(chosen).astype(np.int32)
    elif form == GAPS:
        places, rest = _read_rice(body, count)
    elif form == RUNS:
        starts, rest = _read_rice(body, count)
        ends, rest = _read_rice(rest, count)
        places = _spread(starts, ends)
    else:
        raise DataError.build("places of a sparse message", expected="a known form", got=f"{form}")
    if places.size and not 0 <= places[-1] < length:
        raise DataError.build(
            "places of a sparse message", expected=f"places below {length}", got=f"{places[-1]}"
        )
    return places, rest


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


def _header(form: int, count: int) -> np.ndarray:
    return np.array([form, count], np.uint32)


def _fitted(places: np.ndarray) -> _Rice:
    """The parameter is the best of three around the mean gap; then unary takes few bits in all."""
    count = places.size
    mean = (int(places[-1]) + 1) / count if count else 1.0
    guess = min(max(int(np.log2(mean)) - 1, 0), _WIDEST)
    unary, runs = rice_sizes(places, guess)
    sizes = [-(-bits // 8) + -(-count * (guess + i) // 8) for i, bits in enumerate(unary)]
    best = sizes.index(min(sizes))
    return _Rice(places, guess + best, unary[best], sizes[best] + _RICE_HEADER, runs)


def _written(rice: _Rice) -> tuple[np.ndarray, ...]:
    header = np.array([rice.rest, rice.unary], np.uint32)
    return header, *rice_write(rice.places, rice.rest, rice.unary)


def _read_rice(message: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    header, message = read(message, "uint32", 2)
    rest, unary = int(header[0]), int(header[1])
    if rest > _WIDEST + 2:
        raise DataError.build("places of a sparse message", expected="up to 32 bits", got=f"{rest}")
    ones, message = read(message, "uint8", -(-unary // 8))
    low, message = read(message, "uint8", -(-count * rest // 8))
    return rice_read(ones, low, count, rest), message


def _runs(places: np.ndarray) -> tuple[_Rice, _Rice]:
    """The runs of neighbours: where they begin when each is one place long, and their lengths,
    as the places that gaps of these lengths less one make."""
    first = np.ones(places.size, bool)
    np.not_equal(places[1:], places[:-1] + 1, out=first[1:])
    begins = np.flatnonzero(first)
    lengths = np.diff(begins, append=places.size)
    ends = np.cumsum(lengths) - 1
    number = np.arange(begins.size)
    starts = places[begins] - (ends - lengths + 1) + number
    return _fitted(starts.astype(np.int32)), _fitted(ends.astype(np.int32))


def _spread(starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The places of runs, from what `_runs` made of them."""
    if not starts.size:
        return starts
    lengths = np.diff(ends, prepend=np.int32(-1))
    shift = starts - np.arange(starts.size, dtype=np.int32)
    return np.arange(int(ends[-1]) + 1, dtype=np.int32) + np.repeat(shift, lengths)
