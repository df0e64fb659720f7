"""Protocol Buffers by hand: a message is a row of fields, each with its number and its bytes.

See the encoding guide of Protocol Buffers. Only what event files need is here: whole numbers as
varints, floating-point numbers of 4 and 8 bytes, texts, bytes and messages inside of messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first; negative ones as 64 bits.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def whole(field: int, value: int) -> bytes:
    """A field that is a whole number, a truth value or a member of an enumeration.

    >>> whole(1, 150).hex()
    '089601'
    """
    return varint(field << 3 | _VARINT) + varint(value)


def single(field: int, value: float) -> bytes:
    """A field that is a number of 4 bytes."""
    # NumPy turns what is too large into infinity, where struct would refuse it.
    with np.errstate(over="ignore"):
        return varint(field << 3 | _FOUR_BYTES) + np.float32(value).tobytes()


def double(field: int, value: float) -> bytes:
    """A field that is a number of 8 bytes."""
    return varint(field << 3 | _EIGHT_BYTES) + struct.pack("<d", value)


def doubles(field: int, values: Iterable[float]) -> bytes:
    """A field that is many numbers of 8 bytes."""
    return message(field, np.fromiter(values, "<f8").tobytes())


def text(field: int, value: str) -> bytes:
    """A field that is a text.

    >>> text(2, "testing").hex()
    '120774657374696e67'
    """
    return message(field, value.encode())


def message(field: int, *parts: bytes) -> bytes:
    """A field that is a message made of these fields, or bytes."""
    content = b"".join(parts)
    return varint(field << 3 | _BYTES) + varint(len(content)) + content
