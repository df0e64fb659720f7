"""Speeds of links, times, memory and speeds of computing as people write them.

A link is sold in bits and a file counted in bytes, so b and B are told apart: 100Gb is 12.5 GB a
second. Prefixes are powers of 1000, with an i those of 1024.
"""

from __future__ import annotations

import math
import re

from caldera.errors import ConfigError

_NUMBER = r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?)\s*"
_RATE = re.compile(_NUMBER + r"([kKMGTP]i?|m|g)?(b|B|bit|Bit)(?:ps|/s)?\s*")
_BYTES = re.compile(_NUMBER + r"([kKMGTP]i?)?(b|B)?\s*")
_SECONDS = re.compile(_NUMBER + r"(ns|us|µs|ms|s)\s*")
_FLOPS = re.compile(_NUMBER + r"([kKMGTP])?(?:FLOP)?(?:S|/s)?\s*")
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_SCALES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def rate_of(text: str, where: str = "link") -> float:
    """Bytes a second.

    >>> rate_of("100Gb"), rate_of("12.5GB/s"), rate_of("100Mbit"), rate_of("1GiB")
    (12500000000.0, 12500000000.0, 12500000.0, 1073741824.0)
    >>> rate_of("100G")
    Traceback (most recent call last):
    caldera.errors.ConfigError: link: expected a speed such as 100Gb (bits a second) or 12.5GB ...
    """
    found = _RATE.fullmatch(text)
    value = float(found[1]) * _scale(found[2]) if found else 0.0
    if found is None or value <= 0 or not math.isfinite(value):
        raise ConfigError.build(
            where,
            expected="a speed such as 100Gb (bits a second) or 12.5GB (bytes a second)",
            got=repr(text),
            hint="b is for bits, B for bytes",
        )
    return value if found[3] == "B" else value / 8


def seconds_of(text: str, where: str = "latency") -> float:
    """Seconds.

    >>> seconds_of("2us"), seconds_of("0.5 ms")
    (2e-06, 0.0005)
    """
    found = _SECONDS.fullmatch(text)
    if found is None:
        raise ConfigError.build(where, expected="a time such as 2us, 0.1ms or 1s", got=repr(text))
    return float(found[1]) * _SCALES[found[2]]


def bytes_of(text: str, where: str = "memory") -> int:
    """Bytes.

    >>> bytes_of("80GB"), bytes_of("16GiB")
    (80000000000, 17179869184)
    >>> bytes_of("80Gb")
    Traceback (most recent call last):
    caldera.errors.ConfigError: memory: expected bytes such as 80GB or 16GiB, got '80Gb'; b is ...
    """
    found = _BYTES.fullmatch(text)
    if found is None or found[3] != "B" or float(found[1]) <= 0:
        raise ConfigError.build(
            where,
            expected="bytes such as 80GB or 16GiB",
            got=repr(text),
            hint="b is for bits, B for bytes",
        )
    return round(float(found[1]) * _scale(found[2]))


def flops_of(text: str, where: str = "speed") -> float:
    """Floating-point operations a second.

    >>> flops_of("30T"), flops_of("500 GFLOP/s")
    (30000000000000.0, 500000000000.0)
    """
    found = _FLOPS.fullmatch(text)
    if found is None or float(found[1]) <= 0:
        raise ConfigError.build(
            where, expected="operations a second such as 30T or 500G", got=repr(text)
        )
    return float(found[1]) * _scale(found[2])


def rate_text(rate: float) -> str:
    """A speed of a link, in bits.

    >>> rate_text(12.5e9), rate_text(12.5e6)
    ('100 Gbit/s', '100 Mbit/s')
    """
    bits = 8 * rate
    for unit, scale in (("Tbit", 1e12), ("Gbit", 1e9), ("Mbit", 1e6)):
        if bits >= 0.9995 * scale:
            return f"{bits / scale:.3g} {unit}/s"
    return f"{bits / 1e3:.3g} kbit/s"


def _scale(prefix: str | None) -> float:
    letters = (prefix or "").upper()
    return (1024.0 if letters.endswith("I") else 1000.0) ** _POWERS[letters.removesuffix("I")]
