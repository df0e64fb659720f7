"""Records of a TFRecord file: a length, bytes, and checksums of both.

The checksum is CRC-32C (Castagnoli), turned and shifted so that a record may hold records.
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x82F63B78
_MASK = 0xA282EAD8


def _table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of RFC 3720.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """The data as a record.

    >>> record(b"abc").hex()
    '0300000000000000b099490e6162636e57f121'
    """
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def _masked(data: bytes) -> bytes:
    value = crc32c(data)
    turned = (value >> 15 | value << 17) + _MASK
    return struct.pack("<I", turned & 0xFFFFFFFF)
